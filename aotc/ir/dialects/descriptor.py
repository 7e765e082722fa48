"""Tensor descriptors: tensors in global memory, loaded and stored a tile at a time.

This is tile IR: a tile is named by the coordinates of its first element, which may be anywhere,
also out of bounds. The schedule chooses how to move it: by TMA where the hardware has it, by masked
accesses elsewhere.

Invariant: nothing outside of the tensor is touched. Elements out of bounds read as the descriptor's
fill, and are not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

from aotc.ir.core import Op, Value, attribute, operand, operands, result
from aotc.ir.dialects.tile import tile_type
from aotc.ir.effects import Resource, Trait, reads, writes
from aotc.ir.types import I32, I64, DescriptorType, PointerType, ScalarType, TileType, Type

ReduceKind = Literal["add", "min", "max", "and", "or", "xor"]
BITWISE: tuple[ReduceKind, ...] = ("and", "or", "xor")

MIN_ROW_BYTES = 16
MAX_RANK = 5
TENSOR_ALIGNMENT_BYTES = 16
"""What addresses and strides of tensors are multiples of; the launcher checks it."""


def supports_reduce(kind: ReduceKind, element: ScalarType) -> bool:
    """Return whether Triton can reduce a tile of `element` into a tensor in this way.

    Source: PTX ISA, `cp.reduce.async.bulk`, the types of each operation.
    """
    if element.is_float:
        is_half = element.bits == 16
        return is_half if kind in ("min", "max") else kind == "add" and element.bits in (16, 32)
    is_signed_long = element.bits == 64 and element.is_signed
    return element.bits in (32, 64) and not (kind == "add" and is_signed_long)


class DescriptorAt(
    Op, opcode="tile.descriptor_at", effects=(reads(Resource.TENSOR_MAP, of="pointer"),)
):
    """Return the descriptor for the tensor map at `pointer`; it fills with zeros.

    The map was written before the launch, 128 bytes at a multiple of 64, for tiles of this element
    and shape.
    """

    pointer: Value = operand()
    element: ScalarType = attribute()
    shape: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(isinstance(self.pointer.type, PointerType), f"a map at {self.pointer.type}")
        return (DescriptorType(self.element, self.shape),)


class DescriptorOf(Op, opcode="tile.descriptor_of", pure=True, traits=(Trait.ALIAS,)):
    """Return the descriptor of the tensor at `pointer`.

    `sizes` are its extents, i32, then the strides of all axes but the last, i64 in elements: the
    last axis is dense. Reads outside of the tensor give zero, or NaN with `fill_nan`. The source
    promises addresses and strides that are multiples of 16 bytes. `num_parts` as in the type.
    """

    pointer: Value = operand()
    sizes: Sequence[Value] = operands()
    shape: tuple[int, ...] = attribute()
    fill_nan: bool = attribute(default=False)
    num_parts: int = attribute(default=1)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        pointer, rank = self.pointer.type, len(self.shape)
        if not isinstance(pointer, PointerType):
            self.error(f"a tensor at {pointer}")
        types = [size.type for size in self.sizes]
        expected = [I32] * rank + [I64] * (rank - 1)
        self.expect(types == expected, f"{rank} axes of sizes ({', '.join(map(str, types))})")
        return (DescriptorType(pointer.pointee, self.shape, self.fill_nan, self.num_parts),)

    @property
    def extents(self) -> list[Value]:
        """The number of elements along each axis."""
        return list(self.sizes[: len(self.shape)])

    @property
    def strides(self) -> list[Value]:
        """Strides of all axes but the last."""
        return list(self.sizes[len(self.shape) :])


class MapAddress(Op, opcode="tile.map_address", pure=True):
    """Return the address of the tensor map of a parameter."""

    descriptor: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        is_one = isinstance(self.descriptor.type, DescriptorType)
        self.expect(is_one, f"the map of {self.descriptor.type}")
        return (I64,)


class DescriptorIn(Op, opcode="tile.descriptor_in", pure=True, traits=(Trait.ALIAS,)):
    """Return the descriptor of the tensor at `pointer` with its tensor map at the address `map`.

    The map is a parameter. `sizes`, `shape` and `fill_nan` are as in `tile.descriptor_of`.
    """

    pointer: Value = operand()
    map: Value = operand()
    sizes: Sequence[Value] = operands()
    shape: tuple[int, ...] = attribute()
    fill_nan: bool = attribute(default=False)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        pointer, rank = self.pointer.type, len(self.shape)
        if not isinstance(pointer, PointerType):
            self.error(f"a tensor at {pointer}")
        types = [self.map.type, *(size.type for size in self.sizes)]
        expected = [I64] + [I32] * rank + [I64] * (rank - 1)
        self.expect(types == expected, f"{rank} axes of ({', '.join(map(str, types))})")
        return (DescriptorType(pointer.pointee, self.shape, self.fill_nan),)

    @property
    def extents(self) -> list[Value]:
        """The number of elements along each axis."""
        return list(self.sizes[: len(self.shape)])

    @property
    def strides(self) -> list[Value]:
        """Strides of all axes but the last."""
        return list(self.sizes[len(self.shape) :])


def check_descriptor(op: Op, descriptor: Value, coords: Sequence[Value]) -> DescriptorType:
    """Check the descriptor and the coordinates of an access; return the descriptor's type."""
    kind = descriptor.type
    if not isinstance(kind, DescriptorType):
        op.error(f"expected a descriptor, got {kind}")
    # Messages with types are formatted only on failure.
    if not 1 <= len(kind.block) <= MAX_RANK:
        op.error(f"{kind} has {len(kind.block)} axes")
    if kind.row_bytes < MIN_ROW_BYTES:
        op.error(f"rows of {kind} have {kind.row_bytes} bytes")
    types = [coord.type for coord in coords]
    if types != [I32] * len(kind.block):
        op.error(f"{kind} at ({', '.join(map(str, types))})")
    return kind


