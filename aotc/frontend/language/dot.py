"""`tl.dot`: operand checks and conversions for `tile.dot`.

Types are Triton's: both operands have one type, except that fp8 kinds may mix. fp8 and fp16 accumulate in
fp32 or fp16, bf16 and fp32 in fp32, fp64 in fp64, 8-bit integers in int32. fp32 operands are
multiplied in tf32 unless `input_precision` says otherwise. Shapes have no lower bound: dots smaller
than an MMA instruction are padded, or computed without it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import cast as type_cast
from typing import get_args

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import (
    cast,
    constant,
    static_bool,
    static_int,
    static_scalar_dtype,
    static_str,
)
from aotc.frontend.values import Operand, element, shape, show, show_type
from aotc.ir.core import Value
from aotc.ir.dialects import tile
from aotc.ir.types import FP8E4B15, FP8E4NV, FP8E5, FP16, FP32, ScalarType, TileType

_PRECISIONS = get_args(tile.InputPrecision)
_MAX_AXES = 3


def dot(
    emit: Emitter,
    input: Operand,  # noqa: A002
    other: Operand,
    acc: Operand = None,
    input_precision: Operand = None,
    allow_tf32: Operand = None,
    max_num_imprecise_acc: Operand = None,
    out_dtype: Operand = None,
    trans_a: Operand = None,
    trans_b: Operand = None,
) -> Value:
    """Return the dot of two tiles, added to `acc`; `trans_a` and `trans_b` are of older releases."""
    a, a_type = _tile(_transpose_if(emit, input, trans_a, "trans_a"), "first")
    b, b_type = _tile(_transpose_if(emit, other, trans_b, "trans_b"), "second")
    if FP8E4B15 in (a_type.element, b_type.element):  # no MMA takes it, and fp16 holds it
        (a, a_type), (b, b_type) = (_tile(cast(emit, operand, FP16), "") for operand in (a, b))
    batch, num_axes = a_type.shape[:-2], len(a_type.shape)
    if num_axes > _MAX_AXES and num_axes == len(b_type.shape) and batch == b_type.shape[:-2]:
        # One axis for all batches, as hardware has none of them.
        a, b = _merge_batches(emit, a), _merge_batches(emit, b)
        extents = (*batch, a_type.shape[-2], b_type.shape[-1])
        if isinstance(acc, Value):
            acc = _merge_batches(emit, _accumulator(acc, TileType(element(acc), extents)))
        how = (input_precision, allow_tf32, max_num_imprecise_acc, out_dtype)
        return emit(tile.Reshape(dot(emit, a, b, acc, *how), extents)).out
    extents = _dot_shape(a_type.shape, b_type.shape)
    target = _result_type(a_type, b_type, acc, out_dtype)
    if acc is None:
        total = constant(emit, 0, target, extents)
    else:
        total = _accumulator(acc, TileType(target, extents))
    how = _precision(input_precision, allow_tf32)
    imprecise = _imprecise_extent(max_num_imprecise_acc, a_type)
    return emit(tile.Dot(a, b, total, how, imprecise)).out


def _imprecise_extent(limit: Operand, a: TileType) -> int:
    """Return the extent of K that may be summed imprecisely; 0, the default, for all of it.

    An explicit 0 becomes 1: promote after every instruction. Types other than fp8 always sum precisely.
    """
    if limit is None:
        return 0
    most = static_int(limit, "max_num_imprecise_acc")
    if a.element not in (FP8E4NV, FP8E5):
        return 0
    if not 0 <= most <= a.shape[-1]:
        raise mistake(f"max_num_imprecise_acc must be from 0 to K = {a.shape[-1]}, got {most}")
    return max(most, 1)


def _transpose_if(emit: Emitter, operand: Operand, flag: Operand, name: str) -> Operand:
    """Swap the last two axes of an operand if `flag` is true."""
    if flag is None or not static_bool(flag, name):
        return operand
    value, kind = _tile(operand, "transposed")
    num_axes = len(kind.shape)
    order = (*range(num_axes - 2), num_axes - 1, num_axes - 2)
    return emit(tile.Trans(value, order)).out if num_axes > 1 else value


def _merge_batches(emit: Emitter, value: Value) -> Value:
    """Merge all axes before the last two into one batch axis."""
    extents = shape(value)
    return emit(tile.Reshape(value, (prod(extents[:-2]), *extents[-2:]))).out


def _tile(operand: Operand, side: str) -> tuple[Value, TileType]:
    if isinstance(operand, Value) and isinstance(operand.type, TileType):
        return operand, operand.type
    raise mistake(f"the {side} operand of tl.dot must be a tile, got {show(operand)}")


def _dot_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the dot of tiles of these shapes. Raises: CompileError."""
    if len(a) != len(b) or len(a) not in (2, 3):
        raise mistake(
            f"tl.dot takes two tiles of 2 axes, or two of as many more, got shapes {a} and {b}",
            remedy="add an axis with x[None, :, :], or reshape",
        )
    if a[-1] != b[-2]:
        raise mistake(
            f"tl.dot takes (M, K) and (K, N), got {a} and {b}: K is {a[-1]} and {b[-2]}",
            remedy="transpose the second operand with tl.trans(b)" if a[-1] == b[-1] else "",
        )
    if a[:-2] != b[:-2]:
        raise mistake(f"tl.dot takes batches of one size, got shapes {a} and {b}")
    return (*a[:-1], b[-1])


