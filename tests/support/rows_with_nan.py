"""Rows of numbers and NaNs, and where their extremes are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


def rows_with_nan(count: int, length: int, *, ties: bool, seed: int = 0) -> Rows:
    """Return half-NaN rows, the last one all NaN; without `ties` all numbers differ."""
    random = np.random.default_rng([seed, count, length])
    numbers = random.permuted(np.tile(np.arange(length), (count, 1)), axis=1) - length // 2
    x = (numbers // 4 if ties else numbers).astype(np.float32)
    x[random.random(x.shape) < 0.5] = np.nan
    x[0, :-1] = np.nan
    x[0, -1] = -np.inf
    x[-1] = np.nan
    return x


def places_without_nan(x: Rows, name: str) -> NDArray[np.int32]:
    """Return the first index of each row's maximum or minimum, NaNs left out; 0 if all are."""
    indices = np.zeros(len(x), np.int32)
    for row, numbers in enumerate(x):
        columns = np.flatnonzero(~np.isnan(numbers))  # np.nanargmax takes a NaN for an infinity
        if columns.size:
            indices[row] = columns[getattr(np, f"arg{name}")(numbers[columns])]
    return indices
