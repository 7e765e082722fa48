"""The pages of a large memory that are held, and where: what nothing touches takes no room.

Lanes that access memory mostly come in runs that stay in one page, so pages are looked up once for
each run.

Invariant: what is kept grows with the pages that are held, not with how far apart they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aotc.verify.arrays import Array, reshape

PAGE_BITS = 10
PAGE_BYTES = 1 << PAGE_BITS
_MISSING = -1
_LARGEST_SPREAD = 4  # pages in a table of those around, for each that is looked up


class Pages:
    """Say which pages are held, and where: those touched first come first."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._ascending = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)  # of the pages in `_ascending`

    @property
    def size_bytes(self) -> int:
        """How large all that is held is."""
        return len(self.numbers) * PAGE_BYTES

    def copy(self) -> Pages:
        """Return the same pages, to hold others from here on."""
        made = Pages()
        made.numbers = list(self.numbers)
        made._ascending, made._slots = (
            self._ascending,
            self._slots,
        )  # which are replaced, never changed
        return made

    def places(self, offsets: Array, hold: Callable[[Array], None] | None = None) -> Array:
        """Return where bytes at offsets (n,) are.

        With the pages that are not held, each once, in order, `hold` is called first: it holds them.
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
        moved = (slots - pages) << PAGE_BITS
        if is_in_runs:
            moved = np.repeat(moved, np.diff(starts, append=offsets.size))
        return offsets + moved

    def runs(
        self, offsets: Array, size_bytes: int, hold: Callable[[Array], None]
    ) -> tuple[Array, Array]:
        """Return where runs of bytes at offsets (n,) are, in parts, and how long each part is.

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
        """Hold pages that are not held yet, each once, in order, after the others."""
        at = np.searchsorted(self._ascending, pages)
        slots = np.arange(len(pages)) + len(self.numbers)
        self._ascending = np.insert(self._ascending, at, pages)
        self._slots = np.insert(self._slots, at, slots)
        self.numbers += pages.tolist()

    def slots(self, pages: Array) -> Array:
        """Return where pages that are held are, counted in pages."""
        return self._slots[np.searchsorted(self._ascending, pages)]

    def _find(self, pages: Array) -> Array:
        """Return where pages are, counted in pages; `_MISSING` for those that are not held."""
        if not (self.numbers and pages.size):
            return np.full(pages.shape, _MISSING)
        low, high = pages.min(), pages.max()
        if high - low < _LARGEST_SPREAD * pages.size:
            first, end = np.searchsorted(self._ascending, [low, high + 1])
            table = np.full(high - low + 1, _MISSING)
            table[self._ascending[first:end] - low] = self._slots[first:end]
            return table[pages - low]
        at = np.minimum(np.searchsorted(self._ascending, pages), len(self.numbers) - 1)
        return np.where(self._ascending[at] == pages, self._slots[at], _MISSING)


@dataclass(frozen=True, slots=True)
class Runs:
    """Say where a box is: runs of `length` elements at addresses, in cells from `firsts` on.

    With `counts` these are parts of such runs, as pages hold them.
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
