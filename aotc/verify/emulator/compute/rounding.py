"""Floating-point formats as bits, and rounding to them once, in any direction.

NumPy computes in binary32 and binary64, rounding to nearest. Everything else builds on those:
- A value exact in binary64, or *rounded to odd* there, rounds on to a narrower format as the
  exact value would: the last bit of a value rounded to odd remembers a discarded remainder.
- A directed rounding is the nearest value, moved one step if it lies on the wrong side of the
  exact one. In sign-and-magnitude, one step is one in the integer of the bits.

NaN results are PTX's canonical ones. In fp64, where PTX leaves them open, they are an H200's: an
operand's payload, made quiet, or one fixed NaN independent of the host.

Invariant: arrays of bits are unsigned and as wide as the format; none is written to.
"""

# The stubs leave the type of an array shifted by a NumPy scalar unknown.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import clipped, reduce_min, view
from aotc.verify.emulator.compute.registry import Bits, bits_dtype
from aotc.verify.emulator.errors import Unsupported

Floats: TypeAlias = npt.NDArray[Any]  # float32 or float64
Flags: TypeAlias = npt.NDArray[np.bool_]

ROUNDINGS = ("rn", "rz", "rm", "rp")
SCALE = 8
"""Results scaled by `2 ** SCALE` show their rounding with unbounded exponents."""


class FloatFormat:
    """Describe an IEEE-like format with infinities.

    `load` returns the exact values of bits, as float32 (float64 for f64). `store` rounds float32 or
    float64 values to nearest even, once, to bits.
    """

    def __init__(
        self,
        name: str,
        mantissa_bits: int,
        nan: int,
        load: Callable[[Bits], Floats],
        store: Callable[[Floats], Bits],
    ) -> None:
        self.name = name
        self.bits = int(name.removeprefix("b").removeprefix("f"))
        word = bits_dtype(self.bits).type
        exponent_bits = self.bits - 1 - mantissa_bits
        self.dtype = bits_dtype(self.bits)
        self.signed_dtype = np.dtype(f"i{self.bits // 8}")
        self.sign = word(1 << (self.bits - 1))
        self.magnitude = word((1 << (self.bits - 1)) - 1)
        self.infinity = word(((1 << exponent_bits) - 1) << mantissa_bits)
        self.one = word(((1 << (exponent_bits - 1)) - 1) << mantissa_bits)
        self.max_finite = word(int(self.infinity) - 1)
        self.max_subnormal = word((1 << mantissa_bits) - 1)
        self.nan = word(nan)
        self.least_normal = word(1 << mantissa_bits)
        self.quiet = word(1 << (mantissa_bits - 1))
        self._mantissa_bits = mantissa_bits
        self.load = load
        self._store = store

    def store(self, values: Floats) -> Bits:
        """Return the bits of values rounded to nearest even, NaN canonical."""
        bits = self._store(values)
        least = reduce_min(values, axis=None, initial=np.inf)  # NaN if any is
        if self.bits == 64 or least == least:  # noqa: PLR0124
            return bits
        return self.canonical(bits, values != values)  # noqa: PLR0124

    def canonical(self, bits: Bits, unordered: Flags) -> Bits:
        """Return bits with the canonical NaN where `unordered`."""
        return np.where(unordered, self.nan, bits) if unordered.any() else bits

    def narrowed_nan(self, bits: Bits) -> Bits:
        """Return this format's quiet NaN with the sign and upper payload of a binary64 NaN."""
        sign = (bits >> np.uint64(64 - self.bits)).astype(self.dtype) & self.sign
        payload = (bits >> np.uint64(52 - self._mantissa_bits)).astype(self.dtype)
        return sign | self.infinity | self.quiet | (payload & self.max_subnormal)

    def quieted(self, bits: Bits) -> Bits:
        """Return bits with signalling NaN made quiet."""
        return np.where(self.is_nan(bits), bits | self.quiet, bits)

    def is_nan(self, bits: Bits) -> Flags:
        """Return a mask of NaNs."""
        return np.asarray((bits & self.magnitude) > self.infinity)

    def flush(self, bits: Bits) -> Bits:
        """Return bits with subnormal numbers turned into zeros of their sign."""
        unit = self.dtype.type(1)
        # Zero wraps round to the maximum, so it takes the fast path too.
        below = (bits & self.magnitude) - unit
        if reduce_min(below, axis=None, initial=self.magnitude) >= self.max_subnormal:
            return bits
        return np.where(below < self.max_subnormal, bits & self.sign, bits)

    def flush_raised(self, bits: Bits, scaled: Callable[[], Bits]) -> Bits:
        """Zero the normal numbers that only the rounding of a subnormal produced.

        A GPU judges a result after rounding it with unbounded exponents. `scaled` returns the same
        results times `2 ** SCALE`, where they round so.
        """
        edge = (bits & self.magnitude) == self.least_normal
        if not edge.any():
            return bits
        least = self.least_normal * self.dtype.type(1 + SCALE)
        raised = edge & ((scaled() & self.magnitude) < least)
        return np.where(raised, bits & self.sign, bits)

    def saturate(self, bits: Bits) -> Bits:
        """Return bits clamped to [+0, 1], NaN as +0."""
        order = view(np.where(self.is_nan(bits), self.dtype.type(0), bits), self.signed_dtype)
        # Negative floats are negative integers; positive floats order as integers.
        return view(clipped(order, 0, view(self.one, self.signed_dtype)), self.dtype)

    def rectify(self, bits: Bits) -> Bits:
        """Return bits with negative numbers as +0; canonical NaN is unchanged."""
        return view(
            np.maximum(view(bits, self.signed_dtype), self.signed_dtype.type(0)), self.dtype
        )

    def saturate_finite(self, bits: Bits) -> Bits:
        """Return bits with infinities as the largest finite number of their sign."""
        infinite = (bits & self.magnitude) == self.infinity
        return np.where(infinite, (bits & self.sign) | self.max_finite, bits)


