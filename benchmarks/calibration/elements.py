"""Elements of matrices as bits: small integers with exact sums, and numbers of several sizes.

Invariant: the returned dtype is unsigned and as wide as an element, a byte at least.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.verify.emulator.compute.rounding import FORMATS
from aotc.verify.emulator.compute.small_floats import SMALL_FORMATS
from benchmarks.calibration.case import Array

BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "e4m3": 8, "e5m2": 8,
    "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "s32": 32,
}  # fmt: skip
INTEGERS = frozenset({"s8", "u8", "s4", "u4", "b1", "s32"})


def encode(kind: str, values: Array) -> Array:
    """Return binary64 values rounded to a format of floats."""
    if kind in SMALL_FORMATS:
        return SMALL_FORMATS[kind].encode(values)
    if kind == "tf32":
        return encode("f32", values) & np.uint32(0xFFFFE000)
    return FORMATS[kind].store(values)


def exact(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Return `count` elements with exact sums of products; integers are any bits."""
    if kind in INTEGERS:
        return _any_bits(kind, count, rng)
    return encode(kind, rng.integers(-3, 4, count).astype(np.float64))


def normal(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Return normally distributed elements; integers are any bits."""
    if kind in INTEGERS:
        return _any_bits(kind, count, rng)
    return encode(kind, rng.standard_normal(count))


def unrounded(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Return normally distributed fp32 numbers, also where tf32 is read."""
    return normal("f32" if kind == "tf32" else kind, count, rng)


def spread(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Return elements with sizes up to 2^16 apart, where the format has room for products."""
    if kind in INTEGERS:
        return _any_bits(kind, count, rng)
    reach = 2 if kind in ("e4m3", "e5m2", "f16") else 8
    return encode(
        kind, np.ldexp(rng.standard_normal(count), rng.integers(-reach, reach + 1, count))
    )


def special(kind: str, count: int, rng: np.random.Generator) -> Array:
    """Return normal elements with zeros, infinities and NaN here and there.

    8-bit floats are encoded saturating. In place of infinities they have numbers small enough
    for sums of products, also partial ones, to fit fp16.
    """
    values = rng.standard_normal(count)
    pick = rng.integers(0, 256, count)
    large = 16.0 if kind in SMALL_FORMATS else np.inf
    for code, value in enumerate((0.0, -0.0, large, -large, np.nan, 1e-40, 1e-6)):
        values = np.where(pick == code, value, values)
    return encode(kind, values)


def magnitude(kind: str, bits: Array) -> Array:
    """Return elements, packed in words or not, without their signs."""
    return (bits.view(_word(kind)) & ~_sign(kind)).view(bits.dtype)


def negative(kind: str, bits: Array) -> Array:
    """Return elements, packed in words or not, with the other sign."""
    return (bits.view(_word(kind)) ^ _sign(kind)).view(bits.dtype)


def _word(kind: str) -> np.dtype[Any]:
    return np.dtype(f"u{BITS[kind] // 8}")


def _sign(kind: str) -> Any:
    return _word(kind).type(1 << (BITS[kind] - 1))


def _any_bits(kind: str, count: int, rng: np.random.Generator) -> Array:
    if kind == "s32":
        return rng.integers(0, 1 << 32, count, np.uint32)
    return rng.integers(0, 256, count * BITS[kind] // 8, np.uint8)
