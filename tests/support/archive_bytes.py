"""Archives with some bytes changed, and checksums that fit."""

from __future__ import annotations

import hashlib
import struct

import pytest
import zstandard

from aotc.package.archive import decode
from aotc.package.index import (
    ArchiveError,
)
from aotc.package.records import RECORDS

SECTIONS = list(RECORDS)


def section(data: bytes, name: str) -> tuple[int, int]:
    """Return the offset of a section in the file and its number of records."""
    entry = 128 + 8 + 16 * SECTIONS.index(name)
    _, _, offset, count = struct.unpack_from("<IIII", data, entry)
    return 128 + offset, count


def field(data: bytes, name: str, index: int, at: int) -> int:
    """Return the offset in the file of a field of a record."""
    return section(data, name)[0] + RECORDS[name].size * index + at


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def resealed(data: bytes) -> bytes:
    """Return the file with the checksum of its index made right."""
    end = 128 + int.from_bytes(data[48:56], "little")
    blank = patched(data, 56, bytes(32))
    return patched(data, 56, hashlib.sha256(blank[:end]).digest())


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def refusal(data: bytes) -> ArchiveError:
    with pytest.raises(ArchiveError) as error:
        decode(data)
    return error.value


def with_blob(data: bytes, content: bytes, *, level: int = 3, **options: bool) -> bytes:
    """Return a one-blob archive whose blob is replaced, every checksum being right."""
    frame = zstandard.ZstdCompressor(level, **options).compress(content)
    return with_frame(data, frame, len(content))


def with_frame(data: bytes, frame: bytes, raw_bytes: int) -> bytes:
    at = field(data, "BLOBS", 0, 0)
    offset = int.from_bytes(data[at : at + 8], "little")
    sizes = struct.pack("<QII", offset, len(frame), raw_bytes)
    data = patched(data, at, sizes + hashlib.sha256(frame).digest())
    data = data[:offset] + frame
    return resealed(patched(data, 32, len(data).to_bytes(8, "little")))