def _store_f16(values: Floats) -> Bits:
    return view(values.astype(np.float16), np.uint16)


def _store_f32(values: Floats) -> Bits:
    return view(values.astype(np.float32, copy=False), np.uint32)


def _store_bf16(values: Floats) -> Bits:
    if values.dtype == np.float64:
        values = narrow_odd(values)
    bits = view(values, np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.asarray((bits + half) >> np.uint32(16)).astype(np.uint16)


def narrow_odd(values: Floats) -> Floats:
    """Return float64 values as float32, rounded to odd."""
    single = values.astype(np.float32)
    bits = view(single, np.uint32)
    back = single.astype(np.float64)
    even = bits & np.uint32(1) == 0
    # Infinity is even: an overflow becomes the largest finite number, which is odd.
    lower = even & (np.abs(back) > np.abs(values))
    upper = even & (np.abs(back) < np.abs(values))
    return view(np.asarray(bits + upper - lower, dtype=np.uint32), np.float32)


F16 = FloatFormat(
    "f16", 10, 0x7FFF, lambda bits: view(bits, np.float16).astype(np.float32), _store_f16
)
BF16 = FloatFormat(
    "bf16",
    7,
    0x7FFF,
    lambda bits: view(np.asarray(bits.astype(np.uint32) << np.uint32(16)), np.float32),
    _store_bf16,
)
F32 = FloatFormat("f32", 23, 0x7FFFFFFF, lambda bits: view(bits, np.float32), _store_f32)
F64 = FloatFormat(
    "f64",
    52,
    0x7FFFFFFFFFFFFFFF,
    lambda bits: view(bits, np.float64),
    lambda values: view(values.astype(np.float64, copy=False), np.uint64),
)
FORMATS = {form.name: form for form in (F16, BF16, F32, F64)}


def format_of(name: str) -> FloatFormat:
    """Return the format of a scalar type.

    Raises: Unsupported for any type without arithmetic.
    """
    if name not in FORMATS:
        raise Unsupported(f"type .{name}")
    return FORMATS[name]


# ---- rounding ---------------------------------------------------------------------------------


def round_to(values: Floats, form: FloatFormat, mode: str) -> Bits:
    """Round float64 values, exact or rounded to odd, to bits in `mode`."""
    bits = form.store(values)
    if mode == "rn":
        return bits
    nearest = form.load(bits).astype(np.float64)
    return step(bits, form, values > nearest, values < nearest, mode)


def step(bits: Bits, form: FloatFormat, above: Flags, below: Flags, mode: str) -> Bits:
    """Turn the nearest bits into the rounding in `mode`.

    `above` and `below` tell whether the exact value lies above or below the nearest.
    """
    negative = (bits & form.sign) != 0
    if mode == "rz":
        grow, shrink = np.False_, np.where(negative, above, below)
    elif mode == "rp":
        grow, shrink = above & ~negative, above & negative
    elif mode == "rm":
        grow, shrink = below & negative, below & ~negative
    else:
        return bits
    return np.asarray(bits + grow - shrink, dtype=form.dtype)


def two_sum(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the rounded sum and its error; their sum is exact unless it overflows."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def sum_odd(x: Floats, y: Floats) -> Floats:
    """Return the float64 sum rounded to odd."""
    total, error = two_sum(x, y)
    return fix_odd(total, error)


def fix_odd(total: Floats, error: Floats) -> Floats:
    """Round `total + error` to odd, as float64."""
    bits = view(total, np.int64)
    # The error of an infinite sum is NaN, and NaN > 0 is false.
    off = (np.abs(error) > 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    return view(np.asarray(bits + (off & away) - (off & ~away)), np.float64)


def round_sum(x: Floats, y: Floats, form: FloatFormat, mode: str) -> Bits:
    """Return bits of the sum of float64 values, rounded once to a narrower format."""
    if mode == "rn" and form is F32:
        return _round_sum_f32(x, y)
    bits = round_to(sum_odd(x, y), form, mode)
    return negative_zero(bits, x, y, form) if mode == "rm" else bits


def negative_zero(bits: Bits, x: Floats, y: Floats, form: FloatFormat) -> Bits:
    """Return the bits of x + y with a cancelled zero as -0, as rounding down gives."""
    cancelled = (bits == 0) & (x == -y) & (np.signbit(x) | np.signbit(y))
    return np.where(cancelled, form.sign, bits)


# A float32 drops 29 bits of a float64; shifted to the top, a midpoint is the top bit alone.
_TO_TOP = np.uint64(35)
_MIDWAY = np.uint64(1 << 63)
_LEAST_NORMAL = np.uint32(1 << 23)


def _round_sum_f32(x: Floats, y: Floats) -> Bits:
    """Return the sum rounded to nearest; double rounding errs only at midpoints."""
    total = np.asarray(x + y)
    bits = F32.store(total)
    suspect = (view(total, np.uint64) << _TO_TOP) == _MIDWAY
    small = (bits & F32.magnitude) <= _LEAST_NORMAL
    if small.any():
        # Midpoints of subnormal numbers differ; zeros are exact.
        suspect |= small & (total != 0)
    return F32.store(sum_odd(x, y)) if suspect.any() else bits
