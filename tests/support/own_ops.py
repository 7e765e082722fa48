"""Temporary op classes of a test, unregistered after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aotc.ir.core import Op


@contextmanager
def own_ops() -> Iterator[None]:
    """Let a test declare op classes, then restore the op registry."""
    registry = dict(Op.registry)
    try:
        yield
    finally:
        Op.registry.clear()
        Op.registry.update(registry)
