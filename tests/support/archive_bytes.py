"""Archives with some bytes changed, and checksums that fit.

What is changed lies in the header and the root, which stand in the file as they are, or in the index of
a kernel, which is taken out of its frame and put back in a new one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from functools import lru_cache

import pytest
import zstandard

from aotc.package.archive import decode
from aotc.package.archive_root import root_digests
from aotc.package.code_filter import filtered
from aotc.package.index import (
    ArchiveError,
)
from aotc.package.records import (
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    HEADER,
    KERNEL_SECTIONS,
    RECORDS,
    ROOT_SECTIONS,
    SHA256_BYTES,
    SHA256_OFFSET,
)

ROOT = -1
"""In place of a kernel's number: the root of the archive."""


def root_end(data: bytes) -> int:
    """Return where the root of an archive ends."""
    return HEADER.size + int.from_bytes(data[48:56], "little")


def digests_of(data: bytes) -> bytes:
    """Return the digests of the root's pieces, and of theirs, as they follow it."""
    return b"".join(root_digests(data[HEADER.size : root_end(data)]))


def place(data: bytes, name: str, kernel: int = ROOT) -> tuple[int, int]:
    """Return the offset of a section and its number of records: in the file, or in an index."""
    names = ROOT_SECTIONS if kernel == ROOT else KERNEL_SECTIONS
    start = HEADER.size if kernel == ROOT else 0
    table = data if kernel == ROOT else index_of(data, kernel)
    entry = start + DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * names.index(name)
    _, _, offset, count = DIRECTORY_ENTRY.unpack_from(table, entry)
    return start + offset, count


def field(data: bytes, name: str, record: int, at: int, kernel: int = ROOT) -> int:
    """Return the offset of a field of a record: in the file, or in the index of a kernel."""
    return place(data, name, kernel)[0] + RECORDS[name].size * record + at


def frame_rows(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return offset, stored size, decoded size and digest of each frame."""
    layout = RECORDS["FRAMES"]
    at, count = place(data, "FRAMES")
    return [layout.unpack_from(data, at + layout.size * number) for number in range(count)]


@lru_cache(maxsize=64)
def index_of(data: bytes, kernel: int) -> bytes:
    """Return the index of a kernel, decoded."""
    offset, stored_bytes, raw_bytes, _ = frame_rows(data)[kernel]
    return zstandard.decompress(data[offset : offset + stored_bytes], raw_bytes)


def num_kernels(data: bytes) -> int:
    return place(data, "ENTRIES")[1]


def with_contents(data: bytes, contents: Mapping[int, bytes]) -> bytes:
    """Return the archive with other contents of frames, every offset and checksum being right."""
    compressor = zstandard.ZstdCompressor(1, write_checksum=False)
    return with_frames(data, {n: (compressor.compress(c), len(c)) for n, c in contents.items()})


def with_frames(data: bytes, frames: Mapping[int, tuple[bytes, int]]) -> bytes:
    """Return the archive with other frames, given with the size that each is said to decode to."""
    root = root_end(data)
    end = root + len(digests_of(data))
    head = bytearray(data[:end])
    layout = RECORDS["FRAMES"]
    at, _ = place(data, "FRAMES")
    stored: list[bytes] = []
    for number, (offset, stored_bytes, raw_bytes, _) in enumerate(frame_rows(data)):
        old = (data[offset : offset + stored_bytes], raw_bytes)
        frame, decoded_bytes = frames.get(number, old)
        row = (end, len(frame), decoded_bytes, hashlib.sha256(frame).digest())
        layout.pack_into(head, at + layout.size * number, *row)
        end += len(frame)
        stored.append(frame)
    struct.pack_into("<Q", head, 32, end)
    return resealed(bytes(head) + b"".join(stored))


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def with_index(data: bytes, kernel: int, at: int, new: bytes) -> bytes:
    """Return the archive with other bytes in the index of a kernel, every checksum being right."""
    return with_contents(data, {kernel: patched(index_of(data, kernel), at, new)})


def with_field(
    data: bytes, name: str, record: int, at: int, new: bytes, kernel: int = ROOT
) -> bytes:
    """Return the archive with another field of a record, every checksum being right."""
    offset = field(data, name, record, at, kernel)
    if kernel == ROOT:
        return resealed(patched(data, offset, new))
    return with_index(data, kernel, offset, new)


def resealed(data: bytes) -> bytes:
    """Return the file with the checksum of its root made right."""
    blank = patched(data, SHA256_OFFSET, bytes(SHA256_BYTES))
    pieces, sealed = root_digests(data[HEADER.size : root_end(data)])
    digest = hashlib.sha256(blank[: HEADER.size] + sealed).digest()
    whole = patched(data, root_end(data), pieces + sealed) if root_end(data) < len(data) else data
    return patched(whole, SHA256_OFFSET, digest)


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def refusal(data: bytes) -> ArchiveError:
    with pytest.raises(ArchiveError) as error:
        decode(data)
    return error.value


def with_blob(data: bytes, content: bytes, *, level: int = 3) -> bytes:
    """Return an archive of one kernel with one cubin with another one, every checksum being right."""
    frame = zstandard.ZstdCompressor(level).compress(filtered([content]))
    return with_frame(data, frame, len(content))


def with_frame(data: bytes, frame: bytes, raw_bytes: int) -> bytes:
    """Return such an archive with another frame, which is said to decode to `raw_bytes`."""
    sized = with_field(data, "BLOBS", 0, 8, u32(raw_bytes), 0)
    return with_frames(sized, {1: (frame, raw_bytes)})
