"""Conversion of operands to run-time values of the type and shape an operation needs.

Constants become `arith.constant` of the other operand's shape, so no constant is ever splatted. Casts
follow Triton's table of conversions. One `arith.cast` is enough for each, because going through fp32
in between never rounds twice.

Invariant: functions here never change their operands, and return the operand itself if it already
has the type and shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast as type_cast

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import fp8e4b15
from aotc.frontend.language.promotion import PromotionError, is_fp8, literal_type, rank
from aotc.frontend.values import (
    DTYPE_NAMES,
    DType,
    External,
    Missing,
    Operand,
    Unbound,
    element,
    is_descriptor,
    is_tuple,
    shape,
    show,
    show_type,
)
from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.types import (
    FP8E4B15,
    FP16,
    FP32,
    FP64,
    I1,
    I64,
    U32,
    U64,
    VALUE_SCALARS,
    ElementType,
    PointerType,
    ScalarType,
    TileType,
    Type,
)

MAX_TILE_ELEMS = 1 << 20
_FLOAT_RANK = rank(FP32)
Number = int | float | bool
Shape = tuple[int, ...]


# ---- constants --------------------------------------------------------------------------------


def type_of_number(value: Number) -> ScalarType:
    """Return the type of a Python number as a run-time scalar. Raises: CompileError."""
    try:
        return literal_type(value)
    except PromotionError as error:
        raise mistake(f"the integer {value} is out of range: {error}") from error


def constant(emit: Emitter, value: Number, dtype: ScalarType, extents: Shape = ()) -> Value:
    """Emit `value` as a scalar of `dtype`, or in every element of a tile.

    Raises: CompileError if `dtype` cannot hold it.
    """
    if dtype == FP8E4B15:
        return fp8e4b15.constant_of(emit, float(_fitting(value, FP32)), extents)
    kind: Type = TileType(dtype, extents) if extents else dtype
    return emit(arith.Constant(_fitting(value, dtype), kind)).out


def _fitting(value: Number, dtype: ScalarType) -> Number:
    if dtype.is_float:
        try:
            return float(value)
        except OverflowError:
            raise mistake(f"the integer {value} is too large for {show_type(dtype)}") from None
    if dtype.is_bool:
        return bool(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise mistake(
                f"expected an integer for {show_type(dtype)}, got {value!r}",
                remedy="convert the constant with int(...), or use a float type",
            )
        value = int(value)
    low, high = integer_range(dtype)
    if not low <= value <= high:
        raise mistake(
            f"the constant {int(value)} is out of range for {show_type(dtype)}, "
            f"which holds {low} to {high}",
            remedy="cast the other operand to a wider type, or one of the right sign, first",
        )
    return int(value)


def converted(
    emit: Emitter, operand: Operand, dtype: ScalarType, extents: Shape, expected: str
) -> Value:
    """Cast an operand to `dtype`; a number within its range becomes a tile constant."""
    if isinstance(operand, int | float) and _fits(operand, dtype):
        return constant(emit, operand, dtype, extents)
    return cast(emit, to_value(emit, operand, expected), dtype)


def _fits(value: Number, dtype: ScalarType) -> bool:
    """Return whether `dtype` holds a number, up to rounding of floats."""
    if dtype.is_float:
        return dtype.bits > 8 and type_of_number(value) != FP64
    if isinstance(value, float):
        return False
    low, high = (0, 1) if dtype.is_bool else integer_range(dtype)
    return low <= value <= high


def integer_range(dtype: ScalarType) -> tuple[int, int]:
    """Return the least and greatest value of an integer type."""
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def to_value(emit: Emitter, operand: Operand, expected: str = "a value") -> Value:
    """Return `operand` as a run-time value, with a number's own type. Raises: CompileError."""
    if isinstance(operand, Value):
        if is_descriptor(operand):
            raise not_a_value(operand, expected)
        return operand
    if isinstance(operand, int | float):
        return constant(emit, operand, type_of_number(operand))
    raise not_a_value(operand, expected)


def missing(feature: Missing) -> CompileError:
    """Return the error for a part of the language missing in aotc."""
    return mistake(
        f"aotc does not have tl.{feature.name} yet",
        remedy="see docs/reference/language.md for what it has",
        feature=f"tl.{feature.name}",
    )


def not_a_value(operand: Operand, expected: str) -> CompileError:
    """Return the error for an operand other than a number, scalar or tile."""
    if isinstance(operand, Missing):
        return missing(operand)
    if isinstance(operand, Unbound):
        return mistake(f"expected {expected}, got a variable that {operand.reason}")
    remedy = ""
    if is_descriptor(operand):
        remedy = "load a tile of it, as in `desc.load([…])`"
    elif is_tuple(operand):
        remedy = "take an item of the tuple"
    elif isinstance(operand, External):
        remedy = "give the value as a `tl.constexpr` argument of the kernel"
    return mistake(f"expected {expected}, got {show(operand)}", remedy=remedy)


