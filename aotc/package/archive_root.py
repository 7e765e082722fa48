"""Read the header and the root of an archive: its kernels by name, and every frame.

Invariant: no frame is read before its place, its sizes and its digest are known to be right.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import zstandard

from aotc.package.index import (
    ArchiveError,
)
from aotc.package.records import (
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
    """Decode a frame whose header states its size, into exactly that size."""
    try:
        if not frame.startswith(ZSTD_MAGIC):
            raise ArchiveError("FORMAT", "a frame is no zstd frame")
        stated = zstandard.get_frame_parameters(frame)
        if stated.content_size != raw_bytes or stated.dict_id or stated.has_checksum:
            raise ArchiveError("FORMAT", "a zstd frame does not state the size in the root")
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
    """The fields of a checked header that decoding needs."""

    minor: int
    root_bytes: int
    is_compressed: bool = True

    @property
    def sealed(self) -> int:
        """Where the digests begin that the header's is of."""
        return HEADER.size + self.root_bytes + digest_bytes(self.root_bytes)

    @property
    def end(self) -> int:
        """Where the digests of the root end."""
        return self.sealed + digest_bytes(digest_bytes(self.root_bytes))


def digest_bytes(size_bytes: int) -> int:
    """Return how many bytes the digests of so many bytes have."""
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
    if (header_bytes, root_offset) != (HEADER.size, HEADER.size) or any(zero):
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
        what = "truncated" if file_bytes > actual_bytes else "followed by other bytes"
        message = f"the archive is {what}: {actual_bytes} bytes of {file_bytes}"
        raise ArchiveError("FORMAT", message)
    header = Header(minor, root_bytes, bool(required & FEATURE_ZSTD))
    if root_bytes % SECTION_ALIGN or header.end > actual_bytes:
        raise ArchiveError("FORMAT", "the root is not a multiple of 8 bytes inside the file")
    return header


def piece_digests(data: bytes) -> bytes:
    """Return the SHA-256 of each piece, one after the other."""
    pieces = range(0, len(data), ROOT_PIECE_BYTES)
    return b"".join(hashlib.sha256(data[at : at + ROOT_PIECE_BYTES]).digest() for at in pieces)


def root_digests(root: bytes) -> tuple[bytes, bytes]:
    """Return what follows a root: the digests of its pieces, and of theirs, which the header's is of."""
    digests = piece_digests(root)
    return digests, piece_digests(digests)


def read_header(data: bytes, file_bytes: int | None = None) -> Header:
    """Check the header and the index's checksum, in the order that the format gives.

    `data` may end with the digests of the root; `file_bytes` is then the size of the whole file.
    """
    header = unpack_header(data, len(data) if file_bytes is None else file_bytes)
    digest = data[SHA256_OFFSET : SHA256_OFFSET + SHA256_BYTES]
    sha256 = hashlib.sha256(data[:SHA256_OFFSET])
    sha256.update(bytes(SHA256_BYTES))
    sha256.update(memoryview(data)[SHA256_OFFSET + SHA256_BYTES : HEADER.size])
    root_end = HEADER.size + header.root_bytes
    digests = data[root_end : header.sealed], data[header.sealed : header.end]
    sha256.update(digests[1])
    if sha256.digest() != digest or root_digests(data[HEADER.size : root_end]) != digests:
        raise ArchiveError("CHECKSUM", "the SHA-256 of the root does not match: the file changed")
    return header


def _read_sections(
    index: bytes, names: tuple[str, ...], minor: int
) -> dict[str, tuple[int, int, int]]:
    """Return the record size, offset and count of every section."""
    if len(index) < DIRECTORY_HEAD.size:
        raise ArchiveError("FORMAT", "the index has no directory")
    count, zero = DIRECTORY_HEAD.unpack_from(index)
    known = count == len(names) if minor <= MINOR else count >= len(names)
    end = DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * count
    if not known or zero or end > len(index):
        raise ArchiveError("FORMAT", f"the index has {count} sections, expected {len(names)}")
    sections: dict[str, tuple[int, int, int]] = {}
    for position in range(count):
        # Sections that a newer minor version adds after the known ones are skipped.
        is_known = position < len(names)
        name = names[position] if is_known else f"section {position + 1}"
        expected = KINDS[name] if is_known else len(KINDS) + 1 + position - len(names)
        at = DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * position
        kind, record_bytes, offset, records = DIRECTORY_ENTRY.unpack_from(index, at)
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
    """Whether records of a section may have this size; newer minor versions have longer ones."""
    if name not in RECORDS:
        return True
    size = RECORDS[name].size
    grows = minor > MINOR and name not in BYTE_SECTIONS and record_bytes > size
    return record_bytes == size or (grows and record_bytes % RECORD_ALIGN[name] == 0)


