"""Arithmetic of `arith` ops on NumPy arrays, to the bit where possible.

One function per op on whole arrays. Integers wrap. Every float op rounds once to its result's
type, so fp16 and bf16 are not carried in fp32 between ops. Functions with approximate
instructions (`exp2`, `sin`, …) are computed in fp64 and rounded. Where C, PTX and LLVM leave a
result undefined (integer division by zero, a shift by the width, a float too large for an
integer) the result is *poison*. Poison is a conspicuous value, not a tracked state: see
`Poison`.

Invariant: a result's dtype is `dtype_of` of the op's result type, for every op here.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from aotc.ir.types import FP32, FP64, I1, ElementType, PointerType, ScalarType
from aotc.verify.arrays import Array, clipped, copied, reshape, view

_NUMPY_NAMES = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "fp8e4b15": "uint8",
}
_ML_DTYPES_NAMES = {"bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}

_SMALLEST_NORMAL_FP32 = 2.0**-126
_FP8_NAN = 0x7F  # of either format

POINTER_DTYPE = np.dtype(np.int64)


@cache
def dtype_of(element: ElementType) -> np.dtype[Any]:
    """Return the NumPy dtype for `element`; a pointer is its 64-bit address.

    Raises: ModuleNotFoundError for bf16 and fp8 without the package ml_dtypes.
    """
    if isinstance(element, PointerType):
        return POINTER_DTYPE
    if element.name in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[element.name])
    # Optional: only kernels with these types need it.
    ml_dtypes = importlib.import_module("ml_dtypes")
    return np.dtype(getattr(ml_dtypes, _ML_DTYPES_NAMES[element.name]))


# ---- poison -----------------------------------------------------------------------------------


ALL_ZERO = -1
"""A seed for undefined values of zero."""


class Poison:
    """A source of undefined values.

    Seed 0 gives NaN for floats, true for booleans and the pattern 0xDEAD… for integers: easy to
    recognize. NaN can vanish (`max` drops it), so positive seeds give random bits, and
    `ALL_ZERO` gives the usual contents of registers. A kernel with the same result under
    several seeds does not depend on undefined values, nor does a kernel that used none
    (`was_asked`).
    """

    def __init__(self, seed: int) -> None:
        self._is_zero = seed == ALL_ZERO
        self._rng = np.random.default_rng(seed) if seed > 0 else None
        self.was_asked = False

    def fill(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return a poisoned array."""
        self.was_asked = True
        if self._is_zero:
            return np.zeros(shape, dtype)
        if self._rng is not None:
            size = math.prod(shape) * dtype.itemsize
            raw: Array = copied(np.frombuffer(self._rng.bytes(size), np.uint8))
            return reshape(view(raw & 1 if dtype == np.bool_ else raw, dtype), shape)
        if dtype.kind in "iu":
            pattern = (0xDEADBEEFDEADBEEF >> (64 - 8 * dtype.itemsize)).to_bytes(8, "little")
            return np.full(shape, np.frombuffer(pattern, dtype, count=1)[0])
        return np.full(shape, True if dtype == np.bool_ else np.nan, dtype)

    def where(self, undefined: Array, value: Array) -> Array:
        """Return `value` with poison where `undefined`."""
        if not undefined.any():
            return value
        return np.where(undefined, self.fill(value.dtype, value.shape), value)


# ---- rounding ---------------------------------------------------------------------------------


def _odd(rounded: Array, error: Array) -> Array:
    """Round the exact value `rounded + error` to odd, given `rounded` to nearest.

    A value rounded to odd with two more bits than the target rounds correctly in a second step.
    """
    bits = view(rounded, np.int64 if rounded.dtype == np.float64 else np.int32)
    off = (error != 0) & np.isfinite(rounded) & np.isfinite(error) & (bits & 1 == 0)
    away = ((error > 0) == (rounded > 0)) | (rounded == 0)
    return view(bits + np.where(off, np.where(away, 1, -1), 0).astype(bits.dtype), rounded.dtype)


def round_to(value: Array, target: ScalarType) -> Array:
    """Round floats up to fp64 once, to nearest even, to the float type `target`.

    fp8 saturates to its largest finite value, and its NaN has no sign, as in `cvt.satfinite`;
    wider types overflow to infinity.
    """
    dtype = dtype_of(target)
    if target.name in _NUMPY_NAMES:
        return value.astype(dtype)
    single = value.astype(np.float32)
    if value.dtype == np.float64:  # ml_dtypes goes through fp32, which would round twice
        single = reshape(_odd(np.atleast_1d(single), np.atleast_1d(value - single)), value.shape)
    if target.bits == 8:
        limit = _max_finite(target)
        single = clipped(single, -limit, limit).astype(np.float32)  # keeps NaN
        bits = view(single.astype(dtype), np.uint8)
        return view(np.where(np.isnan(single), np.uint8(_FP8_NAN), bits), dtype)
    return single.astype(dtype)