def expect_computable(kind: ElementType, subject: str) -> None:
    """Refuse a storage-only type. Raises: CompileError."""
    if kind == FP8E4B15:
        raise mistake(
            f"{subject} does not take float8e4b15, which is for storage",
            remedy="cast it with .to(tl.float16) first",
        )


# ---- compile-time arguments -------------------------------------------------------------------


def static_int(operand: Operand, subject: str) -> int:
    """Return an integer known at compile time. Raises: CompileError otherwise."""
    if isinstance(operand, int):
        return int(operand)
    if isinstance(operand, Value):
        raise mistake(
            f"{subject} must be known at compile time, got a run-time {show(operand)}",
            remedy="make it a `tl.constexpr` parameter; a plain `x = 2 * BLOCK` in a kernel is a "
            "run-time value, `x: tl.constexpr = 2 * BLOCK` is not",
        )
    raise mistake(f"{subject} must be an integer, got {show(operand)}")


def static_bool(operand: Operand, subject: str) -> bool:
    """Return a truth value known at compile time. Raises: CompileError otherwise."""
    if isinstance(operand, int | float | str | None):
        return bool(operand)
    raise mistake(f"{subject} must be known at compile time, got {show(operand)}")


def static_str(operand: Operand, subject: str, choices: Sequence[str] = ()) -> str:
    """Return a string known at compile time. Raises: CompileError otherwise."""
    if not isinstance(operand, str) or (choices and operand not in choices):
        expected = " or ".join(repr(choice) for choice in choices) or "a string"
        raise mistake(f"{subject} must be {expected}, got {show(operand)}")
    return operand


def static_axis(operand: Operand, num_axes: int, subject: str = "the axis") -> int:
    """Return an axis counted from the front. Raises: CompileError if it is out of range."""
    axis = static_int(operand, subject)
    if not -num_axes <= axis < num_axes:
        raise mistake(f"{subject} must be from {-num_axes} to {num_axes - 1}, got {axis}")
    return axis % num_axes


def static_shape(operand: Operand, subject: str = "the shape") -> Shape:
    """Return extents known at compile time, each a power of two. Raises: CompileError."""
    items = operand if is_tuple(operand) else (operand,)
    extents = tuple(static_int(item, f"each extent of {subject}") for item in items)
    for extent in extents:
        if extent < 1 or extent & (extent - 1):
            raise mistake(
                f"each extent of {subject} must be a power of two, got {extent} in {extents}",
                remedy="round up with triton.next_power_of_2 on the host and mask what is too much",
            )
    if prod(extents) > MAX_TILE_ELEMS:
        raise mistake(
            f"a tile holds at most {MAX_TILE_ELEMS} elements, {extents} has {prod(extents)}"
        )
    return extents


def static_dtype(operand: Operand, subject: str = "the type") -> DType:
    """Return a dtype. Raises: CompileError for anything else."""
    if isinstance(operand, ScalarType | PointerType):
        return operand
    if isinstance(operand, TileType):
        return operand.element
    if isinstance(operand, str):
        scalar = VALUE_SCALARS.get(DTYPE_NAMES.get(operand, operand))
        if scalar is not None:
            return scalar
    if isinstance(operand, Missing):
        raise missing(operand)
    raise mistake(f"{subject} must be a dtype such as tl.float32, got {show(operand)}")


def static_scalar_dtype(operand: Operand, subject: str = "the type") -> ScalarType:
    """Return a scalar dtype. Raises: CompileError for pointers and other operands."""
    dtype = static_dtype(operand, subject)
    if not isinstance(dtype, ScalarType):
        raise mistake(f"{subject} must be a scalar dtype, got {show_type(dtype)}")
    return dtype


# ---- casts ------------------------------------------------------------------------------------


def cast(emit: Emitter, value: Value, dtype: DType, rounding: str | None = None) -> Value:
    """Convert to another dtype. Raises: CompileError if there is no such conversion."""
    source, target = element(value), dtype.element if isinstance(dtype, TileType) else dtype
    if source == target:
        return value
    if isinstance(source, PointerType) or isinstance(target, PointerType):
        return _cast_pointer(emit, value, target)
    if is_fp8(source) != is_fp8(target) and not (rank(source) == rank(target) == _FLOAT_RANK):
        raise mistake(
            f"cannot cast {show_type(source)} to {show_type(target)}",
            remedy="cast to tl.float32 first, or pass bitcast=True to keep the bits",
        )
    narrows = rank(source) == rank(target) == _FLOAT_RANK and target.bits < source.bits
    if rounding is not None:
        rounding = static_str(rounding, "fp_downcast_rounding", ("rtne", "rtz"))
        if not narrows or target == FP8E4B15:
            raise mistake(
                "fp_downcast_rounding is for a float that becomes a narrower one"
                f"{', and float8e4b15 has a rounding of its own' if narrows else ''}, "
                f"got {show_type(source)} to {show_type(target)}"
            )
    if source == FP8E4B15:
        half = fp8e4b15.to_fp16(emit, value)
        return half if target == FP16 else emit(arith.Cast(half, target)).out
    if target == FP8E4B15:
        return fp8e4b15.from_float(emit, value)
    rounding_mode: arith.Rounding = "rtz" if rounding == "rtz" else "rtne"
    return emit(arith.Cast(value, target, rounding_mode)).out


