"""What buffers hold before a kernel runs: tables of values by dtype, drawn from a seed.

Floats are normal, a quarter of them rounded to halves so that there are ties, some zeros of either
sign. Integers are of every size, except those that become indices, which stay in the range they
are given: whatever lies there is valid to read, but a buffer has to be held in memory.

Invariant: equal arguments give equal tables.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from functools import lru_cache

import numpy as np

from aotc.ir.types import ScalarType
from aotc.verify.elastic import Contents, loaded_dtype
from aotc.verify.numerics import Array, round_to

_TABLE_SIZE = 1 << 13
_SMALL = 100


@lru_cache(maxsize=64)
def floats(element: ScalarType, seed: int) -> Contents:
    """Return the contents of a buffer of floats."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(_TABLE_SIZE)
    kind = rng.integers(0, 64, _TABLE_SIZE)
    values = np.where(kind < 16, np.rint(2 * values) / 2, values)
    values = np.where(kind == 16, 0.0, values)
    values = np.where(kind == 17, -0.0, values)
    return Contents(np.asarray(round_to(values, element)), seed)


@lru_cache(maxsize=64)
def integers(element: ScalarType, seed: int) -> Contents:
    """Return the contents of a buffer of integers or booleans: small ones and any."""
    rng = np.random.default_rng(seed)
    dtype = loaded_dtype(element)
    if element.is_bool:
        return Contents(rng.integers(0, 2, _TABLE_SIZE).astype(dtype), seed)
    anything: Array = np.frombuffer(rng.bytes(_TABLE_SIZE * dtype.itemsize), dtype)
    small = rng.integers(-_SMALL if element.is_signed else 0, _SMALL, _TABLE_SIZE).astype(dtype)
    return Contents(np.where(rng.integers(0, 2, _TABLE_SIZE) == 0, small, anything), seed)


def between(element: ScalarType, low: float, high: float, seed: int) -> Contents:
    """Return the contents of a buffer of values from `low` up to but without `high`."""
    rng = np.random.default_rng(seed)
    if element.is_float:
        return Contents(np.asarray(round_to(rng.uniform(low, high, _TABLE_SIZE), element)), seed)
    values = rng.integers(int(low), max(int(high), int(low) + 1), _TABLE_SIZE)
    return Contents(values.astype(loaded_dtype(element)), seed)
