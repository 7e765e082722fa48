"""Pointers to the elements of a tensor's tile, and the mask of the elements in bounds.

The frontend uses it for block pointers, and the schedule for descriptors without a tensor map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aotc.ir.core import OpT, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.types import I32, I64, TileType, element_of


class Place(Protocol):
    """Insert an op and return it."""

    def __call__(self, op: OpT) -> OpT: ...


def tile_address(
    build: Place,
    base: Value,
    block: tuple[int, ...],
    starts: Sequence[Value],
    strides: Sequence[Value | None],
    ends: Sequence[Value | None],
) -> tuple[Value, Value | None]:
    """Return the pointers to a tile's elements, and the mask of the elements in bounds.

    The tile begins at the indices `starts`, i32. One of them may be a tile of one axis with all
    indices along its axis. `strides` are i64, in elements, None for 1. `ends` are the tensor's
    extents, i32 or i64, None along unchecked axes. If all are None, so is the mask.
    """
    offset: Value | None = None
    inside: Value | None = None
    for axis, (start, extent) in enumerate(zip(starts, block, strict=True)):
        index = start
        if not isinstance(start.type, TileType):
            first = build(tile.Splat(start, (extent,))).out
            index = build(arith.Add(first, build(tile.Arange(0, extent)).out)).out
        end, stride = ends[axis], strides[axis]
        if end is not None:
            fits = _spread(build, _in_bounds(build, index, end), axis, block)
            inside = fits if inside is None else build(arith.And(inside, fits)).out
        steps = build(arith.Cast(index, I64)).out
        if stride is not None:
            steps = build(arith.Mul(steps, build(tile.Splat(stride, (extent,))).out)).out
        steps = _spread(build, steps, axis, block)
        offset = steps if offset is None else build(arith.Add(offset, steps)).out
    assert offset is not None
    return build(arith.AddPtr(build(tile.Splat(base, block)).out, offset)).out, inside


def _in_bounds(build: Place, index: Value, end: Value) -> Value:
    """Return a mask of the indices in [0, `end`)."""
    assert isinstance(index.type, TileType)
    zero = build(arith.Constant(0, index.type)).out
    low = build(arith.Compare(index, zero, "ge")).out
    # Most extents are i32, and so is the index.
    position = index if element_of(end.type) == I32 else build(arith.Cast(index, I64)).out
    limit = build(tile.Splat(end, index.type.shape)).out
    return build(arith.And(low, build(arith.Compare(position, limit, "lt")).out)).out


def _spread(build: Place, value: Value, axis: int, block: tuple[int, ...]) -> Value:
    """Return a tile of one axis broadcast along the other axes."""
    for other in range(len(block)):
        if other != axis:
            value = build(tile.ExpandDims(value, other)).out
    return value if len(block) == 1 else build(tile.Broadcast(value, block)).out
