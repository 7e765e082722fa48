"""Descriptors made in a kernel from a pointer, extents, strides and a tile's shape.

If all of these are launch arguments, or computed from them alone, the launcher can encode the tensor
map; else tiles are accessed through pointers. The schedule decides.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import static_shape, static_str, to_value
from aotc.frontend.language.descriptors import check_block_shape
from aotc.frontend.language.sizes import integers, items
from aotc.frontend.values import Operand, show
from aotc.ir.core import Value
from aotc.ir.dialects import descriptor
from aotc.ir.types import I32, I64, DescriptorType, PointerType

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
        raise mistake(f"tl.{_NAME} takes a scalar pointer, got {show(pointer)}")
    kind = DescriptorType(
        pointer.type.pointee,
        static_shape(block_shape, "block_shape"),
        static_str(padding_option, "padding_option", _PADDINGS) == "nan",
    )
    check_block_shape(f"the block_shape of tl.{_NAME}", kind)
    if kind.fill_nan and not kind.element.is_float:
        raise mistake(f'padding_option="nan" is for floats, got a tensor of {kind.element}')
    rank = len(kind.block)
    extents = integers(emit, items(shape, "shape", rank, _NAME), "shape", I32, _NAME)
    *steps, last = items(strides, "strides", rank, _NAME)
    if last != 1:
        raise mistake(
            f"the last axis of a tensor must be dense: its stride a constant 1, got {show(last)}",
            remedy="an argument that always is 1 has the type 'i32=1' in the signature",
        )
    outer = integers(emit, steps, "strides", I64, _NAME)
    desc = descriptor.DescriptorOf(pointer, [*extents, *outer], kind.block, kind.fill_nan)
    return emit(desc).out


FUNCTIONS: dict[str, Callable[..., Operand]] = {_NAME: make}
"""Functions of `tl` returning a descriptor."""
