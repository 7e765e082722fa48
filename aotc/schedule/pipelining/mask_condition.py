"""Add a condition to a mask where the fewest registers of a thread hold it.

Invariant: the mask's layout stays, and its elements are those of the conjunction.
"""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType

_MAX_DEPTH = 6  # of parts of a mask; the source may have any number


def and_condition(
    mask: Value, condition: Value, builder: Builder, depth: int = _MAX_DEPTH
) -> Value:
    """Return the conjunction of a mask and a scalar condition.

    A mask of rows and columns is one of rows, broadcast, and one of columns. The condition joins the
    one with fewer elements in a thread.
    """
    op = mask.op if depth else None
    if isinstance(op, arith.And):
        fewer, more = sorted(op.operands, key=lambda part: _num_registers(part, depth - 1))
        if _num_registers(fewer, depth - 1) < _held_registers(mask):
            joined = and_condition(fewer, condition, builder, depth - 1)
            return builder(arith.And(joined, more)).out
    if isinstance(op, tile.Broadcast):
        source = and_condition(op.value, condition, builder, depth - 1)
        return builder(tile.Broadcast(source, op.shape, op.layout)).out
    if isinstance(op, tile.Splat):
        both = builder(arith.And(op.value, condition)).out
        return splat_like(both, mask, builder)
    return builder(arith.And(mask, splat_like(condition, mask, builder))).out


def splat_like(condition: Value, value: Value, builder: Builder) -> Value:
    """Return a scalar condition in every element of a tile like `value`, which may be a scalar."""
    kind = value.type
    if not isinstance(kind, TileType):
        return condition
    return builder(tile.Splat(condition, kind.shape, kind.layout)).out


def _num_registers(mask: Value, depth: int) -> int:
    """Return the fewest elements of a thread that a condition can join."""
    op = mask.op if depth else None
    if isinstance(op, arith.And):
        return min(_num_registers(part, depth - 1) for part in op.operands)
    if isinstance(op, tile.Broadcast | tile.Splat):
        return _num_registers(op.value, depth - 1)
    return _held_registers(mask)


def _held_registers(mask: Value) -> int:
    kind = mask.type
    if not isinstance(kind, TileType) or kind.layout is None:
        return 1
    layout = kind.layout
    return layout.in_size("register") >> layout.zero_mask("register").bit_count()
