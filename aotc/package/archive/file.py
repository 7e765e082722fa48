"""Read and write archives: one deterministic writer and a strict reader.

Equal archives have equal bytes, and the reader relies on it. It verifies the header and the SHA-256
digests, decodes with every offset and count checked, and validates the records with `check_index`.
Then it encodes them again: a file padded, ordered or shared unlike the writer's differs in its
bytes and is refused.

Invariants: `decode(encode(a)) == canonical(a)`; `encode(decode(data)) == data`, if the same zstd
made the frames; a file is replaced whole or not at all. Format: `docs/reference/archive-format.md`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

from aotc import output_file
from aotc.package.archive.archive_root import Root, read_header, unpack_header
from aotc.package.archive.check_index import check_archive
from aotc.package.archive.decoder import read_archive
from aotc.package.archive.elf import check_cubin
from aotc.package.archive.encoder import encode_records
from aotc.package.archive.index import Archive, ArchiveError, Kernel, Variant, canonical
from aotc.package.archive.layout import (
    FAST_ZSTD_LEVEL,
    HEADER,
    LIMITS,
    MINOR,
    SMALL_ARCHIVE_BYTES,
    ZSTD_LEVEL,
)
from aotc.regular_file import open_regular

if TYPE_CHECKING:
    from aotc.package.cache.frames import FrameCache


def _level(archive: Archive) -> int:
    """Return the zstd level for an archive."""
    variants = [variant for kernel in archive.kernels for variant in kernel.variants]
    blobs = {variant.cubin for variant in variants} | {variant.ptx or b"" for variant in variants}
    return ZSTD_LEVEL if sum(map(len, blobs)) <= SMALL_ARCHIVE_BYTES else FAST_ZSTD_LEVEL


def _compress(contents: list[bytes], level: int, cache: FrameCache | None = None) -> list[bytes]:
    """Compress each content to a zstd frame, in order, unless it is cached; zstd releases the GIL."""

    def frame(content: bytes) -> bytes:
        cached = None if cache is None else cache.find(content, level)
        if cached is not None:
            return cached
        compressed = zstandard.ZstdCompressor(level, write_checksum=False).compress(content)
        if cache is not None:
            cache.store(content, level, compressed)
        return compressed

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(frame, contents))


def encode(
    archive: Archive,
    *,
    is_grouped: bool = True,
    is_compressed: bool = True,
    cache: FrameCache | None = None,
) -> bytes:
    """Return the bytes of an archive; without `is_grouped`, each blob has its own frame.

    Frames in the `cache` are not compressed again, and new ones are stored there. Without
    compression, cubins are launched from the file: each blob has its own frame, and there are no
    remarks and no PTX.

    Raises: `ArchiveError` FORMAT or LIMIT for content outside the format, such as a blob other than
    a cubin for its variant's target.
    """
    check_archive(archive)
    for kernel in archive.kernels:
        for variant in kernel.variants:
            _check_blobs(kernel, variant)
    if not is_compressed:
        archive = without_texts(archive)
    compress = partial(_compress, level=_level(archive), cache=cache) if is_compressed else None
    return encode_records(canonical(archive), compress, is_grouped=is_grouped)


def without_texts(archive: Archive) -> Archive:
    """Drop the parts of an archive that no launch reads: remarks and PTX."""
    return replace(
        archive,
        kernels=tuple(
            replace(
                kernel,
                variants=tuple(replace(v, remarks=(), ptx=None) for v in kernel.variants),
            )
            for kernel in archive.kernels
        ),
    )


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
    """Decode the bytes of an archive.

    Raises: `ArchiveError`; its `kind` tells bytes that are no canonical archive (FORMAT), an
    unknown version (VERSION), an exceeded limit (LIMIT) and changed bytes (CHECKSUM) apart.
    """
    return _read_all(data)[0]


def _read_all(data: bytes) -> tuple[Archive, Root]:
    """Decode an archive as `decode`; also return its root with the decoded frames."""
    header = read_header(data)
    root = Root(data, header)
    archive = read_archive(root)
    check_archive(archive)
    for kernel in archive.kernels:
        for variant in kernel.variants:
            _check_blobs(kernel, variant)
    if header.minor <= MINOR:

        def frames(contents: list[bytes]) -> list[bytes]:
            return [root.frames.get(content, b"") for content in contents]

        again = encode_records(
            canonical(archive),
            frames if root.is_compressed else None,
            is_grouped=root.has_shared_frames,
        )
        _check_canonical(data, again)
    return archive, root


def _check_canonical(data: bytes, expected: bytes) -> None:
    if data == expected:
        return
    # The header's sizes and checksum depend on the rest, so look for a difference in the rest
    # first.
    positions = (*range(HEADER.size, min(len(data), len(expected))), *range(HEADER.size))
    position = next(
        (position for position in positions if data[position] != expected[position]),
        min(len(data), len(expected)),
    )
    raise ArchiveError("FORMAT", f"not encoded canonically, first at byte {position}")


def write_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old bytes or all of the new.

    Raises: `ArchiveError` IO; no temporary file is left then.
    """
    write_together({path: data})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Replace files atomically, in order, as `write_outputs`.

    Raises: `ArchiveError` IO; no temporary file is left then.
    """
    try:
        output_file.write_outputs(contents)
    except OSError as error:
        message = f"cannot write {error.filename}: {error.strerror or error}"
        raise ArchiveError("IO", message) from None


def make_folder(path: Path) -> None:
    """Make the folder of an output. Raises: `ArchiveError` IO."""
    try:
        output_file.make_folder(path)
    except OSError as error:
        message = f"cannot make the folder {path}: {error.strerror or error}"
        raise ArchiveError("IO", message) from None


def write(archive: Archive, path: Path) -> int:
    """Write an archive to a file atomically and return its size in bytes.

    Raises: `ArchiveError` as `encode`, or IO.
    """
    data = encode(archive)
    write_file(path, data)
    return len(data)


def changed(data: bytes, change: Callable[[Archive], Archive]) -> tuple[Archive, bytes]:
    """Change the records of an archive; return it and its bytes.

    Contents already in a frame keep their stored frame.

    Raises: `ArchiveError` as `decode` and `encode`.
    """
    before, root = _read_all(data)
    archive = canonical(change(before))
    check_archive(archive)
    level = _level(archive)

    def frames(contents: list[bytes]) -> list[bytes]:
        new = [content for content in contents if content not in root.frames]
        stored = {**root.frames, **dict(zip(new, _compress(new, level), strict=True))}
        return [stored[content] for content in contents]

    compress = frames if root.is_compressed else None
    return archive, encode_records(archive, compress, is_grouped=root.has_shared_frames)


def read(path: Path) -> Archive:
    """Read an archive from a regular file.

    Raises: `ArchiveError` as `decode`, or IO.
    """
    with of_file(path):
        return decode(read_bytes(path))


@contextlib.contextmanager
def of_file(path: str | Path) -> Generator[None]:
    """Give the path of an archive to errors about its content."""
    try:
        yield
    except ArchiveError as error:
        if str(path) not in error.message:
            error.path = str(path)
        raise


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file with a valid archive header and root.

    Raises: `ArchiveError` as `decode` for these, or IO.
    """
    try:
        with open_regular(path, LIMITS.file_bytes) as file:
            # Check the header first, and read no more of a file that is no archive.
            data = file.read(HEADER.size)
            header = unpack_header(data, file.size_bytes)
            data += file.read(header.end - HEADER.size)
            read_header(data, file.size_bytes)
            data += file.read(file.size_bytes - len(data))
    except OSError as error:
        kind = "LIMIT" if error.errno == errno.EFBIG else "IO"
        raise ArchiveError(kind, f"cannot read {path}: {error.strerror or error}") from None
    return data