def _cast_pointer(emit: Emitter, value: Value, target: ScalarType | PointerType) -> Value:
    source = element(value)
    if isinstance(target, ScalarType):
        if target.is_bool:
            bits = emit(arith.Bitcast(value, I64)).out
            return emit(arith.Cast(bits, I1)).out
        if not target.is_int or target.bits != 64:
            raise mistake(
                f"cannot cast {show_type(source)} to {show_type(target)}, only to a 64-bit integer"
            )
    elif isinstance(source, ScalarType):
        if not source.is_int:
            raise mistake(f"cannot cast {show_type(source)} to {show_type(target)}")
        if source.bits < 64:
            if source.bits == 32 and source.is_signed:
                value = emit(arith.Bitcast(value, U32)).out
            value = emit(arith.Cast(value, U64)).out
    return emit(arith.Bitcast(value, target)).out


def bitcast(emit: Emitter, value: Value, dtype: DType) -> Value:
    """Read the bits as another dtype of the same width. Raises: CompileError if it differs."""
    source, target = element(value), dtype.element if isinstance(dtype, TileType) else dtype
    if source == target:
        return value
    if isinstance(source, PointerType) or isinstance(target, PointerType):
        return _cast_pointer(emit, value, target)
    if source.bits != target.bits:
        raise mistake(
            f"cannot bitcast {show_type(source)} of {source.bits} bits "
            f"to {show_type(target)} of {target.bits} bits"
        )
    return emit(arith.Bitcast(value, target)).out


# ---- shapes -----------------------------------------------------------------------------------


def splat(emit: Emitter, value: Value, extents: Shape) -> Value:
    """Repeat a scalar over a tile of `extents`; () leaves it a scalar."""
    if not extents:
        return value
    producer = value.op
    if isinstance(producer, arith.Constant):
        dtype = type_cast("ScalarType", value.type)
        return emit(arith.Constant(producer.value, TileType(dtype, extents))).out
    return emit(tile.Splat(value, extents)).out


def broadcast_to(emit: Emitter, value: Value, extents: Shape) -> Value:
    """Repeat a scalar, or a tile along its axes of extent 1. Raises: CompileError if it cannot."""
    source = shape(value)
    if not isinstance(value.type, TileType):
        return splat(emit, value, extents)
    if source == extents:
        return value
    fits = len(source) == len(extents) and all(
        have in (1, want) for have, want in zip(source, extents, strict=True)
    )
    if not fits:
        raise mistake(f"cannot broadcast a tile of shape {source} to {extents}")
    return emit(tile.Broadcast(value, extents)).out


def common_shape(left: Shape, right: Shape) -> Shape:
    """Return the shape two tiles broadcast to. Raises: CompileError if there is none."""
    num_axes = max(len(left), len(right))
    padded_left = (1,) * (num_axes - len(left)) + left
    padded_right = (1,) * (num_axes - len(right)) + right
    extents: list[int] = []
    for axis, (left_extent, right_extent) in enumerate(zip(padded_left, padded_right, strict=True)):
        if left_extent != right_extent and 1 not in (left_extent, right_extent):
            raise mistake(
                f"shapes {left} and {right} do not broadcast: axis {axis} has {left_extent} and {right_extent}",
                remedy="add axes of extent 1 with [:, None] or [None, :]",
            )
        extents.append(max(left_extent, right_extent))
    return tuple(extents)


def spread(emit: Emitter, value: Value, extents: Shape) -> Value:
    """Broadcast a value to `extents`, adding leading axes."""
    if isinstance(value.type, TileType):
        for _ in range(len(extents) - len(value.type.shape)):
            value = emit(tile.ExpandDims(value, 0)).out
    return broadcast_to(emit, value, extents)


def broadcast(emit: Emitter, *values: Value) -> tuple[Value, ...]:
    """Bring values to their common shape. Raises: CompileError if there is none."""
    extents: Shape = ()
    for value in values:
        extents = common_shape(extents, shape(value))
    return tuple(spread(emit, value, extents) for value in values)


def to_scalar(emit: Emitter, value: Value) -> Value:
    """Return the only element of a tile as a scalar. Raises: CompileError if it has more."""
    if not isinstance(value.type, TileType):
        return value
    if value.type.num_elems != 1:
        raise mistake(f"expected a scalar or a tile of one element, got {show(value)}")
    if len(value.type.shape) > 1:
        value = emit(tile.Reshape(value, (1,))).out
    # A reduction of one element returns it; the combine block never runs.
    return emit(tile.Reduce([value], 0, _first_of(element(value)))).outs[0]


def _first_of(kind: ScalarType | PointerType) -> Block:
    block = Block([kind, kind], ["left", "right"])
    block.insert(scf.Yield([block.args[0]]))
    return block
