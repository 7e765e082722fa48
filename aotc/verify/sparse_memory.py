"""Zeros that take memory page by page, as they are written to: rows may lie far apart.

How much is asked for may be far more than a machine has, so nothing is reserved. Where the kernel
counts all that is asked for (`vm.overcommit_memory = 2`), a file with holes takes its place.

Invariant: whether there is room depends on what is written, not on how far apart it is.
"""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import numpy.typing as npt

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # which Python names from 3.13 on


def sparse_zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return zeros that may be written to. Raises: MemoryError."""
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
    """Map a file that has no name and, until it is written to, takes no room."""
    with tempfile.TemporaryFile() as file:
        file.truncate(size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)