def _result_type(a: TileType, b: TileType, acc: Operand, out_dtype: Operand) -> ScalarType:
    """Return the accumulator type: `out_dtype`, else the type of `acc`, else the default."""
    allowed = tile.dot_results(a.element, b.element)
    if not allowed:
        raise mistake(
            f"tl.dot does not multiply {show_type(a.element)} by {show_type(b.element)}",
            remedy="cast one operand to the type of the other"
            if a.element != b.element
            else "it takes float8e4nv, float8e5, float16, bfloat16, float32, float64, int8, uint8",
        )
    if out_dtype is None:
        in_half = isinstance(acc, Value) and element(acc) == FP16 and FP16 in allowed
        return FP16 if in_half else allowed[0]
    sum_type = static_scalar_dtype(out_dtype, "out_dtype")
    if sum_type in allowed:
        return sum_type
    if sum_type in (FP16, FP32) or (sum_type.is_int and allowed[0].is_int):
        return allowed[0]  # as in Triton: float32 is the default, so it counts as no request
    raise mistake(
        f"tl.dot of {show_type(a.element)} does not sum in {show_type(sum_type)}",
        remedy=f"leave out_dtype out and cast the result with .to(tl.{show_type(sum_type)})",
    )


def _accumulator(operand: Operand, kind: TileType) -> Value:
    if isinstance(operand, Value) and operand.type == kind:
        return operand
    raise mistake(
        f"the accumulator of this tl.dot must be {show_type(kind)}, got {show(operand)}",
        remedy=f"make it with tl.zeros({kind.shape}, tl.{show_type(kind.element)})",
    )


def _precision(input_precision: Operand, allow_tf32: Operand) -> tile.InputPrecision:
    if allow_tf32 is not None:
        if input_precision is not None:
            raise mistake(
                "tl.dot takes input_precision or allow_tf32, not both",
                remedy="leave allow_tf32 out: it is the older way to say input_precision",
            )
        return "tf32" if static_bool(allow_tf32, "allow_tf32") else "ieee"
    if input_precision is None:
        return "tf32"
    chosen = input_precision.lower() if isinstance(input_precision, str) else input_precision
    return type_cast("tile.InputPrecision", static_str(chosen, "input_precision", _PRECISIONS))


FUNCTIONS: dict[str, Callable[..., Operand]] = {"dot": dot}
