"""Descriptors that a kernel makes itself: of a pointer, extents, strides and the shape of blocks.

Where these are arguments of the launch, or computed of nothing else, the launcher makes the tensor
map; else blocks are accessed through pointers. Which it is, the schedule decides.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.convert import cast, static_shape, static_str, to_scalar, to_value
from aotc.frontend.descriptors import check_block
from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.values import Operand, element, is_tuple, show
from aotc.ir.core import Value
from aotc.ir.dialects import descriptor
from aotc.ir.types import I32, I64, DescriptorType, PointerType, ScalarType

_NAME = "make_tensor_descriptor"
_PADDINGS = ("zero", "nan")


def make(
    emit: Emitter,
    base: Operand,
    shape: Operand,
    strides: Operand,
    block_shape: Operand,
    padding_option: Operand = "zero",
) -> Value:
    """Return the descriptor of the tensor at `base`."""
    pointer = to_value(emit, base, "the address of a tensor")
    if not isinstance(pointer.type, PointerType):
        raise mistake(f"{_NAME} takes a scalar pointer, got {show(pointer)}")
    kind = DescriptorType(
        pointer.type.pointee,
        static_shape(block_shape, "the block"),
        static_str(padding_option, "padding_option", _PADDINGS) == "nan",
    )
    check_block(f"the block of {_NAME}", kind)
    if kind.fill_nan and not kind.element.is_float:
        raise mistake(f'padding_option="nan" is for floats, got a tensor of {kind.element}')
    rank = len(kind.block)
    extents = _sizes(emit, shape, "shape", rank, I32)
    *steps, last = _items(strides, "strides", rank)
    if last != 1:
        raise mistake(
            f"the last axis of a tensor must be dense: its stride a constant 1, got {show(last)}",
            remedy="an argument that always is 1 has the type 'i32=1' in the signature",
        )
    outer = [_size(emit, step, "strides", I64) for step in steps]
    made = descriptor.DescriptorOf(pointer, [*extents, *outer], kind.block, kind.fill_nan)
    return emit(made).out


def _items(operand: Operand, what: str, rank: int) -> list[Operand]:
    if not is_tuple(operand) or len(operand) != rank:
        got = f"{len(operand)}" if is_tuple(operand) else show(operand)
        raise mistake(f"{_NAME} takes {what} of {rank} axes, as its block has, got {got}")
    return list(operand)


def _sizes(emit: Emitter, operand: Operand, what: str, rank: int, kind: ScalarType) -> list[Value]:
    return [_size(emit, item, what, kind) for item in _items(operand, what, rank)]


def _size(emit: Emitter, item: Operand, what: str, kind: ScalarType) -> Value:
    value = to_scalar(emit, to_value(emit, item, f"an entry of {what}"))
    given = element(value)
    if not isinstance(given, ScalarType) or not given.is_int:
        raise mistake(f"the {what} of {_NAME} must be integers, got {show(value)}")
    return cast(emit, value, kind)


FUNCTIONS: dict[str, Callable[..., Operand]] = {_NAME: make}
"""Functions of `tl` that return a descriptor."""
