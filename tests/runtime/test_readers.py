"""The reader in C and the reader in Python agree on every archive, good or bad.

Golden archives are changed, field by field and at random, and sealed again with a valid
checksum; both readers must accept them or refuse with the same status. The only differences
allowed are checks that the format leaves out for a C reader (docs/reference/archive-format.md,
section 2).

By hand: `python -m tests.runtime.test_readers COUNT FOLDER` for a longer run.
"""

from __future__ import annotations

import random
import re
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import zstandard

from aotc.package.archive.file import decode
from aotc.package.archive.index import ArchiveError
from aotc.package.archive.layout import (
    BYTE_SECTIONS,
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    HEADER,
    KERNEL_SECTIONS,
    PLACE,
    RECORDS,
    ROOT_SECTIONS,
    SHA256_BYTES,
    SHA256_OFFSET,
)
from aotc.runtime import AotcError
from aotc.runtime._native import Archive
from aotc.runtime.errors import (
    ArchError,
    ChecksumError,
    FormatError,
    LimitError,
    NotFoundError,
    VersionError,
)
from tests.support.archive_bytes import (
    ROOT,
    index_of,
    num_kernels,
    patched,
    place,
    places_of,
    resealed,
    root_at,
    with_contents,
    with_index,
)
from tests.support.fake_gpu import FakeGpu

NAMES = ("hopper", "mapped", "looped", "small", "steered", "golden", "grouped", "loader", "empty")
_STATUS: tuple[tuple[type[AotcError], str], ...] = (
    (FormatError, "FORMAT"), (LimitError, "LIMIT"), (ChecksumError, "CHECKSUM"),
    (VersionError, "VERSION"), (NotFoundError, "NOT_FOUND"),
)  # fmt: skip
# The order of expressions and blobs, strings without a use, and texts of expressions.
_PASSED_OVER = re.compile(
    "not encoded canonically|an expression|the expression|is called as a dtype"
    # Beyond any GPU, so no variant is loaded.
    "|says [0-9]{10} bytes of static shared memory"
)


class Field(NamedTuple):
    """A number in the header, the root or the index of a kernel; `size` is in bytes."""

    offset: int
    size: int
    name: str
    kernel: int = ROOT


_MINOR = Field(10, 2, "header+10")


def fields(data: bytes) -> Iterator[Field]:
    """Yield every field of the header, the directories, the records, and places; bytes of sections are one."""
    yield from _fields_of(HEADER, 0, "header", ROOT)
    yield from _fields_of_index(data, root_at(data), ROOT_SECTIONS, "root ", ROOT)
    for kernel in range(num_kernels(data)):
        yield from _fields_of_index(index_of(data, kernel), 0, KERNEL_SECTIONS, "", kernel)
    for kernel, frame, _, offset in places_of(data):
        yield Field(offset, PLACE.size, f"kernel {kernel}, place of frame {frame}")


def _fields_of(layout: struct.Struct, offset: int, name: str, kernel: int) -> Iterator[Field]:
    start = offset
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout.format):
        size = struct.calcsize(code)
        for _ in range(int(count or 1)):
            yield Field(offset, size, f"{name}+{offset - start}", kernel)
            offset += size


def _fields_of_index(
    data: bytes, start: int, names: tuple[str, ...], prefix: str, kernel: int
) -> Iterator[Field]:
    yield from _fields_of(DIRECTORY_HEAD, start, f"{prefix}directory", kernel)
    for position, name in enumerate(names):
        entry = start + DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * position
        yield from _fields_of(DIRECTORY_ENTRY, entry, f"{prefix}directory {name}", kernel)
        _, record_bytes, offset, count = DIRECTORY_ENTRY.unpack_from(data, entry)
        for record in range(count):
            begin = start + offset + record_bytes * record
            yield from _fields_of(RECORDS[name], begin, f"{prefix}{name}", kernel)


def value_of(data: bytes, field: Field) -> int:
    """Return the number in a field."""
    source = data if field.kernel == ROOT else index_of(data, field.kernel)
    return int.from_bytes(source[field.offset : field.offset + field.size], "little")


def extremes(value: int, size: int) -> list[int]:
    """Return replacements for a number: its neighbours, powers of two, the format's limits."""
    top = (1 << 8 * size) - 1
    near = (value + 1, value - 1, value * 2, value << 8, value ^ 0xFF00, ~value)
    limits = (0, 1, 2, 5, 6, 16, 17, 33, 65, 257, 1025, 4097, 1 << 16, (1 << 20) + 1, (1 << 24) + 1)
    return sorted({x & top for x in (*near, *limits, top, top >> 1, (top >> 1) + 1)} - {value})


def verdict_in_c(data: bytes) -> str:
    """Open and verify an archive and all its kernels with the C library; return the status."""

    def open_all() -> None:
        archive = Archive(data, zstandard.decompress, True, None)
        try:
            for name in archive._names():
                archive[name]
        finally:
            archive.close()

    return _status(open_all)


