"""`tl.dot_scaled`: dots of tiles in microscaling formats.

Elements of 4 to 16 bits share a scale in groups along K. No target of aotc multiplies these formats
directly. So elements are cast to bf16, or to fp16 if one operand is fp16, and multiplied by their scale
before the dot. The result is exact unless a scaled element overflows the wider type.

A scale is a power of two, by its exponent plus 127 as uint8, 255 standing for NaN; or a float8e4nv.

Large scales of one operand can overflow to infinity although small scales of the other would bring
products back into range. So where both scales are powers of two, part of the exponent moves from one to
the other. The shift is the same for all rows and columns of a group:

    a 2^127 * b 2^-117  ->  a 2^111 * b 2^-101

Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3 and 5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import math_functions, operators, reductions
from aotc.frontend.language.convert import (
    bitcast,
    broadcast_to,
    cast,
    constant,
    static_bool,
    static_str,
)
from aotc.frontend.language.dot import dot
from aotc.frontend.language.shapes import expand_dims, join, reshape, transpose
from aotc.frontend.values import Operand, element, shape, show, show_type
from aotc.ir.core import Value
from aotc.ir.dialects import arith
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    I32,
    U8,
    U16,
    U32,
    ScalarType,
)

_FORMATS: dict[str, ScalarType | None] = {
    "e2m1": None,  # two in a byte
    "e4m3": FP8E4NV,
    "e5m2": FP8E5,
    "bf16": BF16,
    "fp16": FP16,
}
_FP4_BITS = 4
_EXPONENT_SHIFT = 23
_LEAST_EXPONENT = 0x0040_0000  # 2**-127 in fp32, below its normal numbers
_NAN_EXPONENT, _NAN = 0xFF, 0x7FC0_0000

# The largest scale with all numbers of a format finite in bf16.
_LARGEST_SCALES = {"e2m1": 252, "e4m3": 246, "e5m2": 239}
_LARGEST_SCALE = 254
# Exponents move by the difference of scales >> _SHIFT_SHARE_LOG2, at most _MAX_SHIFT unless elements overflow.
_SHIFT_SHARE_LOG2, _MAX_SHIFT = 3, 16


@dataclass(frozen=True)
class _Operand:
    """An operand: elements, 4-bit ones packed along `packed_axis`, and scales.

    `extents` count elements; `axis` is the shared axis, K. `scale` is (M or N, K / group), or None.
    """

    value: Value
    format: str
    scale: Value | None
    extents: tuple[int, ...]
    axis: int
    packed_axis: int

    @property
    def other_axis(self) -> int:
        return -3 - self.axis


def dot_scaled(
    emit: Emitter,
    lhs: Operand,
    lhs_scale: Operand,
    lhs_format: Operand,
    rhs: Operand,
    rhs_scale: Operand,
    rhs_format: Operand,
    acc: Operand = None,
    fast_math: Operand = False,  # noqa: FBT002 - Triton's signature
    lhs_k_pack: Operand = True,  # noqa: FBT002 - Triton's signature
    rhs_k_pack: Operand = True,  # noqa: FBT002 - Triton's signature
    out_dtype: Operand = FP32,
) -> Value:
    """Return the dot of (M, K) and (K, N), each times its scales, added to `acc`."""
    static_bool(fast_math, "fast_math")  # NaN of a scale costs nothing here
    if out_dtype != FP32:
        raise mistake("tl.dot_scaled accumulates in float32", remedy="cast the result")
    left = _operand("lhs", lhs, lhs_scale, lhs_format, lhs_k_pack, axis=-1)
    right = _operand("rhs", rhs, rhs_scale, rhs_format, rhs_k_pack, axis=-2)
    kind = FP16 if "fp16" in (left.format, right.format) else BF16
    shift = _shift_between_scales(emit, left, right) if kind == BF16 else None
    raised = None if shift is None else operators.subtract(emit, 0, shift)
    a, b = _apply_scales(emit, left, kind, raised), _apply_scales(emit, right, kind, shift)
    return dot(emit, a, b, acc, out_dtype=FP32)


def _shift_between_scales(emit: Emitter, left: _Operand, right: _Operand) -> Value | None:
    """Return the exponents to move from the left operand's scales to the right's, by group.

    They lie along the last axis; the other extents are 1. None if a scale is no power of two.
    """
    if left.scale is None or right.scale is None:
        return None
    alike = shape(left.scale)[-1] == shape(right.scale)[-1]
    if not alike or element(left.scale) != U8 or element(right.scale) != U8:
        return None
    left_largest, right_largest = _largest(emit, left.scale), _largest(emit, right.scale)
    difference = operators.shift_right(
        emit, operators.subtract(emit, left_largest, right_largest), _SHIFT_SHARE_LOG2
    )
    shift = math_functions.minimum(
        emit, math_functions.maximum(emit, difference, -_MAX_SHIFT), _MAX_SHIFT
    )
    left_room, right_room = (
        _LARGEST_SCALES.get(operand.format, _LARGEST_SCALE) for operand in (left, right)
    )
    shift = math_functions.maximum(emit, shift, operators.subtract(emit, left_largest, left_room))
    return math_functions.minimum(emit, shift, operators.subtract(emit, right_room, right_largest))


def _largest(emit: Emitter, scale: Value) -> Value:
    """Return the largest scale of all rows, ignoring NaN, as int32."""
    codes = cast(emit, scale, I32)
    is_nan = operators.equal(emit, codes, _NAN_EXPONENT)
    numbers = operators.select(emit, is_nan, constant(emit, 0, I32), codes)
    largest = reductions.FUNCTIONS["max"](emit, numbers, len(shape(scale)) - 2, keep_dims=True)
    assert isinstance(largest, Value)
    return largest


def _operand(
    name: str, value: Operand, scale: Operand, format_: Operand, k_pack: Operand, *, axis: int
) -> _Operand:
    if not isinstance(value, Value) or len(shape(value)) not in (2, 3):
        raise mistake(f"{name} of tl.dot_scaled must be a tile of 2 or 3 axes, got {show(value)}")
    if isinstance(format_, ScalarType):  # a constant "bf16" in a manifest is a dtype
        format_ = next((name for name, kind in _FORMATS.items() if kind == format_), format_)
    chosen = static_str(format_, f"{name}_format", tuple(_FORMATS))
    kind = _FORMATS[chosen]
    allowed = (U8,) if kind is None else (kind, ScalarType(f"u{kind.bits}", kind.bits, "uint"))
    if element(value) not in allowed:
        expected = " or ".join(show_type(name) for name in allowed)
        raise mistake(f"{name} in {chosen} must be {expected}, got {show(value)}")
    along_k = static_bool(k_pack, f"{name}_k_pack")
    if kind is not None and not along_k:
        raise mistake(f"{name}_k_pack is for e2m1 alone, got {chosen}")
    packed_axis = axis if along_k else -3 - axis
    extents = list(shape(value))
    if kind is None:
        extents[packed_axis] *= 2
    factors = None if scale is None else _scale(name, scale, extents, axis)
    return _Operand(value, chosen, factors, tuple(extents), axis, packed_axis)


def _scale(name: str, scale: Operand, extents: Sequence[int], axis: int) -> Value:
    """Check the shape of an operand's scales. Raises: CompileError."""
    rows, depth = (*extents[:-2], extents[-3 - axis]), extents[axis]
    if isinstance(scale, Value) and element(scale) in (U8, FP8E4NV):
        scale_shape = shape(scale)
        if scale_shape[:-1] == rows and scale_shape[-1] <= depth:
            return scale
    shown = ", ".join(map(str, (*rows, f"{depth} / group")))
    raise mistake(
        f"{name}_scale must be uint8 or float8e4nv of shape ({shown}), got {show(scale)}",
        remedy="scales of both operands have their groups along the last axis",
    )


