"""Read the header and root of an archive: kernels by name, and their frames' offsets.

Invariant: no frame is decoded before its offset, sizes and digest are verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import zstandard

from aotc.package.archive.index import (
    ArchiveError,
)
from aotc.package.archive.layout import (
    BYTE_SECTIONS,
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    FEATURE_ZSTD,
    HEADER,
    KINDS,
    KNOWN_FEATURES,
    LIMITS,
    MAGIC,
    MAJOR,
    MINOR,
    PLACE,
    RECORD_ALIGN,
    RECORDS,
    ROOT_PIECE_BYTES,
    ROOT_SECTIONS,
    SECTION_ALIGN,
    SHA256_BYTES,
    SHA256_OFFSET,
    STORED_ALIGN,
    ZSTD_MAGIC,
)


def _decompress(frame: bytes, raw_bytes: int) -> bytes:
    """Decode a frame to exactly the size in its header."""
    try:
        if not frame.startswith(ZSTD_MAGIC):
            raise ArchiveError("FORMAT", "a frame is no zstd frame")
        stated = zstandard.get_frame_parameters(frame)
        if stated.content_size != raw_bytes or stated.dict_id or stated.has_checksum:
            raise ArchiveError("FORMAT", "a zstd frame does not state the size that was written")
        decompressor = zstandard.ZstdDecompressor()
        return decompressor.decompress(frame, raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ArchiveError("FORMAT", f"a frame does not decode: {error}") from None


_MOST_RECORDS = {
    "ENTRIES": LIMITS.kernels,
    "VARIANTS": LIMITS.variants,
    "TARGETS": LIMITS.targets,
}


class Header(NamedTuple):
    """Hold the fields of a checked header for decoding."""

    minor: int
    root_bytes: int
    is_compressed: bool = True

    @property
    def root_at(self) -> int:
        """Offset of the root, after the seals."""
        return HEADER.size + digest_bytes(digest_bytes(self.root_bytes))

    @property
    def digests_at(self) -> int:
        """Offset of the digests of the root's pieces, after the root."""
        return self.root_at + self.root_bytes

    @property
    def end(self) -> int:
        """Offset of the end of these digests."""
        return self.digests_at + digest_bytes(self.root_bytes)