def verdict_of_load(data: bytes, gpu: FakeGpu) -> str:
    """Load an archive on every GPU of its targets with the C library; return the status."""
    # With enough shared memory for every variant, because others are not looked into.
    gpu.reset((9, 0, (1 << 31) - 1), (8, 0, (1 << 31) - 1))

    def load() -> None:
        archive = Archive(data, zstandard.decompress, True, str(gpu.path))
        try:
            for device in (0, 1):
                with suppress(ArchError):
                    archive._load(device, None)
        finally:
            archive.close()

    return _status(load)


def _status(act: Callable[[], object]) -> str:
    try:
        act()
    except AotcError as error:
        return next((name for kind, name in _STATUS if isinstance(error, kind)), repr(error))
    return "OK"


def verdict_in_python(data: bytes) -> tuple[str, str]:
    """Read an archive with the Python reader; return the status and the message."""
    try:
        decode(data)
    except ArchiveError as error:
        return error.kind, error.message
    return "OK", ""


def disagreement(data: bytes, gpu: FakeGpu | None, *, same_status: bool = True) -> str:
    """Return how the two readers differ on an archive, or an empty string."""
    in_c = verdict_in_c(data)
    in_python, message = verdict_in_python(data)
    if in_c == "OK" != in_python and not _PASSED_OVER.search(message):
        if gpu is None:  # visible only to loading
            return ""
        in_c = verdict_of_load(data, gpu)
    is_same = in_c == in_python if same_status else (in_c == "OK") == (in_python == "OK")
    is_passed_over = in_c == "OK" and in_python == "FORMAT" and _PASSED_OVER.search(message)
    return "" if is_same or is_passed_over else f"C: {in_c}, Python: {in_python} ({message})"


def changed(data: bytes, changes: list[tuple[Field, int]]) -> bytes:
    """Return the archive with other numbers, and with valid digests."""
    indices = {
        f.kernel: bytearray(index_of(data, f.kernel)) for f, _ in changes if f.kernel != ROOT
    }
    for field, value in changes:
        if field.kernel != ROOT:
            new = value.to_bytes(field.size, "little")
            indices[field.kernel][field.offset : field.offset + field.size] = new
    if indices:
        data = with_contents(data, {kernel: bytes(index) for kernel, index in indices.items()})
    copy = bytearray(data)
    for field, value in changes:
        if field.kernel == ROOT:
            copy[field.offset : field.offset + field.size] = value.to_bytes(field.size, "little")
    if any(SHA256_OFFSET <= f.offset < SHA256_OFFSET + SHA256_BYTES for f, _ in changes):
        return bytes(copy)
    return resealed(bytes(copy))


def mutations(
    data: bytes, count: int, seed: int
) -> Iterator[tuple[list[tuple[Field, int]], bytes]]:
    """Yield changed archives: mostly one field, sometimes several; equal seeds, equal changes."""
    rng = random.Random(seed)
    every = list(fields(data))
    by_name: dict[str, list[Field]] = {}
    for field in every:
        by_name.setdefault(field.name, []).append(field)
    names = list(by_name)
    for _ in range(count):
        changes: list[tuple[Field, int]] = []
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            # Each kind of field as often as each other, however many records there are.
            field = rng.choice(by_name[rng.choice(names)])
            if changes and _MINOR in (field, changes[0][0]):
                continue  # in a newer version, unread parts are not compared
            value = value_of(data, field)
            other = value_of(data, rng.choice(every))
            top = (1 << 8 * field.size) - 1
            options = [*extremes(value, field.size), other & top, rng.randrange(top + 1)]
            changes.append((field, rng.choice(options)))
        yield changes, changed(data, changes)


@pytest.mark.parametrize("name", [*NAMES, "stored", "later"])
def test_good_archives(gpu: FakeGpu, archives: Path, name: str) -> None:
    data = (archives / f"{name}.aotc").read_bytes()
    assert verdict_in_c(data) == "OK"
    assert verdict_in_python(data) == ("OK", "")
    assert verdict_of_load(data, gpu) == "OK"