def limit(what: str, count: int, most: int) -> None:
    """Check a count. Raises: `ArchiveError`."""
    if count > most:
        raise ArchiveError("LIMIT", f"{count} {what}, at most {most}")


class Tables:
    """The rows of the tables that a directory lists."""

    def __init__(self, index: bytes, names: tuple[str, ...], minor: int) -> None:
        self.sections = _read_sections(index, names, minor)
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        for name, (record_bytes, offset, count) in self.sections.items():
            if name in RECORDS and name not in BYTE_SECTIONS:
                unpack = RECORDS[name].unpack_from
                at = range(offset, offset + record_bytes * count, record_bytes)
                self.rows[name] = [unpack(index, position) for position in at]
        _, offset, count = self.sections["STRINGS"]
        self.texts = self.read_strings(index[offset : offset + count])

    @staticmethod
    def read_strings(section: bytes) -> dict[int, str]:
        """Return the strings by their offsets."""
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
    """The root of an archive: its kernels by name, and every frame."""

    def __init__(self, data: bytes, header: Header) -> None:
        """Read the tables of an archive whose header was checked; no frame is read."""
        self.data = data
        self.minor = header.minor
        self.is_compressed = header.is_compressed
        root = data[HEADER.size : HEADER.size + header.root_bytes]
        super().__init__(root, ROOT_SECTIONS, header.minor)
        if len(self.rows["ARCHIVE"]) != 1:
            raise ArchiveError("FORMAT", "there is not one ARCHIVE record")
        self.check_entries()
        self.check_frames(header.end)
        self.frames: dict[bytes, bytes] = {}
        self.contents: dict[int, bytes] = {}
        self.has_shared_frames = False

    def check_entries(self) -> None:
        """Check that each kernel has frames of its own choice, right after those of the one before."""
        end = 0
        entries = self.rows["ENTRIES"]
        before = -1
        for name, zero, first, count in entries:
            self.text(name)
            if name <= before or zero:
                raise ArchiveError("FORMAT", "two kernel names are equal or out of order")
            before = name
            if first != end or first + count > len(self.rows["USES"]):
                raise ArchiveError("FORMAT", "the slices of USES do not follow one another")
            end += count
        if end != len(self.rows["USES"]) or len(entries) > len(self.rows["FRAMES"]):
            raise ArchiveError(
                "FORMAT", "USES goes on after the last kernel, or frames are missing"
            )
        for (frame,) in self.rows["USES"]:
            if not len(entries) <= frame < len(self.rows["FRAMES"]):
                raise ArchiveError("FORMAT", f"there is no frame {frame} of blobs")

    def check_frames(self, end: int) -> None:
        """Check the sizes and places of all frames before any is decoded."""
        num_kernels = len(self.rows["ENTRIES"])
        decoded_bytes = 0
        align = 1 if self.is_compressed else STORED_ALIGN
        for number, (offset, stored_bytes, raw_bytes, _) in enumerate(self.rows["FRAMES"]):
            most = LIMITS.index_bytes if number < num_kernels else LIMITS.blob_bytes
            limit("bytes that a frame decodes to", raw_bytes, most)
            start = -(-end // align) * align
            if any(self.data[end:start]):
                raise ArchiveError("FORMAT", "the padding before a frame is not zero")
            end = start
            if not self.is_compressed and stored_bytes != raw_bytes:
                raise ArchiveError("FORMAT", "a frame that is not compressed has two sizes")
            if offset != end or not raw_bytes or end + stored_bytes > len(self.data):
                raise ArchiveError("FORMAT", "the frames do not follow one another in the file")
            end += stored_bytes
            decoded_bytes += raw_bytes
        limit("bytes that all frames decode to", decoded_bytes, LIMITS.decoded_bytes)
        if end != len(self.data):
            raise ArchiveError("FORMAT", "the file goes on after its last frame")

    def frame(self, number: int) -> tuple[int, int, int, bytes]:
        """Return the offset, stored size, decoded size and digest of a frame."""
        offset, stored_bytes, raw_bytes, digest = self.rows["FRAMES"][number]
        return offset, stored_bytes, raw_bytes, digest

    def uses(self, first: int, count: int) -> list[int]:
        """Return the frames in a slice of USES."""
        return [int(row[0]) for row in self.rows["USES"][first : first + count]]

    def read_frame(self, number: int) -> bytes:
        """Verify and decode a frame, once, and keep it."""
        if number not in self.contents:
            offset, stored_bytes, raw_bytes, digest = self.frame(number)
            frame = self.data[offset : offset + stored_bytes]
            if hashlib.sha256(frame).digest() != digest:
                message = f"the SHA-256 of frame {number} does not match: the file changed"
                raise ArchiveError("CHECKSUM", message)
            content = _decompress(frame, raw_bytes) if self.is_compressed else frame
            self.frames[content] = frame
            self.contents[number] = content
        return self.contents[number]
