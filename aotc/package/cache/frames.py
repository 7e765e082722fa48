"""Cache compressed frames of archives: compressing dominates a build without compiles.

A frame's key is its content, the level, and the zstd version. So a cached frame equals a new one
byte for byte. A cache shared by machines stores the entries of a build in few objects (`store.py`),
which are passed in and out of this one.

Invariant: an entry that is damaged, misplaced, of another content, or cannot be read or written,
only costs a compression.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

import zstandard

from aotc.package.archive.layout import LIMITS
from aotc.package.cache.entry import write_entry
from aotc.regular_file import read_regular

KIND = "frames"
"""Folder of the entries within the cache's."""

_DIGEST_BYTES = 32


def _digest(name: str, frame: bytes) -> bytes:
    """Return the digest of an entry, including the name of its file."""
    return hashlib.sha256(name.encode() + frame).digest()


class FrameCache:
    """A folder of frames; any number of threads and processes may share it.

    `used` maps names to the entries of all frames found or stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / KIND
        self._fetched: dict[str, bytes] = {}
        self.used: dict[str, bytes] = {}

    def add(self, fetched: Mapping[str, bytes]) -> None:
        """Add entries by name from another machine; they are not written to the folder."""
        self._fetched.update(fetched)

    def find(self, content: bytes, level: int) -> bytes | None:
        """Return the frame of a content, or None."""
        name = _name(content, level)
        data = self._fetched.get(name, b"")
        frame = _frame(name, data)
        if frame is None or not _is_of(frame, content):
            data = self._read(name)
            frame = _frame(name, data)
        if frame is not None:
            self.used[name] = data
        return frame

    def store(self, content: bytes, level: int, frame: bytes) -> None:
        """Store the frame of a content, if there is room."""
        name = _name(content, level)
        self.used[name] = _digest(name, frame) + frame
        self._write(name, self.used[name])

    def _read(self, name: str) -> bytes:
        try:
            return read_regular(self._path(name), LIMITS.blob_bytes)
        except OSError:
            return b""

    def _write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            write_entry(self._path(name), data)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name


def _name(content: bytes, level: int) -> str:
    made_by = ".".join(map(str, zstandard.ZSTD_VERSION))
    key = hashlib.sha256(f"{made_by} {level} ".encode())
    key.update(content)
    return key.hexdigest()


def _frame(name: str, data: bytes) -> bytes | None:
    """Return the frame in an entry, or None if it is damaged or misplaced."""
    digest, frame = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return frame if _digest(name, frame) == digest else None


def _is_of(frame: bytes, content: bytes) -> bool:
    try:
        if zstandard.frame_content_size(frame) != len(content):
            return False
        return zstandard.decompress(frame) == content
    except zstandard.ZstdError:
        return False
