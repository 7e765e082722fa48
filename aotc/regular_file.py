"""Bounded reads of regular files: sources, manifests, cache entries, archives, earlier outputs.

A path given by a user or named in a file may lead to a FIFO without a writer, to an endless device,
or to a sparse file of terabytes. All reads of such paths are done here: without waiting, only from
regular files, and never more than the caller can use.

Invariant: whatever the path, the outcome is at most `limit_bytes` bytes or an `OSError` with the
problem in `strerror`. The checked file and the read file are one open file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager

MAX_SOURCE_BYTES = 8 << 20
"""Of a kernel's source, and of a manifest."""
MAX_RECORDS_BYTES = 256 << 20
"""Of JSON: what a build writes beside an archive, what a program's launches were recorded or measured as."""

_PIECE_BYTES = 1 << 24
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


def kind_of(mode: int) -> str:
    """Return the kind of a file that is not regular, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


class RegularFile:
    """An open regular file, and its size when it was opened."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = size_bytes

    def read(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes` bytes, fewer at the file's end. Raises: OSError."""
        pieces: list[bytes] = []
        while num_bytes > 0:
            piece = os.read(self._descriptor, min(num_bytes, _PIECE_BYTES))
            if not piece:
                break
            pieces.append(piece)
            num_bytes -= len(piece)
        return b"".join(pieces)


@contextmanager
def open_regular(path: str | os.PathLike[str], limit_bytes: int) -> Generator[RegularFile]:
    """Open a regular file of at most `limit_bytes` bytes, without waiting for anyone.

    Raises: OSError, with EFBIG for a larger file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL, or a name the file system cannot encode
        raise OSError(errno.EINVAL, str(error)) from None
    try:
        status = os.fstat(descriptor)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"expected a regular file, got {kind_of(kind)}")
        if status.st_size > limit_bytes:
            message = f"expected at most {limit_bytes} bytes, got {status.st_size}"
            raise OSError(errno.EFBIG, message)
        yield RegularFile(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises: OSError, as `open_regular`."""
    with open_regular(path, limit_bytes) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:  # it grew
        raise OSError(errno.EFBIG, f"expected at most {limit_bytes} bytes, got more")
    return data
