"""The pointers to a tile of a tensor, and the mask of the elements that are in bounds.

The frontend asks for it, for block pointers, and the schedule, for descriptors of which there is no
tensor map: one way to address tiles through pointers.
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
    place: Place,
    base: Value,
    block: tuple[int, ...],
    starts: Sequence[Value],
    strides: Sequence[Value | None],
    ends: Sequence[Value | None],
) -> tuple[Value, Value | None]:
    """Return the pointers to a tile's elements, and the mask of those in bounds.

    The tile begins at the indices `starts`, i32; along an axis they may be all of its indices, a
    tile of one axis. `strides` are i64, in elements, None for 1.
    `ends` are the tensor's extents, i32 or i64, None along axes that are not checked; where all are,
    so is the mask.
    """
    offset: Value | None = None
    inside: Value | None = None
    for axis, (start, extent) in enumerate(zip(starts, block, strict=True)):
        index = start
        if not isinstance(start.type, TileType):
            first = place(tile.Splat(start, (extent,))).out
            index = place(arith.Add(first, place(tile.Arange(0, extent)).out)).out
        end, stride = ends[axis], strides[axis]
        if end is not None:
            fits = _spread(place, _fits(place, index, end), axis, block)
            inside = fits if inside is None else place(arith.And(inside, fits)).out
        steps = place(arith.Cast(index, I64)).out
        if stride is not None:
            steps = place(arith.Mul(steps, place(tile.Splat(stride, (extent,))).out)).out
        steps = _spread(place, steps, axis, block)
        offset = steps if offset is None else place(arith.Add(offset, steps)).out
    assert offset is not None
    return place(arith.AddPtr(place(tile.Splat(base, block)).out, offset)).out, inside


def _fits(place: Place, index: Value, end: Value) -> Value:
    """Return which indices are from 0 up to but without `end`."""
    assert isinstance(index.type, TileType)
    zero = place(arith.Constant(0, index.type)).out
    low = place(arith.Compare(index, zero, "ge")).out
    # Most extents are i32, and so is the index.
    position = index if element_of(end.type) == I32 else place(arith.Cast(index, I64)).out
    limit = place(tile.Splat(end, index.type.shape)).out
    return place(arith.And(low, place(arith.Compare(position, limit, "lt")).out)).out


def _spread(place: Place, value: Value, axis: int, block: tuple[int, ...]) -> Value:
    """Return a tile of one axis broadcast along the other axes."""
    for other in range(len(block)):
        if other != axis:
            value = place(tile.ExpandDims(value, other)).out
    return value if len(block) == 1 else place(tile.Broadcast(value, block)).out