def _apply_scales(
    emit: Emitter, operand: _Operand, kind: ScalarType, raised: Value | None
) -> Value:
    """Return the elements times their scales, with `raised` added to the scales' exponents."""
    value = operand.value
    if operand.format == "e2m1":
        value = _unpack(emit, operand, kind)
    else:
        format_ = _FORMATS[operand.format]
        assert format_ is not None
        value = cast(emit, bitcast(emit, value, format_), kind)
    if operand.scale is None:
        return value
    if raised is None:
        factor = _factor(emit, operand.scale)
    else:
        factor = _raised_factor(emit, operand.scale, raised)
    factor = _per_element(emit, operand, factor)
    if kind == BF16:  # bf16 has the range of fp32
        return operators.multiply(emit, value, cast(emit, factor, BF16))
    return cast(emit, operators.multiply(emit, cast(emit, value, FP32), factor), kind)


def _unpack(emit: Emitter, operand: _Operand, kind: ScalarType) -> Value:
    """Unpack 4-bit elements, the first of each pair in the low bits, to `kind`."""
    value = operand.value
    low = operators.bit_and(emit, value, (1 << _FP4_BITS) - 1)
    high = operators.shift_right(emit, value, _FP4_BITS)
    elements = join(emit, low, high)
    last = len(shape(elements)) - 1
    order = [*range(last)]
    order.insert(last + operand.packed_axis + 1, last)
    codes = reshape(emit, transpose(emit, elements, tuple(order)), operand.extents)
    return _decode(emit, cast(emit, codes, U16), kind)


