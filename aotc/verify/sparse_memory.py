"""Allocate zeros that take memory page by page, as they are written.

The size may far exceed a machine's memory, so nothing is reserved. Where the operating system
counts all allocations (`vm.overcommit_memory = 2`), a sparse file replaces them.

Invariant: whether there is room depends on the written pages, not on their distance.
"""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import numpy.typing as npt

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python names it from 3.13 on


def sparse_zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return writable zeros. Raises: MemoryError."""
    try:
        room = _unreserved(size_bytes)
    except OSError:
        try:
            room = _in_file(size_bytes)
        except OSError as error:
            raise MemoryError(str(error)) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, np.uint8)


def _unreserved(size_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return mmap.mmap(-1, size_bytes, flags=flags)


def _in_file(size_bytes: int) -> mmap.mmap:
    """Map an unnamed file, which takes no room until it is written to."""
    with tempfile.TemporaryFile() as file:
        file.truncate(size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)
