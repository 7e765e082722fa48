"""Format values as TOML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml(value: object) -> str:
    """Return a constant as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value).replace("infinity", "inf")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def toml_table(values: Mapping[str, object]) -> str:
    """Return constants as an inline table."""
    if not values:
        return "{}"
    pairs = (f"{toml_key(name)} = {toml(value)}" for name, value in values.items())
    return f"{{ {', '.join(pairs)} }}"


def toml_key(name: str) -> str:
    """Return a key, quoted where TOML requires it."""
    return name if _BARE_KEY.fullmatch(name) else toml(name)
