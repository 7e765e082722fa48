"""Keep compressed frames of archives: compressing takes most of a build that compiles nothing.

A frame is found by what it was made of: its content, the level, and the zstd that made it. So what comes
from here is what would be made, byte for byte.

Invariant: an entry that is damaged, in the wrong place, or cannot be read or written, costs a
compression and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from pathlib import Path

import zstandard

from aotc.package.records import LIMITS
from aotc.regular_file import read_regular

KIND = "frames"
"""Folder of the entries, in that of a cache."""

_DIGEST_BYTES = 32


def _digest(name: str, frame: bytes) -> bytes:
    """Return the digest of an entry, which is bound to the name of its file."""
    return hashlib.sha256(name.encode() + frame).digest()


class FrameCache:
    """A folder of frames; any number of threads and processes may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / KIND

    def find(self, content: bytes, level: int) -> bytes | None:
        """Return the frame of a content, or None."""
        path = self._path(content, level)
        try:
            data = read_regular(path, LIMITS.blob_bytes)
        except OSError:
            return None
        digest, frame = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return frame if _digest(path.name, frame) == digest else None

    def store(self, content: bytes, level: int, frame: bytes) -> None:
        """Keep the frame of a content, if there is room."""
        path = self._path(content, level)
        temporary = path.with_name(f".{path.name[:16]}.{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(_digest(path.name, frame) + frame)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def _path(self, content: bytes, level: int) -> Path:
        made_by = ".".join(map(str, zstandard.ZSTD_VERSION))
        key = hashlib.sha256(f"{made_by} {level} ".encode())
        key.update(content)
        name = key.hexdigest()
        return self._folder / name[:2] / name
