"""The pages of a large memory that are held, and where: what nothing touches takes no room.

Invariant: what is kept grows with the pages that are held, not with how far apart they are.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import Array

PAGE_BITS = 10
PAGE_BYTES = 1 << PAGE_BITS


class Pages:
    """Say which pages are held, and where: those touched first come first."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._ascending = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)  # of the pages in `_ascending`

    def missing(self, offsets: Array) -> Array:
        """Return the pages of offsets in bytes that are not held, each once, in order."""
        pages = offsets >> PAGE_BITS
        if not self.numbers:
            return np.unique(pages)
        at = np.searchsorted(self._ascending, pages)
        is_held = self._ascending[np.minimum(at, len(self.numbers) - 1)] == pages
        return np.unique(pages[~is_held])

    def hold(self, pages: Array) -> None:
        """Hold pages that are not held yet, each once, behind the others."""
        slots = np.arange(len(pages)) + len(self.numbers)
        ascending = np.concatenate([self._ascending, pages])
        order = np.argsort(ascending)
        self._ascending = ascending[order]
        self._slots = np.concatenate([self._slots, slots])[order]
        self.numbers += pages.tolist()

    def slots(self, pages: Array) -> Array:
        """Return where pages that are held are, counted in pages."""
        return self._slots[np.searchsorted(self._ascending, pages)]

    def places(self, offsets: Array) -> Array:
        """Return where bytes at offsets, in pages that are held, are."""
        return (self.slots(offsets >> PAGE_BITS) << PAGE_BITS) | (offsets & (PAGE_BYTES - 1))
