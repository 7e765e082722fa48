"""Tuples among constants, as a manifest and an archive write them: the text "(16, 32)".

The items are booleans, numbers, strings, None and tuples of these, as in Python.
"""

from __future__ import annotations

import ast
from typing import Any, cast


def tuple_text(value: object) -> str:
    """Return a tuple of constants as text; empty for anything else."""
    return repr(_plain(value)) if _is_plain_tuple(value) else ""


def tuple_of(text: str) -> tuple[Any, ...] | None:
    """Return the tuple that a text means, None for other texts."""
    if not (text.startswith("(") and text.endswith(")")):
        return None
    try:
        value: object = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return cast("tuple[Any, ...]", value) if _is_plain_tuple(value) else None


def _is_plain_tuple(value: object) -> bool:
    items = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    scalars = (bool, int, float, str, type(None))
    return isinstance(value, tuple) and all(
        isinstance(item, scalars) or _is_plain_tuple(item) for item in items
    )


def _plain(value: object) -> object:
    """Return a value without named tuples and subclasses."""
    if isinstance(value, tuple):
        return tuple(map(_plain, cast("tuple[object, ...]", value)))
    return value
