"""Gather and histogram: elements picked by an index, values counted.

In tile IR they are one op each. In gpu IR the source of a gather and the bins of a histogram are a
buffer in shared memory, and the ops here compute an address from each element.

Invariant: no value of an index leads outside of a tile or a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.core import Op, Value, attribute, operand, result
from aotc.ir.dialects.gpu import shared_type
from aotc.ir.dialects.tile import tile_type
from aotc.ir.effects import Resource, reads, writes
from aotc.ir.types import I1, I32, U32, ElementType, TileType, Type


class Gather(Op, opcode="tile.gather", pure=True):
    """The elements of `source` at `index` along `axis`, modulo its extent.

    Along the other axes, which have the same extents, elements stay in place.
    """

    source: Value = operand()
    index: Value = operand()
    axis: int = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.source)
        return (_gathered_type(self, source.shape, self.index, self.axis, source.element),)


class Histogram(Op, opcode="tile.histogram", pure=True):
    """Counts of 0, 1, …, `num_bins` - 1 among the values under the mask, as an i32 tile.

    Other values are not counted.
    """

    value: Value = operand()
    num_bins: int = attribute()
    mask: Value | None = operand(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        _check_counted(self, self.value, self.mask)
        bins = self.num_bins
        self.expect(bins > 0 and bins & (bins - 1) == 0, f"{bins} bins are no power of 2")
        return (TileType(I32, (bins,)),)


class SharedGather(Op, opcode="gpu.shared_gather", effects=(reads(Resource.SHARED, of="buffer"),)):
    """`tile.gather` from a shared buffer, an element an access; no barrier is implied.

    Offsets in the buffer grow with the index in equal steps.
    """

    buffer: Value = operand()
    index: Value = operand()
    axis: int = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        buffer = shared_type(self, self.buffer)
        return (_gathered_type(self, buffer.shape, self.index, self.axis, buffer.element),)


class SharedCount(
    Op,
    opcode="gpu.shared_count",
    effects=(
        reads(Resource.SHARED, of="buffer"),
        writes(Resource.SHARED, of="buffer"),
    ),
):
    """Add 1 to the element of an i32 buffer at each value under the mask, atomically.

    Values outside of the buffer are skipped. An element held by several threads is counted once, by
    the first. No barrier is implied; counting needs no order to other counting.
    """

    buffer: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)

    def infer(self) -> Sequence[Type]:
        buffer = shared_type(self, self.buffer)
        fits = buffer.element == I32 and len(buffer.shape) == 1
        self.expect(fits, f"counts in {buffer}")
        _check_counted(self, self.value, self.mask)
        return ()


def _gathered_type(
    op: Op, shape: tuple[int, ...], index: Value, axis: int, element: ElementType
) -> TileType:
    """Return the type of the elements picked from a tile of `shape` along `axis`."""
    kind = tile_type(op, index)
    op.expect(kind.element == I32, f"the index is {kind.element}, not i32")
    op.expect(0 <= axis < len(shape), f"axis {axis} is out of range")
    other_extents = (*shape[:axis], *shape[axis + 1 :])
    fits = len(kind.shape) == len(shape) and other_extents == (
        *kind.shape[:axis],
        *kind.shape[axis + 1 :],
    )
    op.expect(fits, f"an index of {kind.shape} does not fit the other axes of {shape}")
    return replace(kind, element=element)


def _check_counted(op: Op, value: Value, mask: Value | None) -> None:
    kind = tile_type(op, value)
    op.expect(kind.element in (I32, U32), f"counts {kind.element}, not i32 or u32")
    if mask is not None:
        expected = replace(kind, element=I1)
        op.expect(mask.type == expected, f"the mask is {mask.type}, expected {expected}")
