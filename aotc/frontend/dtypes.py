"""What a kernel may ask of a dtype: `x.dtype.element_ty`, `T.is_fp16()`, `T.primitive_bitwidth`.

Dtypes in a kernel are the types of `aotc.ir.types` themselves, so their attributes are a table
here and not methods there: they belong to the language, not to the IR.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import mistake
from aotc.frontend.promotion import is_fp8
from aotc.frontend.values import DType, Operand, StaticCall, show_type, text_of
from aotc.ir.diagnostics import did_you_mean
from aotc.ir.types import FP8E4B15, PointerType, ScalarType, TileType


def dtype_attribute(dtype: DType, name: str) -> Operand:
    """Return an attribute of a dtype, as a kernel asks for it. Raises: CompileError."""
    scalar = dtype.element if isinstance(dtype, TileType) else dtype
    table = _TYPE_ATTRIBUTES if isinstance(dtype, TileType) else {}
    pointer = _POINTER_ATTRIBUTES if isinstance(scalar, PointerType) else {}
    known = {**_DTYPE_ATTRIBUTES, **pointer, **table}
    if name in known:
        return known[name](dtype)
    if name.startswith("is_"):
        answer = _dtype_question(dtype, name.removeprefix("is_"))
        if answer is not None:
            return StaticCall(name, lambda: answer)
    raise mistake(
        f"the type {show_type(dtype)} has no attribute {name!r}",
        remedy=did_you_mean(name, [*known, *(f"is_{one}" for one in _QUESTIONS)]),
    )


def _dtype_question(dtype: DType, name: str) -> bool | None:
    if name == "block":
        return isinstance(dtype, TileType)
    scalar = dtype.element if isinstance(dtype, TileType) else dtype
    if isinstance(scalar, PointerType):
        return name == "ptr" if name in _QUESTIONS or name == "const" else None
    if isinstance(dtype, TileType):
        # A tile's type is no scalar type, so Triton answers no to most; asking the element is
        # what every such question means.
        return _dtype_question(scalar, name)
    question = _QUESTIONS.get(name)
    return None if question is None else question(scalar)


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


_DTYPE_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "scalar": _scalar,
    "dtype": _scalar,
    "primitive_bitwidth": lambda dtype: _scalar(dtype).bits,
    "int_bitwidth": lambda dtype: _scalar(dtype).bits,
    "itemsize": lambda dtype: _scalar(dtype).bits // 8,
    "fp_mantissa_width": lambda dtype: _mantissa_bits(_scalar(dtype)),
    "name": text_of,
    "value": lambda dtype: dtype,
    "type": lambda dtype: dtype,
}

_POINTER_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {"element_ty": _pointee}

_TYPE_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "element_ty": _scalar,
    "shape": lambda dtype: dtype.shape if isinstance(dtype, TileType) else (),
    "numel": lambda dtype: dtype.num_elems if isinstance(dtype, TileType) else 1,
}

ATTRIBUTES = frozenset(
    (
        *(*_DTYPE_ATTRIBUTES, *_POINTER_ATTRIBUTES, *_TYPE_ATTRIBUTES),
        *(f"is_{one}" for one in _QUESTIONS),
    )
)
"""The attributes that some dtype has."""
