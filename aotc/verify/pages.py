"""The table of held pages of a large, sparse memory: untouched pages take no room.

Lanes mostly access runs within one page, so pages are looked up once per run.

Invariant: the size grows with the number of held pages, not with their distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aotc.verify.arrays import Array, reshape

PAGE_BITS = 10
PAGE_BYTES = 1 << PAGE_BITS
_MISSING = -1
_LARGEST_SPREAD = 4  # limits the size of a lookup table, in pages per lookup


class Pages:
    """A table of held pages, in the order of their first access."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._ascending = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)  # of the pages in `_ascending`

    @property
    def size_bytes(self) -> int:
        """The size of all held pages."""
        return len(self.numbers) * PAGE_BYTES

    def copy(self) -> Pages:
        """Return an independent copy."""
        pages = Pages()
        pages.numbers = list(self.numbers)
        pages._ascending, pages._slots = (
            self._ascending,
            self._slots,
        )  # replaced on growth, never modified
        return pages

    def places(self, offsets: Array, hold: Callable[[Array], None] | None = None) -> Array:
        """Return the positions of bytes at offsets (n,).

        First `hold` is called with the missing pages, ascending and without repeats, to add
        them.
        """
        pages = offsets >> PAGE_BITS
        starts = np.flatnonzero(pages[1:] != pages[:-1]) + 1
        is_in_runs = 2 * starts.size < pages.size
        if is_in_runs:
            starts = np.concatenate([[0], starts])
            pages = pages[starts]
        slots = self._find(pages)
        if hold is not None:
            is_missing = slots == _MISSING
            if is_missing.any():
                hold(np.unique(pages[is_missing]))
                slots = self._find(pages)
        shift = (slots - pages) << PAGE_BITS
        if is_in_runs:
            shift = np.repeat(shift, np.diff(starts, append=offsets.size))
        return offsets + shift

    def runs(
        self, offsets: Array, size_bytes: int, hold: Callable[[Array], None]
    ) -> tuple[Array, Array]:
        """Return the positions of runs of bytes at offsets (n,), in parts, and their lengths.

        `hold` is called as by `places`.
        """
        first = offsets >> PAGE_BITS
        counts = (offsets + size_bytes - 1 >> PAGE_BITS) - first + 1
        if counts.max() == 1:
            return self.places(offsets, hold), np.full(offsets.size, size_bytes)
        whole = np.repeat(np.arange(offsets.size), counts)
        number = np.arange(whole.size) - np.repeat(np.cumsum(counts) - counts, counts)
        page = (first[whole] + number) << PAGE_BITS
        starts = np.maximum(offsets[whole], page)
        ends = np.minimum(offsets[whole] + size_bytes, page + PAGE_BYTES)
        return self.places(starts, hold), ends - starts

    def hold(self, pages: Array) -> None:
        """Append missing pages, ascending and without repeats."""
        positions = np.searchsorted(self._ascending, pages)
        slots = np.arange(len(pages)) + len(self.numbers)
        self._ascending = np.insert(self._ascending, positions, pages)
        self._slots = np.insert(self._slots, positions, slots)
        self.numbers += pages.tolist()

    def slots(self, pages: Array) -> Array:
        """Return the positions of held pages, counted in pages."""
        return self._slots[np.searchsorted(self._ascending, pages)]

    def _find(self, pages: Array) -> Array:
        """Return the positions of pages, counted in pages; `_MISSING` if not held."""
        if not (self.numbers and pages.size):
            return np.full(pages.shape, _MISSING)
        low, high = pages.min(), pages.max()
        if high - low < _LARGEST_SPREAD * pages.size:
            first, end = np.searchsorted(self._ascending, [low, high + 1])
            table = np.full(high - low + 1, _MISSING)
            table[self._ascending[first:end] - low] = self._slots[first:end]
            return table[pages - low]
        positions = np.minimum(np.searchsorted(self._ascending, pages), len(self.numbers) - 1)
        return np.where(self._ascending[positions] == pages, self._slots[positions], _MISSING)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a box: `length` elements at each address, in cells from `firsts` on.

    With `counts` these are parts of such runs, split at pages.
    """

    index: int
    starts: Array
    length: int
    firsts: Array
    counts: Array | None

    def cells(self) -> Array:
        """Return the cell of each element."""
        if self.counts is None:
            return reshape(self.firsts[:, None] + np.arange(self.length), -1)
        before = np.cumsum(self.counts) - self.counts
        count = self.starts.size * self.length
        return np.repeat(self.firsts - before, self.counts) + np.arange(count)