def _decode(emit: Emitter, codes: Value, kind: ScalarType) -> Value:
    """Convert e2m1 codes: move sign, exponent and mantissa into position, then correct the bias.

    Subnormal codes become subnormals of the wider type, so one multiplication corrects all.
    """
    mantissa_bits, bias = (7, 127) if kind == BF16 else (10, 15)
    magnitude = operators.shift_left(emit, operators.bit_and(emit, codes, 7), mantissa_bits - 1)
    sign = operators.shift_left(emit, operators.bit_and(emit, codes, 8), 12)
    bits = operators.bit_or(emit, magnitude, sign)
    unbiased = constant(emit, 2.0 ** (bias - 1), kind)
    return operators.multiply(emit, bitcast(emit, bits, kind), unbiased)


def _factor(emit: Emitter, scale: Value) -> Value:
    """Return scales as fp32."""
    if element(scale) == FP8E4NV:
        return cast(emit, scale, FP32)
    exponent = cast(emit, scale, U32)
    bits = operators.shift_left(emit, exponent, _EXPONENT_SHIFT)
    least = broadcast_to(emit, constant(emit, _LEAST_EXPONENT, U32), shape(bits))
    bits = emit(arith.Max(bits, least)).out
    is_nan = operators.equal(emit, exponent, _NAN_EXPONENT)
    return bitcast(emit, operators.select(emit, is_nan, constant(emit, _NAN, U32), bits), FP32)


def _raised_factor(emit: Emitter, scale: Value, raised: Value) -> Value:
    """Return scales times powers of two as fp32; bf16 underflow gives zero, overflow infinity."""
    codes = cast(emit, scale, I32)
    exponent = math_functions.minimum(emit, operators.add(emit, codes, raised), _NAN_EXPONENT)
    normal = operators.shift_left(emit, math_functions.maximum(emit, exponent, 0), _EXPONENT_SHIFT)
    below = math_functions.minimum(
        emit,
        math_functions.maximum(emit, operators.subtract(emit, 0, exponent), 0),
        _EXPONENT_SHIFT,
    )
    subnormal = operators.shift_right(
        emit, constant(emit, _LEAST_EXPONENT, I32, shape(codes)), below
    )
    is_normal = operators.less(emit, 0, exponent)
    bits = operators.select(emit, is_normal, normal, subnormal)
    is_nan = operators.equal(emit, codes, _NAN_EXPONENT)
    return bitcast(emit, operators.select(emit, is_nan, constant(emit, _NAN, I32), bits), FP32)


def _per_element(emit: Emitter, operand: _Operand, factor: Value) -> Value:
    """Broadcast the scales of groups to elements."""
    extents = shape(factor)
    rows, depth = operand.extents[operand.other_axis], operand.extents[operand.axis]
    group = depth // extents[-1]
    factors = broadcast_to(emit, expand_dims(emit, factor, len(extents)), (*extents, group))
    spread = reshape(emit, factors, (*extents[:-2], rows, depth))
    if operand.axis == -1:
        return spread
    last = len(extents) - 1
    return transpose(emit, spread, (*range(last - 1), last, last - 1))


FUNCTIONS: dict[str, Callable[..., Operand]] = {"dot_scaled": dot_scaled}