class DescriptorLoad(
    Op, opcode="tile.descriptor_load", effects=(reads(Resource.GLOBAL, of="descriptor"),)
):
    """Load the tile at `coords`; `cache` and `eviction` as for `tile.load`.

    The first `num_dropped` axes have extent 1 and are not axes of the result. The `num_merged` axes
    after them and the next one, which is not the last, are one axis of the result.
    """

    descriptor: Value = operand()
    coords: Sequence[Value] = operands()
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    num_dropped: int = attribute(default=0)
    num_merged: int = attribute(default=0)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = check_descriptor(self, self.descriptor, self.coords)
        dropped, shape = kind.block[: self.num_dropped], kind.block[self.num_dropped :]
        fits = 0 <= self.num_dropped < len(kind.block) and prod(dropped) == 1
        self.expect(fits, f"drops {self.num_dropped} axes of {kind}")
        self.expect(
            0 <= self.num_merged < max(1, len(shape) - 1),
            f"merges {self.num_merged} axes more of {kind}",
        )
        rows = self.num_merged + 1
        return (TileType(kind.element, (prod(shape[:rows]), *shape[rows:])),)


class DescriptorPrefetch(
    Op, opcode="tile.descriptor_prefetch", effects=(writes(Resource.CACHE, of="descriptor"),)
):
    """Begin to bring the tile at `coords` to the L2 cache: a hint without a result.

    It is no access: a load after it sees writes in between.
    """

    descriptor: Value = operand()
    coords: Sequence[Value] = operands()

    def infer(self) -> Sequence[Type]:
        check_descriptor(self, self.descriptor, self.coords)
        return ()


def _check_value(op: Op, descriptor: Value, value: Value, coords: Sequence[Value]) -> ScalarType:
    kind = check_descriptor(op, descriptor, coords)
    block = tile_type(op, value)
    fits = (block.shape, block.element) == (kind.block, kind.element)
    op.expect(fits, f"{block} is no tile of {kind}")
    return kind.element


class DescriptorStore(
    Op, opcode="tile.descriptor_store", effects=(writes(Resource.GLOBAL, of="descriptor"),)
):
    """Store `value` to the tile at `coords`."""

    descriptor: Value = operand()
    value: Value = operand()
    coords: Sequence[Value] = operands()

    def infer(self) -> Sequence[Type]:
        _check_value(self, self.descriptor, self.value, self.coords)
        return ()


