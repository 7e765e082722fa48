"""Requests to compile, with config keys among the other options, as `aotc.compile` takes them."""

from __future__ import annotations

from typing import Any

from aotc.compiler import CompileRequest
from aotc.config import CONFIG_KEYS, Config


def request_of(*parts: Any, **options: Any) -> CompileRequest:
    """Return the request of source, kernel, signature, constants and target, with options."""
    rest = {name: value for name, value in options.items() if name not in CONFIG_KEYS}
    return CompileRequest(*parts, config=Config.of(options), **rest)
