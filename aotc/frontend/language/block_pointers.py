"""Block pointers: a tile of a tensor at movable offsets, as one variable of the kernel.

`tl.make_block_ptr` bundles a pointer, extents, strides and offsets; `tl.advance` moves the offsets.
`tl.load` and `tl.store` expand the bundle to a tile of pointers, with a mask for the axes in
`boundary_check`. The expansion is ordinary address arithmetic, so pipelining and TMA apply to it.
Triton had block pointers up to 3.8.

Invariant: block pointers exist in the frontend alone; no op takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import (
    cast,
    constant,
    static_axis,
    static_int,
    static_shape,
    static_str,
    to_value,
)
from aotc.frontend.language.sizes import integer, integers, items
from aotc.frontend.values import BlockPointer, Operand, element, is_tuple, show
from aotc.ir.core import Value
from aotc.ir.dialects import arith
from aotc.ir.tile_address import tile_address
from aotc.ir.types import FP8E4B15, I1, I8, I16, I32, I64, U8, PointerType, TileType

_NAME = "make_block_ptr"
_PADDINGS = ("", "zero", "nan")
_NARROW = (I8, I16, I32)


def make_block_ptr(
    emit: Emitter,
    base: Operand,
    shape: Operand,
    strides: Operand,
    offsets: Operand,
    block_shape: Operand,
    order: Operand,
) -> Operand:
    """Return a block pointer to the tile at `offsets`; `order` has no effect."""
    pointer = to_value(emit, base, "the address of a tensor")
    if not isinstance(pointer.type, PointerType):
        raise mistake(f"tl.{_NAME} takes a scalar pointer, got {show(pointer)}")
    block = static_shape(block_shape, "block_shape")
    rank = len(block)
    for axis in items(order, "an order", rank, _NAME):
        static_int(axis, "each entry of the order")
    return BlockPointer(
        pointer,
        tuple(_extent(emit, item) for item in items(shape, "shape", rank, _NAME)),
        tuple(integers(emit, items(strides, "strides", rank, _NAME), "strides", I64, _NAME)),
        tuple(integers(emit, items(offsets, "offsets", rank, _NAME), "offsets", I32, _NAME)),
        block,
    )


def advance(emit: Emitter, base: Operand, offsets: Operand) -> Operand:
    """Return a block pointer advanced by `offsets` elements along each axis."""
    if not isinstance(base, BlockPointer):
        raise mistake(
            f"tl.advance takes a block pointer, got {show(base)}",
            remedy="add to a tile of pointers: `x_ptrs += step`",
        )
    entries = items(offsets, "offsets", len(base.block), "advance")
    steps = integers(emit, entries, "offsets", I32, "advance")
    pairs = zip(base.offsets, steps, strict=True)
    new_offsets = tuple(emit(arith.Add(offset, step)).out for offset, step in pairs)
    return replace(base, offsets=new_offsets)


def access(
    emit: Emitter, block: BlockPointer, boundary_check: Operand, name: str
) -> tuple[Value, Value | None]:
    """Return a tile of pointers and its in-bounds mask along the checked axes."""
    checked = {
        static_axis(axis, len(block.block), "each axis of boundary_check")
        for axis in _axes(boundary_check, name)
    }
    ends = [end if axis in checked else None for axis, end in enumerate(block.shape)]
    return tile_address(emit, block.base, block.block, block.offsets, block.strides, ends)


def padding(emit: Emitter, pointer: Value, mask: Value | None, option: Operand) -> Value | None:
    """Return the padding read where the mask is false."""
    kind = element(pointer)
    assert isinstance(kind, PointerType)
    fill = static_str(option, "padding_option", _PADDINGS)
    if fill == "nan" and not kind.pointee.is_float:
        raise mistake(f'padding_option="nan" is for floats, got a tensor of {kind.pointee}')
    if mask is None:
        return None
    assert isinstance(pointer.type, TileType)
    number = nan if fill == "nan" else 0
    return constant(emit, number, kind.pointee, pointer.type.shape)


def as_bytes(emit: Emitter, pointer: Value) -> Value:
    """Cast pointers to truth values or fp8e4b15 to pointers to their bytes."""
    kind = element(pointer)
    storage = {I1: I8, FP8E4B15: U8}.get(kind.pointee) if isinstance(kind, PointerType) else None
    return pointer if storage is None else emit(arith.Bitcast(pointer, PointerType(storage))).out


def _axes(operand: Operand, name: str) -> Sequence[Operand]:
    if is_tuple(operand):
        return operand
    if isinstance(operand, int):
        return (operand,)
    raise mistake(f"boundary_check of tl.{name} must be a tuple of axes, got {show(operand)}")


def _extent(emit: Emitter, item: Operand) -> Value:
    value = integer(emit, item, "shape", _NAME)
    return cast(emit, value, I32 if element(value) in _NARROW else I64)


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    _NAME: make_block_ptr,
    "advance": advance,
}
"""Functions of `tl` returning a block pointer."""
