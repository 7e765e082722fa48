"""Attributes of dtypes: `x.dtype.element_ty`, `T.is_fp16()`, `T.primitive_bitwidth`.

Dtypes in a kernel are the types of `aotc.ir.types`. Their attributes are a table here, because they
belong to the language and not to the IR.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aotc.frontend.emitter import mistake
from aotc.frontend.language.promotion import is_fp8
from aotc.frontend.values import DType, Operand, StaticCall, show_type, text_of
from aotc.ir.diagnostics import did_you_mean
from aotc.ir.types import FP8E4B15, PointerType, ScalarType, TileType


def attributes_of(dtype: DType) -> tuple[str, ...]:
    """Return the names of a dtype's attributes in Triton."""
    if isinstance(dtype, TileType):
        names = ("scalar", "name", *_TYPE_ATTRIBUTES)
    elif isinstance(dtype, PointerType):
        names = ("scalar", "name", *_POINTER_ATTRIBUTES)
    else:
        extras = ("int_bitwidth",) if dtype.is_int else ("fp_mantissa_width", "exponent_bias")
        names = ("scalar", "name", "primitive_bitwidth", "itemsize", *extras)
    return (*names, *_METHODS, *(f"is_{question}" for question in _QUESTIONS))


def dtype_attribute(dtype: DType, name: str) -> Operand:
    """Return an attribute of a dtype in a kernel. Raises: CompileError."""
    scalar = dtype.element if isinstance(dtype, TileType) else dtype
    table = _TYPE_ATTRIBUTES if isinstance(dtype, TileType) else {}
    pointer = _POINTER_ATTRIBUTES if isinstance(scalar, PointerType) else {}
    attributes = {**_DTYPE_ATTRIBUTES, **pointer, **table}
    if name in attributes:
        return attributes[name](dtype)
    if name in _METHODS:
        return StaticCall(name, partial(_METHODS[name], dtype))
    if name.startswith("is_"):
        answer = _dtype_question(dtype, name.removeprefix("is_"))
        if answer is not None:
            return StaticCall(name, lambda: answer)
    raise mistake(
        f"the type {show_type(dtype)} has no attribute {name!r}",
        remedy=did_you_mean(
            name, [*attributes, *_METHODS, *(f"is_{question}" for question in _QUESTIONS)]
        ),
    )


def _dtype_question(dtype: DType, name: str) -> bool | None:
    question = _QUESTIONS.get(name)
    if question is None:
        return None
    if isinstance(dtype, ScalarType):
        return question(dtype)
    if name == "fp8":  # Triton looks for it in the name of the type
        scalar = _scalar(dtype)
        return is_fp8(scalar.pointee if isinstance(scalar, PointerType) else scalar)
    # A tile or pointer type is never a scalar type.
    return name == ("block" if isinstance(dtype, TileType) else "ptr")


def _never(dtype: ScalarType) -> bool:
    del dtype
    return False


_QUESTIONS: dict[str, Callable[[ScalarType], bool]] = {
    "ptr": _never,
    "const": _never,
    "block": _never,
    "floating": lambda dtype: dtype.is_float or dtype == FP8E4B15,
    "standard_floating": lambda dtype: dtype.is_float and dtype.bits > 8,
    "int": lambda dtype: dtype.is_int,
    "int_signed": lambda dtype: dtype.is_signed,
    "int_unsigned": lambda dtype: dtype.is_int and not dtype.is_signed,
    "bool": lambda dtype: dtype.is_bool,
    "fp8": is_fp8,
    **{
        name: (lambda dtype, name=name: dtype.name == name)
        for name in ("fp8e4nv", "fp8e4b15", "fp8e5", "fp16", "bf16", "fp32", "fp64")
    },
    **{
        f"{word}{bits}": (lambda dtype, name=f"{letter}{bits}": dtype.name == name)
        for word, letter in (("int", "i"), ("uint", "u"))
        for bits in (8, 16, 32, 64)
    },
    "int1": lambda dtype: dtype.is_bool,
    "fp8e4b8": _never,
    "fp8e5b16": _never,
}


def _scalar(dtype: DType) -> ScalarType | PointerType:
    return dtype.element if isinstance(dtype, TileType) else dtype


def _pointee(dtype: DType) -> Operand:
    scalar = _scalar(dtype)
    return scalar.pointee if isinstance(scalar, PointerType) else scalar


def _mantissa_bits(dtype: ScalarType | PointerType) -> int:
    if dtype == FP8E4B15:
        return 3
    return 0 if isinstance(dtype, PointerType) else dtype.mantissa_bits


def _exponent_bias(dtype: DType) -> int:
    """Return the bias of a float's exponent."""
    scalar = _scalar(dtype)
    if scalar == FP8E4B15:
        return 15
    if not isinstance(scalar, ScalarType) or not scalar.is_float:
        raise mistake(f"the type {show_type(dtype)} has no attribute 'exponent_bias'")
    return (1 << (scalar.bits - scalar.mantissa_bits - 2)) - 1


_DTYPE_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "scalar": _scalar,
    "dtype": _scalar,
    "primitive_bitwidth": lambda dtype: _scalar(dtype).bits,
    "int_bitwidth": lambda dtype: _scalar(dtype).bits,
    "itemsize": lambda dtype: _scalar(dtype).bits // 8,
    "exponent_bias": _exponent_bias,
    "fp_mantissa_width": lambda dtype: _mantissa_bits(_scalar(dtype)),
    "name": text_of,
    "value": lambda dtype: dtype,
}


def _largest(dtype: DType) -> int:
    bits = _integer(dtype)
    return (1 << (bits.bits - bits.is_signed)) - 1


def _smallest(dtype: DType) -> int:
    bits = _integer(dtype)
    return -(1 << (bits.bits - 1)) if bits.is_signed else 0


def _integer(dtype: DType) -> ScalarType:
    if not isinstance(dtype, ScalarType) or not dtype.is_int:
        raise mistake(f"the type {show_type(dtype)} is no integer type")
    return dtype


def _with_element_ty(dtype: DType, element_ty: Operand) -> Operand:
    if not isinstance(element_ty, ScalarType | PointerType):
        raise mistake(f"with_element_ty takes a dtype, got {text_of(element_ty)}")
    return TileType(element_ty, dtype.shape) if isinstance(dtype, TileType) else element_ty


_METHODS: dict[str, Callable[..., Operand]] = {
    "codegen_name": show_type,
    "get_int_max_value": _largest,
    "get_int_min_value": _smallest,
    "with_element_ty": _with_element_ty,
}
"""Methods of dtypes other than `is_NAME`."""

_POINTER_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "element_ty": _pointee,
    "address_space": lambda dtype: "global",  # noqa: ARG005
    "const": lambda dtype: False,  # noqa: ARG005
}

_TYPE_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "element_ty": _scalar,
    "shape": lambda dtype: dtype.shape if isinstance(dtype, TileType) else (),
    "numel": lambda dtype: dtype.num_elems if isinstance(dtype, TileType) else 1,
    "nbytes": lambda dtype: (
        _scalar(dtype).bits // 8 * (dtype.num_elems if isinstance(dtype, TileType) else 1)
    ),
    "get_block_shapes": lambda dtype: StaticCall(
        "get_block_shapes", lambda: dtype.shape if isinstance(dtype, TileType) else ()
    ),
}

ATTRIBUTES = frozenset(
    (
        *(*_DTYPE_ATTRIBUTES, *_POINTER_ATTRIBUTES, *_TYPE_ATTRIBUTES, *_METHODS),
        *(f"is_{name}" for name in _QUESTIONS),
    )
)
"""The attributes of all dtypes."""
