"""Floating-point numbers as rationals: a rounding oracle independent of NumPy.

Slow and plain: a format is its widths, a value is a Fraction or a special, and `encode` divides
with remainder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Describe an IEEE format; `nan` is the canonical one."""

    exponent_bits: int
    mantissa_bits: int
    nan: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits


LAYOUTS = {
    "f16": Layout(5, 10, 0x7FFF),
    "bf16": Layout(8, 7, 0x7FFF),
    "f32": Layout(8, 23, 0x7FFFFFFF),
    "f64": Layout(11, 52, 0x7FFFFFFFFFFFFFFF),
}

Value = Fraction | float
"""A non-zero Fraction, or a float for zeros, infinities and NaN."""


def decode(bits: int, layout: Layout) -> Value:
    """Return the value of bits."""
    bits = int(bits)
    sign = -1 if bits >> (layout.bits - 1) else 1
    magnitude = bits & ((1 << (layout.bits - 1)) - 1)
    if magnitude >= layout.infinity:
        return math.nan if magnitude > layout.infinity else sign * math.inf
    exponent = magnitude >> layout.mantissa_bits
    mantissa = magnitude & ((1 << layout.mantissa_bits) - 1)
    if exponent:
        mantissa += 1 << layout.mantissa_bits
    if not mantissa:
        return math.copysign(0.0, sign)
    return sign * mantissa * power(max(exponent, 1) - layout.bias - layout.mantissa_bits)


def power(exponent: int) -> Fraction:
    """Return a power of two."""
    return Fraction(2**exponent) if exponent >= 0 else Fraction(1, 2**-exponent)


def encode(value: Value, layout: Layout, mode: str = "rn") -> int:
    """Return bits of a value rounded in `mode`: rn, rz, rm or rp."""
    top = 1 << (layout.bits - 1)
    if isinstance(value, float):
        if math.isnan(value):
            return layout.nan
        sign = top if math.copysign(1, value) < 0 else 0
        return sign | (layout.infinity if value else 0)
    sign = top if value < 0 else 0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < power(exponent)
    exponent = max(exponent, 1 - layout.bias)
    scaled = size / power(exponent - layout.mantissa_bits)
    count, rest = divmod(scaled.numerator, scaled.denominator)
    half = 2 * rest - scaled.denominator
    up = {
        "rn": half > 0 or (half == 0 and count & 1),
        "rz": False,
        "rm": sign and rest,
        "rp": not sign and rest,
    }[mode]
    # The hidden bit carries into the exponent, and a full mantissa too.
    bits = ((exponent + layout.bias - 1) << layout.mantissa_bits) + count + bool(up)
    if bits < layout.infinity:
        return sign | bits
    toward = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and sign)
    return sign | (layout.infinity - 1 if toward else layout.infinity)


def as_float(value: Value) -> float:
    """Return a float with the same sign and class; only the sign and class of a Fraction matter."""
    return value if isinstance(value, float) else math.copysign(1.0, value)


def samples(layout: Layout, count: int, seed: int) -> Any:
    """Return bits: uniform ones, sparse ones (for ties), and the special ones."""
    random = np.random.default_rng([layout.bits, layout.mantissa_bits, seed])
    dtype = np.dtype(f"u{layout.bits // 8}")
    bits = random.integers(0, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)
    # Few bits set, at moderate exponents.
    third = count // 3
    sparse = random.integers(1, 1 << min(layout.mantissa_bits, 6), third).astype(object)
    scale = random.integers(-layout.mantissa_bits, layout.mantissa_bits, third).astype(object)
    signs = random.integers(0, 2, third) * 2 - 1
    bits[:third] = [
        encode(Fraction(int(s) * int(k)) * power(int(e)), layout)
        for s, k, e in zip(signs, sparse, scale, strict=True)
    ]
    near = slice(third, 2 * third)
    # Exponents near one another.
    middle = layout.bias << layout.mantissa_bits
    spread = random.integers(-(4 << layout.mantissa_bits), 4 << layout.mantissa_bits, third)
    bits[near] = (middle + spread).astype(dtype)
    special = np.array(specials(layout), dtype)
    bits[random.permutation(count)[: special.size]] = special
    return bits


def specials(layout: Layout) -> list[int]:
    """Return bits of zeros, the ends of all ranges, ones, infinities and NaN, of either sign."""
    top, middle = 1 << (layout.bits - 1), layout.bias << layout.mantissa_bits
    least = 1 << layout.mantissa_bits
    special = [0, 1, 2, least - 1, least, least + 1, middle, middle + 1, middle - 1]
    special += [layout.infinity - 2, layout.infinity - 1, layout.infinity]
    special += [layout.infinity + 1, top - 1]
    return special + [top | bits for bits in special]


# ---- operations on values ---------------------------------------------------------------------


def fma(a: Value, b: Value, c: Value, mode: str) -> Value:
    """Return a * b + c; `mode` decides the sign of a zero from cancellation."""
    product = as_float(a) * as_float(b)
    if not all(map(is_finite, (a, b, c))):
        return product + as_float(c)
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        return total
    if math.copysign(1, product) == math.copysign(1, as_float(c)):
        return math.copysign(0.0, product)
    return -0.0 if mode == "rm" else 0.0


def mul(a: Value, b: Value) -> Value:
    """Return a * b."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a * b
    return as_float(a) * as_float(b)


def div(a: Value, b: Value) -> Value:
    """Return a / b."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    x, y = as_float(a), as_float(b)
    if y == 0:
        return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * sign_of(y)
    return x / y


def sqrt(a: Value) -> Value:
    """Return the square root, or something between the same neighbours of 200 bits."""
    if not isinstance(a, Fraction):
        return a if a == 0 or a > 0 else math.nan
    if a < 0:
        return math.nan
    shift = 600  # 200 bits even for the least number
    scaled, rest = divmod(a.numerator << (2 * shift), a.denominator)
    root = math.isqrt(scaled)
    inexact = rest > 0 or root * root != scaled
    return Fraction(2 * root + inexact, 2 << shift)


def is_finite(value: Value) -> bool:
    """Return whether a value is no infinity and no NaN."""
    return isinstance(value, Fraction) or math.isfinite(value)


def sign_of(value: float) -> float:
    """Return 1 or -1, of zeros too."""
    return math.copysign(1.0, value)
