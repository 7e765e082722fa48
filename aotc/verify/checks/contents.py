"""The contents of a buffer before a launch, element by element.

Invariant: an element is a function of its position, the seed and the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array
from aotc.verify.interpreter.numerics import dtype_of

HEAD_BYTES = 4096
"""Room before a pointer, for kernels that step back from it."""

_ALIGNED_PLACE = 1 << 20  # aligns the regions of `Contents` with the pointer
_HASH = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9
_MAX_KEPT, _MAX_KEPT_ELEMENTS = 768, 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Contents drawn from `table`, of a power of two of values.

    In every second run of 16384 elements, one in 256 comes from `rare`, if given: values such
    as NaN spread through all later results, so most results must stay free of them. In 512 of
    every 8192 elements, one in four comes from `edges`.
    """

    table: Array
    seed: int
    rare: Array | None = None
    edges: Array | None = None

    def elements(self, start: int, end: int) -> Array:
        """Return the elements at positions `start` to `end`; do not modify them."""
        if end - start > _MAX_KEPT_ELEMENTS:
            return self.at(np.arange(start, end))
        return _kept_elements(self, start, end)

    def at(self, positions: Array) -> Array:
        """Return the elements at positions."""
        offset = positions.astype(np.uint64)
        index = offset + np.uint64(self.seed * 0x1_0000_0001)
        index = (index * np.uint64(_HASH)) ^ (index >> np.uint64(29))
        index = (index * np.uint64(_MIX)) >> np.uint64(40)
        out = self.table[index & np.uint64(self.table.size - 1)]
        offset = offset + np.uint64(_ALIGNED_PLACE - HEAD_BYTES // self.table.itemsize)
        for values, mask, one_in in (
            (self.edges, 15 << 9, 4),
            (self.rare, 1 << 14, 256),
        ):
            if values is not None:
                is_one = (index >> np.uint64(15)) % np.uint64(one_in) == 0
                is_one &= (offset & np.uint64(mask)) == 0
                out = np.where(is_one, values[index % np.uint64(values.size)], out)
        return out


@lru_cache(maxsize=_MAX_KEPT)
def _kept_elements(contents: Contents, start: int, end: int) -> Array:
    """Return elements from a cache: launches of the next variants draw the same ones."""
    elements = contents.at(np.arange(start, end))
    elements.flags.writeable = False
    return elements


@dataclass(frozen=True, slots=True)
class Listed:
    """Contents that repeat `values` from the buffer's pointer on."""

    values: Array

    def elements(self, start: int, end: int) -> Array:
        """Return the elements at positions `start` to `end`."""
        return self.at(np.arange(start, end))

    def at(self, positions: Array) -> Array:
        """Return the elements at positions."""
        return self.values[(positions - HEAD_BYTES // self.values.itemsize) % self.values.size]


def loaded_dtype(pointee: ScalarType) -> np.dtype[Any]:
    """Return the dtype of elements in memory; a boolean is a byte."""
    return np.dtype(np.uint8) if pointee.is_bool else dtype_of(pointee)
