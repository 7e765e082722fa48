"""binary64 arithmetic beyond NumPy's: fma, and all operations in directed roundings.

No wider format is available, so sums and products are split into a value and its exact error. The
rest is computed lane by lane with rational numbers: extreme exponents, and rare directed roundings
of anything but sums.

Source: Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using
Rounding to Odd", IEEE Transactions on Computers 57(4), 2008.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from aotc.verify.emulator.compute.registry import Bits
from aotc.verify.emulator.compute.rounding import (
    F64,
    Flags,
    Floats,
    negative_zero,
    step,
    sum_odd,
    two_sum,
)

# ---- lane by lane -----------------------------------------------------------------------------


def round_fraction(value: Fraction, mode: str) -> float:
    """Return a non-zero rational rounded to binary64."""
    sign = 1 if value > 0 else -1
    try:
        nearest = float(value)
    except OverflowError:
        nearest = sign * math.inf
    if nearest in (math.inf, -math.inf):
        return _one_step(nearest, -sign, mode)
    difference = value - Fraction(nearest)
    return _one_step(nearest, (difference > 0) - (difference < 0), mode)


def _one_step(nearest: float, side: int, mode: str) -> float:
    """Correct a nearest-rounded value; `side` is the sign of (exact - nearest)."""
    away = math.copysign(1, nearest) > 0
    if (mode == "rp" and side > 0) or (mode == "rz" and side > 0 and not away):
        return math.nextafter(nearest, math.inf)
    if (mode == "rm" and side < 0) or (mode == "rz" and side < 0 and away):
        return math.nextafter(nearest, -math.inf)
    return nearest


def _fma(a: float, b: float, c: float, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c  # however large the product
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        return round_fraction(total, mode)
    # An exact zero: two zeros of one sign keep it; else +0, or -0 rounding down.
    product_negative = math.copysign(1, a) * math.copysign(1, b) < 0
    if product_negative == (math.copysign(1, c) < 0):
        return math.copysign(0.0, c)
    return -0.0 if mode == "rm" else 0.0


def _mul(a: float, b: float, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return round_fraction(Fraction(a) * Fraction(b), mode)


def _div(a: float, b: float, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    return round_fraction(Fraction(a) / Fraction(b), mode)


def _sqrt(a: float, mode: str) -> float:
    if not 0 < a < math.inf:
        with np.errstate(all="ignore"):
            return float(np.sqrt(np.float64(a)))
    nearest = math.sqrt(a)
    difference = Fraction(a) - Fraction(nearest) ** 2
    return _one_step(nearest, (difference > 0) - (difference < 0), mode)


_SCALAR: dict[str, tuple[Callable[..., float], int]] = {
    "mul": (_mul, 2),
    "div": (_div, 2),
    "sqrt": (_sqrt, 1),
    "fma": (_fma, 3),
}


def directed(name: str, mode: str) -> Callable[..., Bits]:
    """Return `name` (mul, div, sqrt or fma) on binary64 bits, rounded in `mode`.

    Slow: a few microseconds per lane.
    """
    function, count = _SCALAR[name]
    elementwise = np.frompyfunc(lambda *values: function(*values, mode), count, 1)
    return lambda *words: F64.store(_floats(elementwise(*(F64.load(word) for word in words))))


def _floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)


# ---- on arrays --------------------------------------------------------------------------------

_SPLIT = 134217729.0  # 2 ** 27 + 1
_LEAST, _MOST = 2.0**-900, 2.0**900
_exactly = np.frompyfunc(_fma, 4, 1)


def directed_sum(mode: str) -> Callable[[Bits, Bits], Bits]:
    """Return the sum of binary64 bits rounded in `mode`, from the nearest sum and its error."""

    def compute(a: Bits, b: Bits) -> Bits:
        x, y = np.broadcast_arrays(F64.load(a), F64.load(b))
        total, error = two_sum(x, y)
        bits = step(F64.store(total), F64, error > 0, error < 0, mode)
        if mode == "rm":
            bits = negative_zero(bits, x, y, F64)
        # The error of a sum that overflows, or nearly does, is NaN.
        hard = np.isnan(error) & np.isfinite(x) & np.isfinite(y)
        if hard.any():
            bits[hard] = F64.store(_floats(_exactly(x[hard], 1.0, y[hard], mode)))
        return bits

    return compute


def _split(value: Floats) -> tuple[Floats, Floats]:
    """Split a value into two halves of at most 26 bits."""
    scaled = value * _SPLIT
    high = scaled - (scaled - value)
    return high, value - high


def two_product(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the rounded product and its error, exact away from extreme exponents."""
    product = x * y
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    error = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
    return product, error


def fma(a: Bits, b: Bits, c: Bits) -> Bits:
    """Return bits of a * b + c, rounded once to nearest even."""
    x, y, z = np.broadcast_arrays(F64.load(a), F64.load(b), F64.load(c))
    product, product_error = two_product(x, y)
    low, low_error = two_sum(z, product_error)
    high, high_error = two_sum(product, low)
    result = np.asarray(high + sum_odd(low_error, high_error))
    hard = ~_is_moderate(x, y, product, z)
    if hard.any():
        result[hard] = _rare(x[hard], y[hard], z[hard])
    return F64.store(result)


def _is_moderate(x: Floats, y: Floats, product: Floats, z: Floats) -> Flags:
    """Return a mask of lanes where splitting neither overflows nor underflows."""
    size, addend = np.abs(product), np.abs(z)
    within = (np.abs(x) < _MOST) & (np.abs(y) < _MOST) & (addend < _MOST)
    return within & (size > _LEAST) & (size < _MOST) & ((addend > _LEAST) | (addend == 0))


def _rare(x: Floats, y: Floats, z: Floats) -> Floats:
    # Right where the product is exactly zero or infinite; an infinite addend beats a finite one.
    finite = np.isfinite(x) & np.isfinite(y)
    plain = np.where(finite & ~np.isfinite(z), z, x * y + z)
    slow = finite & np.isfinite(z) & (x != 0) & (y != 0)
    if slow.any():
        plain[slow] = _floats(_exactly(x[slow], y[slow], z[slow], "rn"))
    return plain
