"""Tables of initial buffer values by dtype, drawn from a seed.

Floats are normal, a quarter of them rounded to halves for ties, with some zeros
of either sign. At a launch of special values most are small whole numbers, whose sums are
exact; the others are hard cases of conversions and comparisons. Integers are of every size,
including their type's ends. Integers used as indices stay in a given range: any address there
is valid to read, but the buffer has to fit in memory.

Invariant: equal arguments give equal tables.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np

from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array
from aotc.verify.checks.contents import Contents, Listed, loaded_dtype
from aotc.verify.interpreter.numerics import dtype_of, round_to

_TABLE_SIZE = 1 << 13
_MAX_KEPT = 512  # tables, of up to 64 kB: buffers of a launch are the same in the next variant
_SMALL = 100
_NARROWER_BITS = (23, 10, 7, 3, 2)  # mantissas of fp32, fp16, bf16, fp8
# Values around the points where fp16 and fp8 round to zero or infinity, or saturate.
_ENDS = tuple(
    sign * size
    for sign in (1.0, -1.0)
    for size in (
        *(2.0**-25, 3 * 2.0**-25, 2.0**-10, 2.0**-17, 448.0, 464.0, 480.0, 57344.0, 61440.0),
        *(65504.0, 65519.0, 65520.0),
    )
)


@lru_cache(maxsize=_MAX_KEPT)
def floats(element: ScalarType, seed: int) -> Contents:
    """Return the contents of a buffer of floats."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(_TABLE_SIZE)
    kind = rng.integers(0, 64, _TABLE_SIZE)
    values = np.where(kind < 16, np.rint(2 * values) / 2, values)
    values = np.where(kind == 16, 0.0, values)
    values = np.where(kind == 17, -0.0, values)
    return Contents(np.asarray(round_to(values, element)), seed)


@lru_cache(maxsize=_MAX_KEPT)
def special(element: ScalarType, seed: int) -> Contents:
    """Return the contents of a buffer of floats hard to convert and compare.

    Some are zero, around the subnormals, or half-way between numbers of a narrower type.
    NaN, infinities and the largest numbers are rare.
    """
    rng = np.random.default_rng(seed)
    dtype = dtype_of(element)
    whole = rng.integers(-8, 9, _TABLE_SIZE).astype(np.float64)
    largest = float(_info(dtype).max)
    rare = np.array([np.nan, np.inf, -np.inf, largest, -largest]).astype(dtype)
    ties, smallest = _ties(element, rng), _smallest(dtype)
    edges = np.concatenate([np.resize(smallest, max(ties.size, smallest.size)), ties])
    return Contents(np.asarray(round_to(whole, element)), seed, rare, edges)


def _info(dtype: np.dtype[Any]) -> Any:
    if dtype.isbuiltin == 1:
        return np.finfo(dtype)
    return importlib.import_module("ml_dtypes").finfo(dtype)  # optional, as in `numerics.py`


def _smallest(dtype: np.dtype[Any]) -> Array:
    """Return zeros, the extreme subnormals, the smallest normal, one and its successor."""
    info = _info(dtype)
    tiny, least = float(info.smallest_normal), float(info.smallest_subnormal)
    sizes = np.array([0.0, least, 3 * least, tiny - least, tiny, 1.0, 1.0 + float(info.eps)])
    return np.concatenate([sizes, -sizes]).astype(dtype)


def _ties(element: ScalarType, rng: np.random.Generator) -> Array:
    """Return values half-way between neighbours of narrower types, and at their ends."""
    dtype = dtype_of(element)
    parts: list[Array] = []
    for bits in _NARROWER_BITS:
        if bits < element.mantissa_bits:
            mantissa = rng.integers(1 << bits, 2 << bits, 64) + 0.5
            values = np.ldexp(mantissa, rng.integers(-5, 6, 64) - bits)
            parts += [values, -values]
    parts.append(np.array(_ENDS))
    values = np.concatenate(parts)
    with np.errstate(all="ignore"):
        is_exact = values.astype(dtype).astype(np.float64) == values
    return values[is_exact].astype(dtype)


@lru_cache(maxsize=_MAX_KEPT)
def integers(element: ScalarType, seed: int) -> Contents:
    """Return the contents of a buffer of integers or booleans, half of them small."""
    rng = np.random.default_rng(seed)
    dtype = loaded_dtype(element)
    if element.is_bool:
        return Contents(rng.integers(0, 2, _TABLE_SIZE).astype(dtype), seed)
    uniform: Array = np.frombuffer(rng.bytes(_TABLE_SIZE * dtype.itemsize), dtype)
    small = rng.integers(-_SMALL if element.is_signed else 0, _SMALL, _TABLE_SIZE).astype(dtype)
    values = np.where(rng.integers(0, 2, _TABLE_SIZE) == 0, small, uniform)
    info = np.iinfo(dtype)
    ends = np.array([info.min, info.max, 0, -1 if element.is_signed else 1], dtype)
    kind = rng.integers(0, 16 * ends.size, _TABLE_SIZE)
    return Contents(np.where(kind < ends.size, ends[kind % ends.size], values), seed)


def between(
    element: ScalarType, low: float, high: float, seed: int, multiple_of: int = 1
) -> Contents:
    """Return the contents of a buffer of values in the range from `low` to `high`, exclusive.

    Integers are multiples of `multiple_of`, at least one of which lies in the range.
    """
    rng = np.random.default_rng(seed)
    if element.is_float:
        return Contents(np.asarray(round_to(rng.uniform(low, high, _TABLE_SIZE), element)), seed)
    first, end = (-(-int(limit) // multiple_of) for limit in (low, high))
    values = rng.integers(first, max(end, first + 1), _TABLE_SIZE) * multiple_of
    return Contents(values.astype(loaded_dtype(element)), seed)


def cumulative(element: ScalarType, low: int, high: int, seed: int) -> Listed:
    """Return the contents of a buffer of running sums of integers, starting at 0."""
    values = np.random.default_rng(seed).integers(low, max(high, low + 1), _TABLE_SIZE)
    return Listed((np.cumsum(values) - values[0]).astype(loaded_dtype(element)))


def shuffled(element: ScalarType, low: int, high: int, seed: int) -> Listed:
    """Return the contents of a buffer of the integers from `low` up to `high`, shuffled."""
    values = np.random.default_rng(seed).permutation(np.arange(low, max(high, low + 1)))
    return Listed(values.astype(loaded_dtype(element)))
