"""Bounds of counted loops, moved by whole steps without ever wrapping.

Invariant: induction variables are compared, never added to near the end of their type.
"""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.dialects import arith, scf
from aotc.ir.rewrite import Builder
from aotc.ir.types import ScalarType


def lowered_bounds(loop: scf.For, count: int, place: Builder) -> list[Value]:
    """Return, for 0 to `count` steps, the bound below which an iteration so far ahead exists.

    That is the upper bound minus so many steps; where that would wrap, the least number of its
    type, which no induction variable is below.
    """
    kind = loop.upper.type
    assert isinstance(kind, ScalarType)
    least = -(1 << kind.bits - 1) if kind.is_signed else 0
    lowest = place(arith.Constant(least, kind)).out
    edge = place(arith.Add(lowest, loop.step)).out
    bounds = [loop.upper]
    for _ in range(count):
        wraps = place(arith.Compare(bounds[-1], edge, "lt")).out
        lower = place(arith.Sub(bounds[-1], loop.step)).out
        bounds.append(place(arith.Select(wraps, lowest, lower)).out)
    return bounds
