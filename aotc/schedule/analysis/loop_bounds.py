"""Bounds of counted loops, moved by whole steps without ever wrapping.

Invariant: induction variables are compared, never added to near the end of their type.
"""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.dialects import arith, scf
from aotc.ir.rewrite import Builder
from aotc.ir.types import ScalarType


def lowered_bounds(loop: scf.For, count: int, builder: Builder) -> list[Value]:
    """Return, for 0 to `count` steps, the exclusive bound on inductions with a later iteration.

    It is the upper bound minus so many steps. Where it would wrap, it is the least number of its
    type, below all induction variables.
    """
    kind = loop.upper.type
    assert isinstance(kind, ScalarType)
    least = -(1 << kind.bits - 1) if kind.is_signed else 0
    lowest = builder(arith.Constant(least, kind)).out
    edge = builder(arith.Add(lowest, loop.step)).out
    bounds = [loop.upper]
    for _ in range(count):
        wraps = builder(arith.Compare(bounds[-1], edge, "lt")).out
        lower = builder(arith.Sub(bounds[-1], loop.step)).out
        bounds.append(builder(arith.Select(wraps, lowest, lower)).out)
    return bounds