@cache
def _max_finite(target: ScalarType) -> float:
    return float(importlib.import_module("ml_dtypes").finfo(dtype_of(target)).max)


def _towards_zero(exact: Array, rounded: Array) -> Array:
    """Move `rounded` one step towards zero where its magnitude exceeds `exact`."""
    width = rounded.dtype.itemsize
    bits = view(rounded, f"i{width}")
    # In sign-magnitude form, a decrement moves towards zero for either sign.
    above = np.abs(rounded.astype(np.float64)) > np.abs(exact)
    return view(bits - above.astype(bits.dtype), rounded.dtype)


# ---- casts ------------------------------------------------------------------------------------


def cast(
    value: Array, source: ScalarType, target: ScalarType, rounding: str, poison: Poison
) -> Array:
    """Convert `value` with the meaning of `arith.cast`."""
    dtype = dtype_of(target)
    if target == I1:
        return value != 0
    if source == target:  # keeps infinities of fp8, which rounding would saturate
        return value
    if source.is_int and target.is_int:
        return value.astype(dtype)
    if source.is_int:
        if target in (FP32, FP64):
            return value.astype(dtype)
        # 53 bits suffice for fp16 and narrower types only if the lost bits count.
        wide = value.astype(np.float64)
        if value.dtype.itemsize == 8:
            low = value & value.dtype.type(0x7FF)
            high = (value - low).astype(np.float64)  # exact: 53 bits
            total = np.atleast_1d(high + low.astype(np.float64))
            error = (np.atleast_1d(high) - total) + np.atleast_1d(low).astype(np.float64)
            wide = reshape(_odd(total, error), value.shape)
        return round_to(wide, target)
    wide = value.astype(np.float64)
    if target.is_float:
        rounded = round_to(value if value.dtype == np.float32 else wide, target)
        if rounding == "rtz":
            rounded = _towards_zero(np.atleast_1d(wide), np.atleast_1d(rounded))
        return reshape(rounded, value.shape)
    whole = np.trunc(wide)
    # Both limits are powers of two, so exact in fp64; the upper one is the first out of range.
    lowest = -(2.0 ** (target.bits - 1)) if target.is_signed else 0.0
    fits = (whole >= lowest) & (whole < 2.0 ** (target.bits - target.is_signed))
    return poison.where(~fits, np.where(fits, whole, 0.0).astype(dtype))


def bitcast(value: Array, target: ElementType) -> Array:
    """Return the bits of `value` as `target`; any nonzero byte is a true boolean."""
    if target == I1:
        return view(value, np.uint8) != 0
    if value.dtype == np.bool_:
        value = value.astype(np.uint8)
    return view(value, dtype_of(target))


# ---- integers ---------------------------------------------------------------------------------