class DescriptorReduce(
    Op,
    opcode="tile.descriptor_reduce",
    effects=(
        reads(Resource.GLOBAL, of="descriptor"),
        writes(Resource.GLOBAL, of="descriptor"),
    ),
):
    """Reduce `value` into the tile at `coords`, each element atomically.

    Programs may do so to the same tile at one time. No order to other accesses is implied.
    """

    descriptor: Value = operand()
    value: Value = operand()
    coords: Sequence[Value] = operands()
    kind: ReduceKind = attribute()

    def infer(self) -> Sequence[Type]:
        element = _check_value(self, self.descriptor, self.value, self.coords)
        is_kind = self.kind in get_args(ReduceKind)
        self.expect(is_kind and supports_reduce(self.kind, element), f"no {self.kind} of {element}")
        return ()


DescriptorWrite = DescriptorStore | DescriptorReduce
"""Writes through a descriptor: of a value, to the tile at coordinates."""

DescriptorAccess = DescriptorLoad | DescriptorWrite


def _check_rows(op: Op, descriptor: Value, rows: Value, column: Value) -> TileType:
    """Check an access to rows; return the tile type of these rows."""
    kind, index = descriptor.type, tile_type(op, rows)
    if not isinstance(kind, DescriptorType) or len(kind.block) != 2 or kind.block[0] != 1:
        op.error(f"expected a descriptor of one row, got {kind}")
    is_index = index.element == I32 and len(index.shape) == 1
    op.expect(is_index and column.type == I32, f"rows {index} at {column.type}")
    return TileType(kind.element, (*index.shape, kind.block[1]))


class DescriptorGather(
    Op, opcode="tile.descriptor_gather", effects=(reads(Resource.GLOBAL, of="descriptor"),)
):
    """Load rows of a tensor with two axes: of each in `rows` the elements from `column` on.

    The descriptor's tile is one row; it says how many elements. `rows` are i32, in any order, and may
    be out of bounds or come again.
    """

    descriptor: Value = operand()
    rows: Value = operand()
    column: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (_check_rows(self, self.descriptor, self.rows, self.column),)


class DescriptorScatter(
    Op, opcode="tile.descriptor_scatter", effects=(writes(Resource.GLOBAL, of="descriptor"),)
):
    """Store `value` to rows of a tensor with two axes, as `tile.descriptor_gather` loads them.

    If a row comes twice, either value may stay.
    """

    descriptor: Value = operand()
    value: Value = operand()
    rows: Value = operand()
    column: Value = operand()

    def infer(self) -> Sequence[Type]:
        expected = _check_rows(self, self.descriptor, self.rows, self.column)
        stored = tile_type(self, self.value)
        fits = (stored.shape, stored.element) == (expected.shape, expected.element)
        self.expect(fits, f"{stored} is not {expected}")
        return ()


DescriptorRows = DescriptorGather | DescriptorScatter
"""Accesses to rows whose indices are data."""


def _check_axis(op: Op, descriptor: Value, axis: int) -> None:
    kind = descriptor.type
    if not isinstance(kind, DescriptorType):
        op.error(f"expected a descriptor, got {kind}")
    op.expect(0 <= axis < len(kind.block), f"{kind} has no axis {axis}")


class DescriptorExtent(Op, opcode="tile.descriptor_extent", pure=True):
    """The number of elements of the tensor along an axis, as the launch gives it."""

    descriptor: Value = operand()
    axis: int = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        _check_axis(self, self.descriptor, self.axis)
        return (I32,)


class DescriptorStride(Op, opcode="tile.descriptor_stride", pure=True):
    """The number of elements from one index of an axis to the next."""

    descriptor: Value = operand()
    axis: int = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        _check_axis(self, self.descriptor, self.axis)
        return (I64,)


DescriptorQuery = DescriptorExtent | DescriptorStride
"""Questions about a tensor, which access none of it."""
