"""Parsing of Python source, as often as a compile or a manifest needs it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Generator[None]:
    """Suspend garbage collection while many live objects are built: it would dominate."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_python(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """Return the tree of a source. Raises: as `ast.parse`."""
    with without_collector():
        return ast.parse(source, file)