@pytest.mark.parametrize(
    "name",
    [
        "hopper",
        "steered",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mapped", "small")),
    ],
)
def test_every_field_at_extremes(gpu: FakeGpu, archives: Path, name: str) -> None:
    """One record of each kind, every field of it and of header and directory, every extreme."""
    data = (archives / f"{name}.aotc").read_bytes()
    seen: set[str] = set()
    wrong: list[str] = []
    for field in fields(data):
        if field.name in seen or field.name.split("+")[0].split()[-1] in BYTE_SECTIONS:
            continue
        seen.add(field.name)
        value = value_of(data, field)
        for other in extremes(value, field.size):
            difference = disagreement(changed(data, [(field, other)]), gpu)
            wrong += [f"{field.name} {value} -> {other}: {difference}"] if difference else []
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("name", ["hopper", "small"])
def test_fields_of_the_last_variant_at_extremes(gpu: FakeGpu, archives: Path, name: str) -> None:
    """It repeats much of an earlier variant, and the C reader compares the two."""
    data = (archives / f"{name}.aotc").read_bytes()
    last = {
        field.name: field
        for field in fields(data)
        if field.name.split("+")[0] in {"VARIANTS", "CUBIN_PARAMS", "TENSOR_MAPS"}
    }
    wrong: list[str] = []
    for field in last.values():
        value = value_of(data, field)
        for other in extremes(value, field.size):
            difference = disagreement(changed(data, [(field, other)]), gpu)
            wrong += [f"{field.name} {value} -> {other}: {difference}"] if difference else []
    assert last
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.parametrize("name", NAMES)
def test_random_changes(gpu: FakeGpu, archives: Path, name: str) -> None:
    data = (archives / f"{name}.aotc").read_bytes()
    for changes, mutated in mutations(data, 250, seed=1):
        # Of several faults either may be the first to be seen.
        difference = disagreement(mutated, gpu, same_status=len(changes) == 1)
        assert not difference, f"{changes}: {difference}"


@pytest.mark.parametrize("name", ["hopper", "small"])
def test_unsealed_changes(archives: Path, name: str) -> None:
    rng = random.Random(2)
    data = (archives / f"{name}.aotc").read_bytes()
    offsets = [*range(HEADER.size), *(rng.randrange(len(data)) for _ in range(200))]
    for offset in offsets:
        mutated = bytearray(data)
        mutated[offset] ^= 1 << rng.randrange(8)
        assert verdict_in_c(bytes(mutated)) == verdict_in_python(bytes(mutated))[0], offset
    for size in (0, 1, 127, 128, *(rng.randrange(len(data)) for _ in range(50))):
        assert verdict_in_c(data[:size]) == verdict_in_python(data[:size])[0] == "FORMAT", size
    assert verdict_in_c(data + b"\0") == verdict_in_python(data + b"\0")[0] == "FORMAT"


def _records(data: bytes, section: str, kernel: int = ROOT) -> list[int]:
    start, count = place(data, section, kernel)
    return [start + RECORDS[section].size * record for record in range(count)]


def _both(data: bytes, expected: str) -> None:
    assert verdict_in_c(data) == expected
    assert verdict_in_python(data)[0] == expected


def test_equal_names_of_kernels_are_refused(archives: Path) -> None:
    data = (archives / "twins.aotc").read_bytes()
    first, second = _records(data, "ENTRIES")
    _both(resealed(patched(data, second, data[first : first + 4])), "FORMAT")


def test_a_kernel_has_the_name_in_the_root(archives: Path) -> None:
    data = (archives / "twins.aotc").read_bytes()
    indices = {0: index_of(data, 1), 1: index_of(data, 0)}
    _both(with_contents(data, indices), "FORMAT")


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (9, b"\x01", None),  # NaN fill: bf16 has one
        (4, b"\x03", "rows of 256 bytes under a swizzle of 128"),  # i32
        (4, b"\x01", None),  # u16: as wide as bf16
        (7, b"\x02", "rows of 128 bytes under a swizzle of 64"),
        (7, b"\x00", None),
        (52, b"\x04\x00", "rows of 8 bytes"),
        (52, b"\x08\x00", None),
        (52, b"\x41\x00", "rows of 130 bytes"),
        (4, b"\x01\x02\x00\x03\x02\x01", "NaN into integers"),
    ],
)
def test_what_the_encoder_would_refuse(
    archives: Path, offset: int, value: bytes, why: str | None
) -> None:
    data = (archives / "hopper.aotc").read_bytes()
    index = index_of(data, 0)
    for record in _records(data, "TENSOR_MAPS", 0):
        index = patched(index, record + offset, value)
    _both(with_contents(data, {0: index}), "FORMAT" if why else "OK")


def test_static_shared_memory_is_the_cubins(gpu: FakeGpu, archives: Path) -> None:
    data = (archives / "golden.aotc").read_bytes()
    for kernel in range(num_kernels(data)):
        for record in _records(data, "VARIANTS", kernel):
            (shared_bytes,) = struct.unpack_from("<I", index_of(data, kernel), record + 64)
            for other in {shared_bytes + 1, 2048, 1024, 0}:
                copy = with_index(data, kernel, record + 64, struct.pack("<I", other))
                expected = "OK" if other == shared_bytes else "FORMAT"
                assert verdict_in_python(copy)[0] == expected
                assert verdict_of_load(copy, gpu) == expected


def main(count: int, folder: Path) -> None:
    """Compare the readers on many changes, without loading; print differences."""
    for name in NAMES:
        data = (folder / f"{name}.aotc").read_bytes()
        for changes, mutated in mutations(data, count, seed=3):
            difference = disagreement(mutated, None, same_status=len(changes) == 1)
            if difference:
                print(name, changes, difference)  # noqa: T201 - a report for whoever runs it


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