def digest_bytes(size_bytes: int) -> int:
    """Return the size of the piece digests of `size_bytes` bytes."""
    return SHA256_BYTES * -(-size_bytes // ROOT_PIECE_BYTES)


def unpack_header(data: bytes, actual_bytes: int) -> Header:
    """Check the header at the start of `data`; the file has `actual_bytes` bytes."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise ArchiveError("FORMAT", "not an archive: it does not start with the archive header")
    (_, major, minor, header_bytes, required, optional, file_bytes, *rest) = HEADER.unpack_from(
        data
    )
    root_offset, root_bytes, _, zero = rest
    if major != MAJOR:
        remedy = "build it again with this aotc" if major < MAJOR else "use a newer aotc"
        knows = f"this reader knows {MAJOR}.{MINOR}: {remedy}"
        message = f"the archive has format {major}.{minor}, {knows}"
        raise ArchiveError("VERSION", message)
    unknown = required & ~KNOWN_FEATURES
    if unknown:
        bits = ", ".join(str(bit) for bit in range(64) if unknown >> bit & 1)
        message = f"format {major}.{minor} needs features unknown to {MAJOR}.{MINOR}: bits {bits}"
        raise ArchiveError("VERSION", message)
    if header_bytes != HEADER.size or any(zero):
        raise ArchiveError("FORMAT", "the header's fixed fields are wrong")
    if minor <= MINOR and optional:
        raise ArchiveError(
            "FORMAT", "the header has optional features that its version does not have"
        )
    if root_bytes > LIMITS.index_bytes or file_bytes > LIMITS.file_bytes:
        message = f"the header says {file_bytes} bytes with a root of {root_bytes}"
        limits = f"at most {LIMITS.file_bytes} and {LIMITS.index_bytes}"
        raise ArchiveError("LIMIT", f"{message}, {limits}")
    if file_bytes != actual_bytes:
        difference = "truncated" if file_bytes > actual_bytes else "followed by other bytes"
        message = f"the archive is {difference}: {actual_bytes} bytes of {file_bytes}"
        raise ArchiveError("FORMAT", message)
    header = Header(minor, root_bytes, bool(required & FEATURE_ZSTD))
    if root_bytes % SECTION_ALIGN or header.end > actual_bytes:
        raise ArchiveError("FORMAT", "the root is not a multiple of 8 bytes inside the file")
    if root_offset != header.root_at:
        raise ArchiveError("FORMAT", "the root does not begin where the seals end")
    return header


def piece_digests(data: bytes) -> bytes:
    """Return the concatenated SHA-256 digests of the pieces."""
    pieces = range(0, len(data), ROOT_PIECE_BYTES)
    return b"".join(
        hashlib.sha256(data[start : start + ROOT_PIECE_BYTES]).digest() for start in pieces
    )


def root_digests(root: bytes) -> tuple[bytes, bytes]:
    """Return the digests of the root's pieces, and the seals: the digests of these digests."""
    digests = piece_digests(root)
    return digests, piece_digests(digests)


def header_digest(header: bytes, seals: bytes, root: bytes) -> bytes:
    """Return the digest of the header without its own digest, the seals and the root's directory."""
    section_count = int.from_bytes(root[:4], "little")
    directory = root[: DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * section_count]
    return hashlib.sha256(header + seals + directory).digest()


def read_header(data: bytes, file_bytes: int | None = None) -> Header:
    """Check the header and the checksums of the root, in the order of the format.

    `data` may end with the digests of the root; `file_bytes` is then the size of the whole file.
    """
    header = unpack_header(data, len(data) if file_bytes is None else file_bytes)
    sha256_end = SHA256_OFFSET + SHA256_BYTES
    blank = data[:SHA256_OFFSET] + bytes(SHA256_BYTES) + data[sha256_end : HEADER.size]
    seals = data[HEADER.size : header.root_at]
    root = data[header.root_at : header.digests_at]
    digests = data[header.digests_at : header.end]
    digest = header_digest(blank, seals, root)
    if digest != data[SHA256_OFFSET:sha256_end] or root_digests(root) != (digests, seals):
        raise ArchiveError("CHECKSUM", "the SHA-256 of the root does not match: the file changed")
    return header


_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def slots(names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the hash table of kernel names: (tag, 1 + number) for each slot."""
    size = 1 << (2 * len(names) - 1).bit_length() if names else 0
    table = [(0, 0)] * size
    for number, name in enumerate(names, 1):
        name_hash = _FNV_OFFSET
        for byte in name.encode():
            name_hash = (name_hash ^ byte) * _FNV_PRIME & 0xFFFF_FFFF_FFFF_FFFF
        slot = name_hash % size
        while table[slot][1]:
            slot = (slot + 1) % size
        table[slot] = name_hash >> 32, number
    return table


def _read_sections(
    index: bytes, names: tuple[str, ...], minor: int
) -> dict[str, tuple[int, int, int]]:
    """Return the record size, offset and count of every section."""
    if len(index) < DIRECTORY_HEAD.size:
        raise ArchiveError("FORMAT", "the index has no directory")
    count, zero = DIRECTORY_HEAD.unpack_from(index)
    is_valid_count = count == len(names) if minor <= MINOR else count >= len(names)
    end = DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * count
    if not is_valid_count or zero or end > len(index):
        raise ArchiveError("FORMAT", f"the index has {count} sections, expected {len(names)}")
    sections: dict[str, tuple[int, int, int]] = {}
    for position in range(count):
        # Skip sections of a newer minor version; they come last.
        is_known = position < len(names)
        name = names[position] if is_known else f"section {position + 1}"
        expected = KINDS[name] if is_known else len(KINDS) + 1 + position - len(names)
        entry_offset = DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * position
        kind, record_bytes, offset, records = DIRECTORY_ENTRY.unpack_from(index, entry_offset)
        if kind != expected or not _is_record_size(name, record_bytes, minor):
            raise ArchiveError("FORMAT", f"section {position + 1} is not {name}")
        size_bytes = record_bytes * records
        if size_bytes > LIMITS.index_bytes or records > _MOST_RECORDS.get(name, records):
            raise ArchiveError("LIMIT", f"{name} has {records} records")
        if offset != end:
            raise ArchiveError("FORMAT", f"{name} does not begin where the section before ends")
        end = -(-(offset + size_bytes) // SECTION_ALIGN) * SECTION_ALIGN
        if end > len(index):
            raise ArchiveError("FORMAT", f"{name} reaches beyond the index")
        if any(index[offset + size_bytes : end]):
            raise ArchiveError("FORMAT", f"the padding after {name} is not zero")
        sections[name] = record_bytes, offset, records
    if end != len(index):
        raise ArchiveError("FORMAT", "the index goes on after its last section")
    return sections


def _is_record_size(name: str, record_bytes: int, minor: int) -> bool:
    """Return whether a section's records may have this size; newer minor versions have longer ones."""
    if name not in RECORDS:
        return True
    size = RECORDS[name].size
    grows = minor > MINOR and name not in BYTE_SECTIONS and record_bytes > size
    return record_bytes == size or (grows and record_bytes % RECORD_ALIGN[name] == 0)


def limit(counted: str, count: int, most: int) -> None:
    """Check a count. Raises: `ArchiveError`."""
    if count > most:
        raise ArchiveError("LIMIT", f"{count} {counted}, at most {most}")


class Tables:
    """Read the rows of the tables in a directory."""

    def __init__(self, index: bytes, names: tuple[str, ...], minor: int) -> None:
        self.sections = _read_sections(index, names, minor)
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        for name, (record_bytes, offset, count) in self.sections.items():
            if name in RECORDS and name not in BYTE_SECTIONS:
                unpack = RECORDS[name].unpack_from
                row_offsets = range(offset, offset + record_bytes * count, record_bytes)
                self.rows[name] = [unpack(index, position) for position in row_offsets]
        _, offset, count = self.sections["STRINGS"]
        self.texts = self.read_strings(index[offset : offset + count])

    @staticmethod
    def read_strings(section: bytes) -> dict[int, str]:
        """Map offsets to strings."""
        if not section.endswith(b"\0"):
            raise ArchiveError("FORMAT", "STRINGS does not end with NUL")
        texts: dict[int, str] = {}
        offset = 0
        previous: bytes | None = None
        try:
            for text in section[:-1].split(b"\0"):
                if previous is not None and text <= previous:
                    raise ArchiveError("FORMAT", f"the string at {offset} is not in order")
                previous = text
                texts[offset] = text.decode()
                offset += len(text) + 1
        except UnicodeDecodeError:
            raise ArchiveError("FORMAT", f"the string at {offset} is not UTF-8") from None
        return texts

    def text(self, offset: int) -> str:
        if offset not in self.texts:
            raise ArchiveError("FORMAT", f"there is no string at {offset}")
        return self.texts[offset]


class Root(Tables):
    """Read the root of an archive: kernels by name, and the offsets of their frames.

    Indices are read first, then the frames of blobs, kernel by kernel, then `check_end` is called.
    Frames not read before must follow one another.
    """

    def __init__(self, data: bytes, header: Header) -> None:
        """Read the tables of an archive with a checked header; no frame is read."""
        self.data = data
        self.minor = header.minor
        self.is_compressed = header.is_compressed
        root = data[header.root_at : header.digests_at]
        super().__init__(root, ROOT_SECTIONS, header.minor)
        if len(self.rows["ARCHIVE"]) != 1:
            raise ArchiveError("FORMAT", "there is not one ARCHIVE record")
        self.end = header.end
        self.decoded_bytes = 0
        self.check_entries()
        self.frames: dict[bytes, bytes] = {}
        self.seen: dict[int, tuple[tuple[int, int, bytes], bytes]] = {}
        self.has_shared_frames = False

    def check_entries(self) -> None:
        """Check that the indices of the kernels follow one another."""
        before = -1
        names: list[str] = []
        for name, frame_count, offset, *frame in self.rows["ENTRIES"]:
            stored_bytes, raw_bytes, _ = frame[:3]
            names.append(self.text(name))
            self.check_sizes(stored_bytes, raw_bytes, LIMITS.index_bytes)
            if name <= before:
                raise ArchiveError("FORMAT", "two kernel names are equal or out of order")
            before = name
            if frame_count > raw_bytes // RECORDS["FRAMES"].size:
                raise ArchiveError("FORMAT", "a kernel has more frames than its index has room for")
            self.pass_frame(offset, stored_bytes + PLACE.size * frame_count, raw_bytes)
        if [row[:2] for row in self.rows["SLOTS"]] != slots(names):
            raise ArchiveError("FORMAT", "SLOTS does not have the kernels in their order")

    def check_sizes(self, stored_bytes: int, raw_bytes: int, most: int) -> None:
        """Check the sizes of a frame."""
        limit("bytes that a frame decodes to", raw_bytes, most)
        if not raw_bytes:
            raise ArchiveError("FORMAT", "a frame decodes to nothing")
        if not self.is_compressed and stored_bytes != raw_bytes:
            raise ArchiveError("FORMAT", "a frame that is not compressed has two sizes")

    def start(self) -> int:
        """Return the offset of the next frame."""
        align = 1 if self.is_compressed else STORED_ALIGN
        return -(-self.end // align) * align

    def pass_frame(self, offset: int, stored_bytes: int, raw_bytes: int) -> None:
        """Check the offset of the next frame, with the bytes after it, before it is decoded."""
        if any(self.data[self.end : self.start()]):
            raise ArchiveError("FORMAT", "the padding before a frame is not zero")
        if offset != self.start() or offset + stored_bytes > len(self.data):
            raise ArchiveError("FORMAT", "the frames do not follow one another in the file")
        self.end = offset + stored_bytes
        self.decoded_bytes += raw_bytes
        limit("bytes that all frames decode to", self.decoded_bytes, LIMITS.decoded_bytes)

    def check_end(self) -> None:
        """Check that the last frame ends the file."""
        if self.end != len(self.data):
            raise ArchiveError("FORMAT", "the file goes on after its last frame")

    def places(self, number: int) -> list[int]:
        """Return the offsets of the frames of a kernel's blobs."""
        _, frame_count, offset, stored_bytes, *_ = self.rows["ENTRIES"][number]
        end = offset + stored_bytes
        return [
            int(PLACE.unpack_from(self.data, end + PLACE.size * frame)[0])
            for frame in range(frame_count)
        ]

    def read_index(self, number: int) -> bytes:
        """Verify and decode the index of a kernel."""
        name, _, offset, *frame = self.rows["ENTRIES"][number]
        stored_bytes, raw_bytes, digest = frame[:3]
        description = f"the index of {self.text(name)!r}"
        return self.read_frame(offset, (stored_bytes, raw_bytes, digest), description)

    def read_blobs(self, offset: int, frame: tuple[int, int, bytes]) -> bytes:
        """Verify and decode a frame of blobs once, and cache it."""
        if offset != self.start() and self.seen.get(offset, ((), b""))[0] == frame:
            return self.seen[offset][1]
        self.pass_frame(offset, *frame[:2])
        content = self.read_frame(offset, frame, f"the frame at {offset}")
        self.seen[offset] = frame, content
        return content

    def read_frame(self, offset: int, frame: tuple[int, int, bytes], description: str) -> bytes:
        """Verify and decode a frame at a checked offset."""
        stored_bytes, raw_bytes, digest = frame
        stored = self.data[offset : offset + stored_bytes]
        if hashlib.sha256(stored).digest() != digest:
            raise ArchiveError(
                "CHECKSUM", f"the SHA-256 of {description} does not match: the file changed"
            )
        content = _decompress(stored, raw_bytes) if self.is_compressed else stored
        self.frames[content] = stored
        return content
