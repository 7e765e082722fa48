"""Block pointers: a block of a tensor, at offsets that move, as one variable of the kernel.

`tl.make_block_ptr` puts a pointer, extents, strides and offsets together; `tl.advance` moves the
offsets; `tl.load` and `tl.store` take the whole for a tile of pointers, with a mask for the axes that
`boundary_check` names. What comes of it is address arithmetic like any other, so everything that is
done for pointers (pipelines, tensor copies) is done for these. Triton had them up to 3.8.

Invariant: a block pointer is a value of the frontend alone; no op knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan

from aotc.frontend.convert import (
    cast,
    constant,
    static_axis,
    static_int,
    static_shape,
    static_str,
    to_scalar,
    to_value,
)
from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.values import BlockPointer, Operand, element, is_tuple, show
from aotc.ir.core import Value
from aotc.ir.dialects import arith, tile
from aotc.ir.types import I1, I8, I16, I32, I64, PointerType, ScalarType, TileType

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
    """Return the block of a tensor that begins at `offsets`; `order` says nothing that matters here."""
    pointer = to_value(emit, base, "the address of a tensor")
    if not isinstance(pointer.type, PointerType):
        raise mistake(f"tl.make_block_ptr takes a scalar pointer, got {show(pointer)}")
    block = static_shape(block_shape, "the block")
    rank = len(block)
    for axis in _items(order, "an order", rank):
        static_int(axis, "each entry of the order")
    return BlockPointer(
        pointer,
        tuple(_extent(emit, item) for item in _items(shape, "a shape", rank)),
        _numbers(emit, strides, "strides", rank, I64),
        _numbers(emit, offsets, "offsets", rank, I32),
        block,
    )


def advance(emit: Emitter, base: Operand, offsets: Operand) -> Operand:
    """Return a block further on: by so many elements along each axis."""
    if not isinstance(base, BlockPointer):
        raise mistake(
            f"tl.advance takes a block pointer, got {show(base)}",
            remedy="add to a tile of pointers: `x_ptrs += step`",
        )
    steps = _numbers(emit, offsets, "offsets", len(base.block), I32)
    pairs = zip(base.offsets, steps, strict=True)
    moved = tuple(emit(arith.Add(offset, step)).out for offset, step in pairs)
    return replace(base, offsets=moved)


def access(
    emit: Emitter, block: BlockPointer, boundary_check: Operand, name: str
) -> tuple[Value, Value | None]:
    """Return a tile of pointers to a block, and which of them lie inside where that is checked."""
    checked = {
        static_axis(axis, len(block.block), "each axis of boundary_check")
        for axis in _axes(boundary_check, name)
    }
    pointer = emit(tile.Splat(block.base, block.block)).out
    mask: Value | None = None
    for axis, extent in enumerate(block.block):
        first = emit(tile.Splat(block.offsets[axis], (extent,))).out
        index = emit(arith.Add(first, emit(tile.Arange(0, extent)).out)).out
        if axis in checked:
            zero = constant(emit, 0, I32, (extent,))
            end = emit(tile.Splat(block.shape[axis], (extent,))).out
            # Most extents are i32, and so is the index.
            beside = index if element(end) == I32 else emit(arith.Cast(index, I64)).out
            low = emit(arith.Compare(index, zero, "ge")).out
            fits = emit(arith.And(low, emit(arith.Compare(beside, end, "lt")).out)).out
            fits = _spread(emit, fits, axis, block.block)
            mask = fits if mask is None else emit(arith.And(mask, fits)).out
        stride = emit(tile.Splat(block.strides[axis], (extent,))).out
        steps = emit(arith.Mul(emit(arith.Cast(index, I64)).out, stride)).out
        pointer = emit(arith.AddPtr(pointer, _spread(emit, steps, axis, block.block))).out
    return pointer, mask


def padding(emit: Emitter, pointer: Value, mask: Value | None, option: Operand) -> Value | None:
    """Return what is read where the mask is false."""
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
    """Return pointers at truth values as pointers at the bytes that hold them."""
    if element(pointer) != PointerType(I1):
        return pointer
    return emit(arith.Bitcast(pointer, PointerType(I8))).out


def _axes(operand: Operand, name: str) -> Sequence[Operand]:
    if is_tuple(operand):
        return operand
    if isinstance(operand, int):
        return (operand,)
    raise mistake(f"boundary_check of tl.{name} must be a tuple of axes, got {show(operand)}")


def _items(operand: Operand, what: str, rank: int) -> Sequence[Operand]:
    if not is_tuple(operand) or len(operand) != rank:
        got = f"{len(operand)}" if is_tuple(operand) else show(operand)
        raise mistake(f"a block of {rank} axes takes {what} of as many, got {got}")
    return operand


def _numbers(
    emit: Emitter, operand: Operand, what: str, rank: int, kind: ScalarType
) -> tuple[Value, ...]:
    return tuple(_number(emit, item, what, kind) for item in _items(operand, what, rank))


def _extent(emit: Emitter, item: Operand) -> Value:
    value = _integer(emit, item, "a shape")
    return cast(emit, value, I32 if element(value) in _NARROW else I64)


def _number(emit: Emitter, item: Operand, what: str, kind: ScalarType) -> Value:
    return cast(emit, _integer(emit, item, what), kind)


def _integer(emit: Emitter, item: Operand, what: str) -> Value:
    value = to_scalar(emit, to_value(emit, item, f"an entry of {what}"))
    given = element(value)
    if not isinstance(given, ScalarType) or not given.is_int:
        raise mistake(f"{what} of a block must be integers, got {show(value)}")
    return value


def _spread(emit: Emitter, value: Value, axis: int, block: tuple[int, ...]) -> Value:
    """Return a tile of one axis repeated along the other axes of a block."""
    for other in range(len(block)):
        if other != axis:
            value = emit(tile.ExpandDims(value, other)).out
    return value if len(block) == 1 else emit(tile.Broadcast(value, block)).out


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "make_block_ptr": make_block_ptr,
    "advance": advance,
}
"""Functions of `tl` that return a block pointer."""
