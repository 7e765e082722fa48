"""Archives with some bytes changed, and matching checksums.

The header and the root are stored uncompressed and edited in place. The index of a kernel is decompressed
from its frame, edited, and stored in a new frame.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest
import zstandard

from aotc.package.archive.archive_root import Header, header_digest, root_digests
from aotc.package.archive.code_filter import filtered
from aotc.package.archive.file import decode
from aotc.package.archive.index import (
    ArchiveError,
)
from aotc.package.archive.layout import (
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    FEATURE_ZSTD,
    HEADER,
    KERNEL_SECTIONS,
    PLACE,
    RECORDS,
    ROOT_SECTIONS,
    SHA256_BYTES,
    SHA256_OFFSET,
)

ROOT = -1
"""In place of a kernel's number: the root of the archive."""


def _header(data: bytes) -> Header:
    return Header(0, int.from_bytes(data[48:56], "little"))


def root_at(data: bytes) -> int:
    """Return where the root of an archive begins."""
    return _header(data).root_at


def root_end(data: bytes) -> int:
    """Return where the root of an archive ends."""
    return _header(data).digests_at


def place(data: bytes, name: str, kernel: int = ROOT) -> tuple[int, int]:
    """Return the offset of a section and its number of records: in the file, or in an index."""
    names = ROOT_SECTIONS if kernel == ROOT else KERNEL_SECTIONS
    start = root_at(data) if kernel == ROOT else 0
    table = data if kernel == ROOT else index_of(data, kernel)
    entry = start + DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * names.index(name)
    _, _, offset, count = DIRECTORY_ENTRY.unpack_from(table, entry)
    return start + offset, count


def field(data: bytes, name: str, record: int, offset: int, kernel: int = ROOT) -> int:
    """Return the offset of a field of a record: in the file, or in the index of a kernel."""
    return place(data, name, kernel)[0] + RECORDS[name].size * record + offset


def _records(data: bytes, name: str, kernel: int = ROOT) -> list[tuple[Any, ...]]:
    offset, count = place(data, name, kernel)
    table = data if kernel == ROOT else index_of(data, kernel)
    layout = RECORDS[name]
    return [layout.unpack_from(table, offset + layout.size * number) for number in range(count)]


def places_of(data: bytes) -> list[tuple[int, int, int, int]]:
    """Return each reference to a frame: kernel, frame number, offset of the frame, offset of the reference."""
    places: list[tuple[int, int, int, int]] = []
    for kernel, (_, count, offset, stored_bytes, *_) in enumerate(_records(data, "ENTRIES")):
        for frame in range(count):
            position = offset + stored_bytes + PLACE.size * frame
            places.append((kernel, frame, PLACE.unpack_from(data, position)[0], position))
    return places


def frame_rows(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return offset, stored size, decoded size and digest of each frame: indices, then blobs."""
    rows = [row[2:] for row in _records(data, "ENTRIES")]
    blobs = {o: (o, *_records(data, "FRAMES", k)[frame]) for k, frame, o, _ in places_of(data)}
    return [*rows, *(blobs[offset] for offset in sorted(blobs))]


@lru_cache(maxsize=64)
def index_of(data: bytes, kernel: int) -> bytes:
    """Return the index of a kernel, decoded."""
    offset, stored_bytes, raw_bytes, _ = _records(data, "ENTRIES")[kernel][2:]
    frame = data[offset : offset + stored_bytes]
    return zstandard.decompress(frame, raw_bytes) if data[16] & FEATURE_ZSTD else frame


def num_kernels(data: bytes) -> int:
    return place(data, "ENTRIES")[1]


def _compressed(content: bytes) -> tuple[bytes, int]:
    return zstandard.ZstdCompressor(1, write_checksum=False).compress(content), len(content)


def with_contents(data: bytes, contents: Mapping[int, bytes]) -> bytes:
    """Return the archive with other contents of frames, every offset and checksum being right."""
    return with_frames(data, {n: _compressed(content) for n, content in contents.items()})


def with_frames(data: bytes, frames: Mapping[int, tuple[bytes, int]]) -> bytes:
    """Return the archive with other frames, each with its declared raw size.

    Indices outside `frames` get the new records of the blobs in it.
    """
    rows = frame_rows(data)
    stored = [(data[start : start + size], raw_bytes) for start, size, raw_bytes, _ in rows]
    numbers = {row[0]: number for number, row in enumerate(rows)}
    for kernel, frame, offset, _ in places_of(data):
        changed = frames.get(numbers[offset])
        if changed is not None and kernel not in frames:
            old = zstandard.decompress(stored[kernel][0], stored[kernel][1])
            field_offset = field(data, "FRAMES", frame, 0, kernel)
            stored[kernel] = _compressed(patched(old, field_offset, _frame_record(*changed)))
    for number, changed in frames.items():
        stored[number] = changed
    end = _header(data).end
    head = bytearray(data[:end])
    counts = [row[1] for row in _records(data, "ENTRIES")] + [0] * len(stored)
    offsets: list[int] = []
    for (frame, _), count in zip(stored, counts, strict=False):
        offsets.append(end)
        end += len(frame) + PLACE.size * count
    parts = [frame for frame, _ in stored]
    for kernel in range(num_kernels(data)):
        record = PLACE.pack(offsets[kernel]) + _frame_record(*stored[kernel])
        at = field(data, "ENTRIES", kernel, 8)
        head[at : at + len(record)] = record
    for kernel, _, offset, _ in places_of(data):
        parts[kernel] += PLACE.pack(offsets[numbers[offset]])
    struct.pack_into("<Q", head, 32, end)
    return resealed(bytes(head) + b"".join(parts))


def _frame_record(frame: bytes, raw_bytes: int) -> bytes:
    return RECORDS["FRAMES"].pack(len(frame), raw_bytes, hashlib.sha256(frame).digest())


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def with_index(data: bytes, kernel: int, offset: int, new: bytes) -> bytes:
    """Return the archive with other bytes in the index of a kernel, every checksum being right."""
    return with_contents(data, {kernel: patched(index_of(data, kernel), offset, new)})


def with_field(
    data: bytes, name: str, record: int, start: int, new: bytes, kernel: int = ROOT
) -> bytes:
    """Return the archive with another field of a record, every checksum being right."""
    offset = field(data, name, record, start, kernel)
    if kernel == ROOT:
        return resealed(patched(data, offset, new))
    return with_index(data, kernel, offset, new)


def resealed(data: bytes) -> bytes:
    """Return the file with the checksums of its root made right, where there is room for them."""
    blank = patched(data, SHA256_OFFSET, bytes(SHA256_BYTES))
    header = _header(data)
    root = data[header.root_at : header.digests_at]
    digests, seals = root_digests(root)
    if header.end <= len(data):
        blank = patched(patched(blank, HEADER.size, seals), header.digests_at, digests)
    digest = header_digest(blank[: HEADER.size], blank[HEADER.size : header.root_at], root)
    return patched(blank, SHA256_OFFSET, digest)


def of_cuda_12(cubin: bytes) -> bytes:
    """Return a cubin with the header that the ptxas of CUDA 12 writes for GPUs before sm_100."""
    arch = cubin[49]
    flags = (arch << 16 | 0x0500 | arch).to_bytes(4, "little")
    return patched(patched(cubin, 7, bytes([51, 7])), 48, flags)


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
    """Return such an archive with another frame of declared raw size `raw_bytes`."""
    sized = with_field(data, "BLOBS", 0, 8, u32(raw_bytes), 0)
    return with_frames(sized, {1: (frame, raw_bytes)})