def _quotient(a: Array, b: Array) -> Array:
    quotient = a // b
    remainder = a - quotient * b
    return quotient + ((remainder != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def divide(a: Array, b: Array, poison: Poison) -> Array:
    """Return the integer quotient truncated towards zero; undefined where the divisor is 0."""
    if a.dtype == np.bool_:
        return poison.where(~b, a)
    return poison.where(b == 0, _quotient(a, np.where(b == 0, b.dtype.type(1), b)))


def remainder(a: Array, b: Array, poison: Poison) -> Array:
    """Return the integer remainder with the sign of the dividend; undefined where `b` is 0."""
    if a.dtype == np.bool_:
        return poison.where(~b, a & ~b)
    return poison.where(b == 0, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


def multiply_high(a: Array, b: Array, poison: Poison) -> Array:
    """Return the high half of the full product."""
    del poison
    bits = 8 * a.dtype.itemsize
    return np.asarray((a.astype(object) * b.astype(object)) >> bits).astype(a.dtype)


def _shift(function: Callable[..., Any], a: Array, b: Array, poison: Poison) -> Array:
    if a.dtype == np.bool_:
        return poison.where(b, a)  # an integer of one bit: only 0 is below the width
    width = 8 * a.dtype.itemsize
    undefined = (b < 0) | (b >= width)
    return poison.where(undefined, function(a, np.where(undefined, b.dtype.type(0), b)))


def shift_left(a: Array, b: Array, poison: Poison) -> Array:
    """Return `a << b`; undefined from the width on."""
    return _shift(np.left_shift, a, b, poison)


def shift_right(a: Array, b: Array, poison: Poison) -> Array:
    """Return `a >> b`, arithmetic for signed integers; undefined from the width on."""
    return _shift(np.right_shift, a, b, poison)


# ---- floats -----------------------------------------------------------------------------------


def in_type(function: Callable[..., Any], element: ScalarType, *operands: Array) -> Array:
    """Apply a NumPy function in the operands' type; fp8 in fp32, rounded and saturated."""
    if element.is_int or element.bits > 8:
        return np.asarray(function(*operands)).astype(operands[0].dtype, copy=False)
    wide = np.asarray(function(*(operand.astype(np.float32) for operand in operands)))
    return round_to(wide.astype(np.float64), element)


def quotient(a: Array, b: Array) -> Array:
    """Return the float quotient."""
    return a / b


def modulus(a: Array, b: Array) -> Array:
    """Return the float remainder with the sign of the dividend: exact in their type."""
    return np.fmod(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def extreme(a: Array, b: Array, *, least: bool, propagate_nan: bool) -> Array:
    """Return the lesser or greater of floats, -0 before +0, a number rather than NaN.

    With `propagate_nan`, NaN if either is.

    Source: PTX ISA 9.7.3.11 `min`, 9.7.3.12 `max`.
    """
    first = a < b if least else a > b
    equal = a == b
    if not equal.any():
        pass
    elif least:
        first |= equal & np.signbit(a) & ~np.signbit(b)
    else:
        first |= equal & np.signbit(b) & ~np.signbit(a)
    if not propagate_nan:
        return np.where(first | np.isnan(b), a, b)
    return np.where((first & ~np.isnan(b)) | np.isnan(a), a, b)


def fma(a: Array, b: Array, c: Array, element: ScalarType) -> Array:
    """Return `a * b + c` rounded once; for integers, wrapped."""
    if element.is_int:
        return a * b + c
    if element == FP64:
        return np.asarray(_fma_exact(a, b, c), dtype=np.float64)
    x, y, z = (np.atleast_1d(v).astype(np.float64) for v in (a, b, c))
    product = x * y  # exact: at most 48 bits
    total = product + z
    other = total - product
    error = (product - (total - other)) + (z - other)
    return reshape(round_to(_odd(total, error), element), np.broadcast_shapes(a.shape, b.shape))


def _fma_scalar(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c  # a product too large for fp64 is finite all the same
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # for the sign of zero
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_fma_exact = np.frompyfunc(_fma_scalar, 3, 1)
_erf = np.frompyfunc(math.erf, 1, 1)


def erf(value: Array) -> Array:
    """Return the error function of fp64 values."""
    return np.asarray(_erf(value), dtype=np.float64)


def flush(value: Array) -> Array:
    """Flush subnormal fp32 numbers to zeros of their sign, as `.ftz` does."""
    return np.where(
        np.abs(value) < _SMALLEST_NORMAL_FP32, np.copysign(value.dtype.type(0), value), value
    )


def through_fp32(function: Callable[..., Array], element: ScalarType, *operands: Array) -> Array:
    """Apply `function` in fp32 without subnormals, to operands narrower than fp64.

    Subnormal operands and results are flushed to zeros of their sign.
    """
    flushed = (flush(operand.astype(np.float32)).astype(np.float64) for operand in operands)
    single = flush(np.asarray(function(*flushed)).astype(np.float32))
    return round_to(single.astype(np.float64), element)


def through_fp64(function: Callable[[Array], Array], value: Array, element: ScalarType) -> Array:
    """Apply `function` in fp64, and round to `element`."""
    return round_to(np.asarray(function(value.astype(np.float64))), element)


def step_of(wide: Array, element: ScalarType) -> Array:
    """Return the distance to the next value of the type; fp32 may flush subnormals."""
    if element.is_int:
        return np.ones(wide.shape)
    finite = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    exponent = np.frexp(np.maximum(finite, 2.0**-1000))[1] - 1
    # Half the smallest normal covers the type's subnormals.
    smallest = {16: 2.0**-24, 8: 2.0**-9}.get(element.bits, 0.0)
    step = np.ldexp(1.0, exponent - element.mantissa_bits)
    step = np.maximum(step, _SMALLEST_NORMAL_FP32 if element == FP32 else smallest)
    if element.name == "bf16":
        step = np.maximum(np.ldexp(1.0, exponent - element.mantissa_bits), _SMALLEST_NORMAL_FP32)
    return step
