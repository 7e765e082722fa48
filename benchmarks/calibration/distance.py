"""Distance of two arrays of results: identical, different NaN payloads, or a number of ulps.

Invariant: comparing an array with itself finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.calibration.case import Array, Bound

# Bits of the mantissa and of the whole number.
_FLOATS = {"f16": (10, 16), "bf16": (7, 16), "f32": (23, 32), "f64": (52, 64)}
_MAX_EXAMPLES = 6


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of compared results.

    `nan_only` are NaN on both sides, with other bits; `broken` are out of bounds. `max_ulps` is
    the largest distance of numbers, `max_scaled` the largest one relative to the terms'
    magnitudes. Of a bound with alternatives, each maximum covers the numbers outside the other
    alternative. `examples` holds indices of the worst differences with both sides' bits.
    """

    count: int
    identical: int
    nan_only: int
    broken: int
    max_ulps: int
    max_absolute: float
    max_scaled: float
    examples: tuple[tuple[int, str, str], ...]


def compare(
    kind: str, emulated: Array, actual: Array, bound: Bound, scale: Array | None = None
) -> Comparison:
    """Return the differences of the bits `actual` of type `kind` from `emulated`.

    `kind` may be packed, "f16x2". `scale` holds the scale of `Bound.scaled`, as bits.
    """
    element = kind.partition("x")[0]
    bits = int(element.lstrip("bfus"))
    words = [
        np.ascontiguousarray(array).view(f"u{bits // 8}").ravel() for array in (emulated, actual)
    ]
    differs = words[0] != words[1]
    where = np.flatnonzero(differs)
    if not where.size:
        return Comparison(words[0].size, words[0].size, 0, 0, 0, 0.0, 0.0, ())
    if element not in _FLOATS:
        worst = where[:_MAX_EXAMPLES]
        return Comparison(
            words[0].size,
            words[0].size - where.size,
            0,
            where.size,
            0,
            0.0,
            0.0,
            _shown(worst, words),
        )
    size = None
    if scale is not None:
        size = np.abs(
            _value(element, np.ascontiguousarray(scale).view(words[0].dtype).ravel()[where])
        )
    return _floats(element, words, where, bound, size)


def _floats(
    element: str, words: Sequence[Array], where: Array, bound: Bound, scale: Array | None
) -> Comparison:
    left, right = (word[where] for word in words)
    x, y = _value(element, left), _value(element, right)
    x_nan, y_nan = np.isnan(x), np.isnan(y)
    nan_only = x_nan & y_nan
    numbers = ~(x_nan | y_nan)
    finite = numbers & np.isfinite(x) & np.isfinite(y)
    ulps = np.where(numbers, ulp_distance(element, left, right), 0)
    with np.errstate(all="ignore"):
        apart = np.where(finite, np.abs(x - y), np.where(numbers, np.inf, 0.0))
        allowed = np.maximum(bound.absolute, bound.relative * np.abs(x))
        if scale is not None:
            allowed = np.maximum(allowed, bound.scaled * scale)
        if bound.absolute or bound.relative or bound.scaled:
            allowed = allowed + 0.5 * ulp_size(element, x)
        few, near = ulps <= bound.ulps, finite & (apart <= allowed)
        within = few | near
        relative = np.where(finite, apart / scale, 0.0) if scale is not None else np.zeros(1)
    broken = ~nan_only & ~(numbers & within)
    if bound.is_exact:
        broken = np.ones(where.shape, bool)
    order = np.lexsort((-ulps.astype(np.float64), ~broken))[:_MAX_EXAMPLES]
    return Comparison(
        count=words[0].size,
        identical=words[0].size - where.size,
        nan_only=int(nan_only.sum()),
        broken=int(broken.sum()),
        max_ulps=int(np.where(near, 0, ulps).max() if bound.ulps else ulps.max()),
        max_absolute=float(np.where(few, 0.0, apart).max()),
        max_scaled=float(np.nanmax(relative)),
        examples=_shown(where[order], words),
    )


def ulp_distance(element: str, left: Array, right: Array) -> Array:
    """Return how many numbers of the type lie between bits, as uint64; -0 and +0 are the same."""
    return np.where(
        (key := _ordered(element, left)) > (other_key := _ordered(element, right)),
        key - other_key,
        other_key - key,
    )


def ulp_size(element: str, value: Array) -> Array:
    """Return the step of the type at a value of binary64, subnormal numbers' at least."""
    mantissa, bits = _FLOATS[element]
    least = 2 - (1 << (bits - mantissa - 2))
    exponent = np.frexp(np.where(np.isfinite(value), value, 1.0))[1] - 1
    exponent = np.where(value == 0, least, np.maximum(exponent, least))
    return np.ldexp(1.0, exponent - mantissa)


def _ordered(element: str, bits: Array) -> Array:
    """Return unsigned integers in the order of the numbers."""
    half = np.uint64(1 << 63)
    sign = np.uint64(1 << (_FLOATS[element][1] - 1))
    wide = bits.astype(np.uint64)
    size = wide & (sign - np.uint64(1))
    return np.where(wide & sign, half - size, half + size)


def _value(element: str, bits: Array) -> Array:
    if element == "bf16":
        bits, element = bits.astype(np.uint32) << np.uint32(16), "f32"
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return bits.view(f"f{int(element[1:]) // 8}").astype(np.float64)


def _shown(indices: Array, words: Sequence[Array]) -> tuple[tuple[int, str, str], ...]:
    return tuple((int(index), _hex(words[0][index]), _hex(words[1][index])) for index in indices)


def _hex(word: Any) -> str:
    return f"{int(word):#0{2 + 2 * word.dtype.itemsize}x}"
