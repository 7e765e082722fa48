"""Archives as bytes and files: the one writer and a strict reader.

The writer has no choices to make: the same `Archive` is the same bytes. The reader uses that. It
checks the header and the SHA-256 sums, decodes with every offset and count checked, lets
`check_index` judge what it got, and then encodes it again: whatever the tables do not use, pad,
order or share as the writer does makes the bytes differ, and the file is refused.

Invariants: `decode(encode(a)) == canonical(a)`; `encode(decode(data)) == data`, if the same zstd
made the frames; a file is replaced whole or not at all. The format is `docs/reference/archive-format.md`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zstandard

from aotc.package.check_index import check_archive
from aotc.package.decoder import Decoder, read_header, unpack_header
from aotc.package.elf import check_cubin
from aotc.package.encoder import encode_records
from aotc.package.index import Archive, ArchiveError, Kernel, Variant, canonical
from aotc.package.records import HEADER, LIMITS, MINOR, ZSTD_LEVEL
from aotc.regular_file import open_regular


def _compress(contents: list[bytes]) -> list[bytes]:
    """Return the zstd frame of each content, in order; zstd runs outside of Python's lock."""

    def frame(content: bytes) -> bytes:
        return zstandard.ZstdCompressor(ZSTD_LEVEL, write_checksum=False).compress(content)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(frame, contents))


def encode(archive: Archive) -> bytes:
    """Return the bytes of an archive.

    Raises: `ArchiveError` FORMAT or LIMIT for what the format cannot hold, among it a cubin that is
    not one for its variant's target.
    """
    check_archive(archive)
    for kernel in archive.kernels:
        for variant in kernel.variants:
            _check_blobs(kernel, variant)
    return encode_records(canonical(archive), _compress)


def _check_ptx(ptx: bytes | None) -> None:
    """Check that stored PTX is text. Raises: `ArchiveError` FORMAT."""
    try:
        (ptx or b"").decode()
    except UnicodeDecodeError as error:
        raise ArchiveError("FORMAT", f"its PTX is not UTF-8 at byte {error.start}") from None


def _check_blobs(kernel: Kernel, variant: Variant) -> None:
    try:
        shared_bytes = variant.static_shared_bytes
        check_cubin(variant.cubin, variant.target, variant.symbol, shared_bytes)
        _check_ptx(variant.ptx)
    except ArchiveError as error:
        message = f"kernel {kernel.name!r}, variant {variant.symbol!r}: {error.message}"
        raise ArchiveError(error.kind, message) from None


def decode(data: bytes) -> Archive:
    """Return what the bytes of an archive say.

    Raises: `ArchiveError`; its `kind` says whether the bytes are no archive or not a canonical one
    (FORMAT), of an unknown version (VERSION), beyond a limit (LIMIT) or changed (CHECKSUM).
    """
    header = read_header(data)
    decoder = Decoder(data, header)
    archive = decoder.archive()
    check_archive(archive)
    for kernel in archive.kernels:
        for variant in kernel.variants:
            _check_blobs(kernel, variant)
    if header.minor <= MINOR:
        frames = decoder.frames
        again = encode_records(canonical(archive), lambda contents: [frames[c] for c in contents])
        _check_canonical(data, again)
    return archive


def _check_canonical(data: bytes, expected: bytes) -> None:
    if data == expected:
        return
    # The header's sizes and checksum follow from the rest, so look behind it first.
    places = (*range(HEADER.size, min(len(data), len(expected))), *range(HEADER.size))
    at = next((at for at in places if data[at] != expected[at]), min(len(data), len(expected)))
    raise ArchiveError("FORMAT", f"not the one encoding of what it says, first at byte {at}")


def write_file(path: Path, data: bytes) -> None:
    """Replace a file by `data` at once: whoever opens it sees the old bytes or all of the new.

    Raises: `ArchiveError` IO; nothing is left behind then.
    """
    write_together({path: data})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Replace files at once, in order, and none before the bytes of all are on the disk.

    Raises: `ArchiveError` IO; nothing is left behind then.
    """
    staged: dict[Path, Path] = {}
    path = Path()
    try:
        try:
            for path, data in contents.items():
                staged[path] = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
                _write_new(staged[path], data, path)
            for path, temporary in staged.items():
                temporary.replace(path)
        except BaseException:
            for temporary in staged.values():
                temporary.unlink(missing_ok=True)
            raise
        for folder in dict.fromkeys(path.parent for path in contents):
            directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise ArchiveError("IO", message) from None


def _write_new(temporary: Path, data: bytes, path: Path) -> None:
    """Write a file that is to replace `path`, to the disk."""
    if path.is_dir():  # told now: it could not be replaced
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write(archive: Archive, path: Path) -> int:
    """Write an archive to a file, at once or not at all, and return its size in bytes.

    Raises: `ArchiveError` as `encode`, or IO.
    """
    data = encode(archive)
    write_file(path, data)
    return len(data)


def read(path: Path) -> Archive:
    """Read an archive from a regular file.

    Raises: `ArchiveError` as `decode`, or IO.
    """
    try:
        with open_regular(path, LIMITS.file_bytes) as file:
            # Of a file that is no archive, however large, no more is read than shows it.
            data = file.read(HEADER.size)
            data += file.read(unpack_header(data, file.size_bytes).index_bytes)
            read_header(data, file.size_bytes)
            data += file.read(file.size_bytes - len(data))
    except OSError as error:
        kind = "LIMIT" if error.errno == errno.EFBIG else "IO"
        raise ArchiveError(kind, f"cannot read {path}: {error.strerror or error}") from None
    return decode(data)
