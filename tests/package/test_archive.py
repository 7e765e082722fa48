"""Archives: round trips, one encoding, and every fault that a file can have."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.ir.expression import parse
from aotc.package.archive import decode, encode, read, write, write_file, write_together
from aotc.package.index import (
    Archive,
    ArchiveError,
    Choice,
    CubinParam,
    Guard,
    Kernel,
    Param,
    TypeVariable,
    Value,
    Variant,
    canonical,
    num_combinations,
    split_combination,
)
from aotc.package.records import RECORDS

_GOLDEN = Path(__file__).with_name("golden.aotc")
_SECTIONS = list(RECORDS)


def section(data: bytes, name: str) -> tuple[int, int]:
    """Return the offset of a section in the file and its number of records."""
    entry = 128 + 8 + 16 * _SECTIONS.index(name)
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


# ------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", ["archive", "small"])
def test_round_trip(samples: SimpleNamespace, name: str) -> None:
    archive = getattr(samples, name)
    data = encode(archive)
    assert decode(data) == canonical(archive)
    assert encode(decode(data)) == data


def test_empty_archive_is_header_and_index() -> None:
    archive = Archive("none", "0", ())
    data = encode(archive)
    assert decode(data) == archive
    assert len(data) == 128 + int.from_bytes(data[48:56], "little")


def test_order_of_kernels_and_variants_does_not_matter(samples: SimpleNamespace) -> None:
    data = encode(samples.archive)
    shuffle = random.Random(0)
    for _ in range(3):
        kernels = [
            replace(kernel, variants=tuple(shuffle.sample(kernel.variants, len(kernel.variants))))
            for kernel in shuffle.sample(samples.archive.kernels, len(samples.archive.kernels))
        ]
        assert encode(replace(samples.archive, kernels=tuple(kernels))) == data


def test_equal_cubins_are_stored_once(samples: SimpleNamespace) -> None:
    first = samples.copy
    second = replace(first, name="copy2")
    one, two = (encode(Archive("n", "1", kernels)) for kernels in ((first,), (first, second)))
    assert section(one, "BLOBS")[1] == section(two, "BLOBS")[1] == 1
    assert [kernel.variants for kernel in decode(two).kernels] == [first.variants] * 2


def test_the_most_specialised_variant_and_the_first_config_come_first(
    samples: SimpleNamespace,
) -> None:
    variants = decode(encode(Archive("n", "1", (samples.norm,)))).kernels[0].variants
    run = [(v.guards, v.config) for v in variants if v.types == ("bf16",) and v.choices[0]]
    assert run == [((0, 1, 2), 0), ((0, 1, 2), 1), ((0, 1), 0), ((0, 1), 1)]


def test_a_config_goes_first_where_its_condition_holds(samples: SimpleNamespace) -> None:
    doubled = tuple(
        replace(variant, condition=condition)
        for variant in samples.norm.variants
        for condition in (None, parse("n_rows % 8 == 0"))
    )
    archive = Archive("n", "1", (replace(samples.norm, variants=doubled),))
    variants = decode(encode(archive)).kernels[0].variants
    run = [
        (v.config, v.condition is None)
        for v in variants
        if v.types == ("bf16",) and v.choices[0] and v.guards == (0, 1)
    ]
    assert run == [(0, False), (0, True), (1, False), (1, True)]


def test_golden_archive(samples: SimpleNamespace) -> None:
    """The bytes of version 1.0 mean what they meant when it was released.

    Decoding compares the index and the layout with what would be written today; the frames may be
    another zstd's.
    """
    assert decode(_GOLDEN.read_bytes()) == canonical(samples.archive)


_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
_identifiers = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("and", "or", "not", "min", "max", "cdiv", "true", "false")
)
_values: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
)
_named_values = st.lists(
    st.tuples(_names, _values), max_size=3, unique_by=lambda pair: pair[0]
).map(tuple)
_DTYPES = ("i1", "i32", "u64", "fp16", "bf16", "fp32", "fp64", "fp8e5")


@st.composite
def kernels(draw: st.DrawFn, fake_cubin: Callable[..., bytes], name: str) -> Kernel:
    """Draw a kernel with scalars, pointers, type variables, choices, guards and configs."""
    names = draw(st.lists(_identifiers, min_size=1, max_size=4, unique=True))
    variables = tuple(
        TypeVariable(f"T{index}", tuple(dtypes))
        for index, dtypes in enumerate(
            draw(
                st.lists(
                    st.lists(st.sampled_from(_DTYPES), min_size=1, max_size=2, unique=True),
                    max_size=2,
                )
            )
        )
    )
    elements = [*_DTYPES, *(variable.name for variable in variables)]
    params = tuple(
        Param(
            param,
            draw(st.sampled_from(["pointer", "scalar"])),
            draw(st.sampled_from(elements)),
            divisibility=draw(st.sampled_from([1, 16])),
            is_optional=draw(st.booleans()),
            access=draw(st.sampled_from(["unknown", "read", "write", "both"])),
        )
        for param in names
    )
    choices = tuple(
        Choice(f"C{index}", tuple(values))
        for index, values in enumerate(
            draw(
                st.lists(
                    st.lists(
                        _values, min_size=1, max_size=2, unique_by=lambda v: (str(type(v)), v)
                    ),
                    max_size=2,
                )
            )
        )
    )
    pointers = [param.name for param in params if param.kind == "pointer"]
    texts = ["1", "-7 // 2", *(f"cdiv({name}, 300) % 16" for name in pointers)]
    guards = tuple(
        Guard(parse(text), draw(_names)) for text in draw(st.lists(st.sampled_from(texts)))
    )[:4]
    configs = tuple(draw(st.lists(_named_values, min_size=1, max_size=3)))
    rank = draw(st.integers(0, 3))
    keys = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["sm_80", "sm_90a", "sm_100f"]),
                st.integers(0, num_combinations(variables, choices) - 1),
                st.sets(st.integers(0, len(guards) - 1)) if guards else st.just(set[int]()),
                st.integers(0, len(configs) - 1),
            ),
            min_size=1,
            max_size=4,
            unique_by=lambda key: (key[0], key[1], tuple(sorted(key[2])), key[3]),
        )
    )
    variants: list[Variant] = []
    for target, number, required, config in keys:
        types, chosen = split_combination(variables, choices, number)
        payload = draw(st.binary(max_size=3))
        loops_programs = draw(st.booleans())
        counts = tuple(
            CubinParam(8 * len(pointers) + 4 * at, 4, "grid", axis)
            for at, axis in enumerate(draw(st.permutations(range(3))) if loops_programs else ())
        )
        variants.append(
            Variant(
                target,
                "k",
                fake_cubin(target, "k", payload),
                draw(st.integers(1, 1024)),
                types,
                chosen,
                tuple(sorted(required)),
                config,
                draw(st.sampled_from([None, *map(parse, texts)])),
                dynamic_shared_bytes=draw(st.integers(0, (1 << 32) - 1)),
                registers=draw(st.integers(0, 65535)),
                cubin_params=tuple(
                    CubinParam(8 * index, 8, index=names.index(pointer))
                    for index, pointer in enumerate(pointers)
                )
                + counts,
                grid=tuple(parse(draw(st.sampled_from(texts))) for _ in range(rank)),
                waits_pdl=draw(st.booleans()),
                loops_programs=loops_programs,
                remarks=tuple(draw(st.lists(st.sampled_from(["slow", "überfüllt"]), max_size=2))),
                ptx=draw(st.sampled_from([None, b"// ptx"])),
            )
        )
    return Kernel(
        name, draw(st.binary(min_size=32, max_size=32)), tuple(variants), params, variables,
        choices, guards, configs, draw(_named_values),
    )  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_round_trip_of_any_archive(samples: SimpleNamespace, data: st.DataObject) -> None:
    names = data.draw(st.lists(_names, max_size=3, unique=True))
    drawn = tuple(data.draw(kernels(samples.fake_cubin, name)) for name in names)
    archive = Archive(data.draw(_names), data.draw(_names), drawn, data.draw(_names))
    encoded = encode(archive)
    assert decode(encoded) == canonical(archive)
    assert encode(decode(encoded)) == encoded


# ------------------------------------------------------------------------------------- faults


def test_every_truncation_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    for size in range(len(data)):
        assert refusal(data[:size]).kind == "FORMAT", size


def test_every_flipped_bit_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            refusal(bytes(flipped))


@pytest.mark.parametrize("trailing", [b"\0", b"PK\5\6" + bytes(18), bytes(64)])
def test_trailing_bytes_are_refused(samples: SimpleNamespace, trailing: bytes) -> None:
    error = refusal(encode(samples.small) + trailing)
    assert error.kind == "FORMAT"
    assert "followed by other bytes" in error.message


@pytest.mark.parametrize("data", [b"", b"AOTC", b"PK\3\4" + bytes(200), bytes(4096)])
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    error = refusal(data)
    assert (error.kind, "not an archive" in error.message) == ("FORMAT", True)


def test_future_versions_are_named(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    error = refusal(patched(data, 8, b"\2\0"))
    assert (error.kind, "2.0" in error.message, "1.0" in error.message) == ("VERSION", True, True)
    error = refusal(resealed(patched(data, 16, b"\1\2")))
    assert error.kind == "VERSION"
    assert "bits 9" in error.message


def test_a_newer_minor_version_may_append(samples: SimpleNamespace) -> None:
    """Sections behind those known, and optional features, do not stop an older reader."""
    data = encode(samples.small)
    newer = resealed(patched(patched(data, 10, b"\1\0"), 24, b"\1"))
    assert decode(newer) == samples.small
    assert refusal(resealed(patched(data, 24, b"\1"))).kind == "FORMAT"


@pytest.mark.parametrize("at", [32, 48])
def test_huge_sizes_are_refused_before_allocation(samples: SimpleNamespace, at: int) -> None:
    assert refusal(patched(encode(samples.small), at, b"\xff" * 8)).kind == "LIMIT"


@pytest.mark.parametrize("name", _SECTIONS)
def test_huge_counts_are_refused_before_allocation(samples: SimpleNamespace, name: str) -> None:
    data = encode(samples.small)
    count_at = 128 + 8 + 16 * _SECTIONS.index(name) + 12
    assert refusal(resealed(patched(data, count_at, b"\xff" * 4))).kind == "LIMIT"


def test_a_section_behind_the_index_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    offset_at = 128 + 8 + 16 * _SECTIONS.index("VARIANTS") + 8
    error = refusal(resealed(patched(data, offset_at, b"\0\0\0\x7f")))
    assert (error.kind, "VARIANTS" in error.message) == ("FORMAT", True)


def test_overlapping_blobs_are_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.archive)
    at = field(data, "BLOBS", 1, 0)
    first = field(data, "BLOBS", 0, 0)
    overlapping = patched(data, at, data[first : first + 8])
    sizes = data[first + 8 : first + 48]
    error = refusal(resealed(patched(overlapping, at + 8, sizes)))
    assert error.kind == "FORMAT"


def test_padding_is_zero_everywhere(samples: SimpleNamespace) -> None:
    data = encode(samples.archive)
    first, size = struct.unpack_from("<QI", data, field(data, "BLOBS", 0, 0))
    assert (first + size) % 64, "the sample has padding behind its first blob"
    assert refusal(patched(data, first + size, b"\1")).kind == "FORMAT"
    strings, count = section(data, "CODE")
    assert count % 8, "the sample has padding behind a section"
    assert refusal(resealed(patched(data, strings + count, b"\1"))).kind == "FORMAT"


def test_a_hole_before_a_blob_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    at = field(data, "BLOBS", 0, 0)
    offset = int.from_bytes(data[at : at + 8], "little")
    holed = data[:offset] + bytes(64) + data[offset:]
    holed = patched(patched(holed, at, (offset + 64).to_bytes(8, "little")), 32, u32(len(holed)))
    error = refusal(resealed(holed))
    assert (error.kind, "follow one another" in error.message) == ("FORMAT", True)


def test_duplicate_kernel_names_are_refused(samples: SimpleNamespace) -> None:
    with pytest.raises(ArchiveError, match="two kernel names") as error:
        encode(Archive("n", "1", (samples.copy, samples.copy)))
    assert error.value.kind == "FORMAT"
    data = encode(samples.archive)
    name_at = field(data, "KERNELS", 0, 40)
    renamed = patched(data, field(data, "KERNELS", 1, 40), data[name_at : name_at + 4])
    assert refusal(resealed(renamed)).kind == "FORMAT"


@pytest.mark.parametrize("bad", [b"\0", b"\xff", b"\xc3"])
def test_names_are_utf8_without_nul(samples: SimpleNamespace, bad: bytes) -> None:
    data = encode(samples.small)
    strings, _ = section(data, "STRINGS")
    at = data.index(b"copy\0", strings)
    assert refusal(resealed(patched(data, at + 2, bad))).kind == "FORMAT"


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "n" * 256])
def test_bad_names_are_not_written(samples: SimpleNamespace, name: str) -> None:
    with pytest.raises(ArchiveError) as error:
        encode(Archive("n", "1", (replace(samples.copy, name=name),)))
    assert error.value.kind == ("LIMIT" if len(name) > 255 else "FORMAT")


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


@pytest.mark.parametrize(
    "content",
    [b".version 8.8\n.target sm_90a\n\0", b"\x50\xed\x55\xba" + bytes(96), b"\x7fTILE" + bytes(99)],
    ids=["ptx", "fatbin", "tile"],
)
def test_blobs_that_are_no_cubins_are_refused(samples: SimpleNamespace, content: bytes) -> None:
    error = refusal(with_blob(encode(samples.small), content))
    assert (error.kind, "not a cubin" in error.message) == ("FORMAT", True)
    kernel = replace(samples.copy, variants=(replace(samples.copy.variants[0], cubin=content),))
    with pytest.raises(ArchiveError, match="not a cubin"):
        encode(Archive("n", "1", (kernel,)))


def test_bytes_are_a_cubin_or_ptx_but_not_both(samples: SimpleNamespace) -> None:
    """The PTX of a variant is only looked at, so it must not pass for what is launched."""
    variant = samples.copy.variants[0]
    kernel = replace(samples.copy, variants=(replace(variant, ptx=variant.cubin),))
    with pytest.raises(ArchiveError, match="its PTX is not UTF-8 at byte 18"):  # e_machine
        encode(Archive("n", "1", (kernel,)))
    data = encode(samples.small)
    assert refusal(resealed(patched(data, field(data, "VARIANTS", 0, 24), u32(0)))).kind == "FORMAT"


def test_strings_are_sorted_and_distinct(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    strings, count = section(data, "STRINGS")
    for forged in (bytes(count), b"\0" * 2 + b"z" * (count - 3) + b"\0"):
        error = refusal(resealed(patched(data, strings, forged)))
        assert (error.kind, "not in order" in error.message) == ("FORMAT", True)


def test_an_elf_section_outside_of_the_blob_is_refused(samples: SimpleNamespace) -> None:
    cubin = samples.fake_cubin("sm_90a", "copy")
    assert refusal(with_blob(encode(samples.small), cubin[:-1])).kind == "FORMAT"


def test_a_cubin_for_another_target_is_refused(samples: SimpleNamespace) -> None:
    error = refusal(with_blob(encode(samples.small), samples.fake_cubin("sm_80", "copy")))
    assert (error.kind, "sm_80" in error.message) == ("FORMAT", True)


def test_any_level_of_zstd_may_be_read(samples: SimpleNamespace) -> None:
    cubin = samples.small.kernels[0].variants[0].cubin
    assert decode(with_blob(encode(samples.small), cubin, level=1)) == samples.small


def test_frames_that_say_something_else_are_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    cubin = samples.small.kernels[0].variants[0].cubin
    frame = zstandard.ZstdCompressor().compress(cubin)
    frames = {
        "size": (frame, len(cubin) + 1),
        "checksum": (zstandard.ZstdCompressor(write_checksum=True).compress(cubin), len(cubin)),
        "no size": (
            zstandard.ZstdCompressor(write_content_size=False).compress(cubin),
            len(cubin),
        ),
        "second frame": (frame + frame, len(cubin)),
        "trailing": (frame + b"\0", len(cubin)),
        "raw": (cubin, len(cubin)),
        "skippable": (b"\x50\x2a\x4d\x18\0\0\0\0" + frame, len(cubin)),
        "cut": (frame[:-1], len(cubin)),
    }
    for what, (changed, raw_bytes) in frames.items():
        assert refusal(with_frame(data, changed, raw_bytes)).kind == "FORMAT", what


def test_bombs_are_refused_before_decoding(samples: SimpleNamespace) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes((64 << 20) + 1))
    assert refusal(with_frame(encode(samples.small), bomb, (64 << 20) + 1)).kind == "LIMIT"


def test_every_field_of_the_index_at_its_extremes(samples: SimpleNamespace) -> None:
    """A forged index is refused, or it is the canonical encoding of something sensible."""
    data = encode(samples.small)
    end = 128 + int.from_bytes(data[48:56], "little")
    outcomes = {"refused": 0, "accepted": 0}
    for at in range(128, end, 4):
        old = int.from_bytes(data[at : at + 4], "little")
        for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, old ^ 1, old + 1, old ^ 0x10000):
            forged = resealed(patched(data, at, u32(value & 0xFFFFFFFF)))
            if forged == data:
                continue
            try:
                archive = decode(forged)
            except ArchiveError:
                outcomes["refused"] += 1
            else:
                assert encode(archive) == forged
                outcomes["accepted"] += 1
    assert outcomes["refused"] > 5 * outcomes["accepted"] > 0


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_forged_indices_never_escape(samples: SimpleNamespace, data: st.DataObject) -> None:
    """Several random changes at once end in an `ArchiveError` or in an archive."""
    forged = bytearray(_GOLDEN.read_bytes())
    end = 128 + int.from_bytes(forged[48:56], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        forged[data.draw(st.integers(128, end - 1))] = data.draw(st.integers(0, 255))
    with suppress(ArchiveError):
        decode(resealed(bytes(forged)))


# -------------------------------------------------------------------------------------- files


def test_files_round_trip(samples: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "llm.aotc"
    size = write(samples.archive, path)
    assert path.stat().st_size == size
    assert read(path) == canonical(samples.archive)
    assert [file.name for file in tmp_path.iterdir()] == ["llm.aotc"]


def test_unreadable_paths_are_io_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "fifo"):
        with pytest.raises(ArchiveError) as error:
            read(path)
        assert error.value.kind == "IO"
        assert str(path) in error.value.message


def test_an_invalid_archive_leaves_the_old_file(samples: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "llm.aotc"
    path.write_bytes(b"old")
    with pytest.raises(ArchiveError):
        write(Archive("", "1", ()), path)
    assert path.read_bytes() == b"old"


def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "llm.aotc"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match="No space left") as error:
        write_file(path, b"new")
    assert error.value.kind == "IO"
    assert [file.name for file in tmp_path.iterdir()] == ["llm.aotc"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_files_written_together_are_all_new_or_all_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    paths = [tmp_path / name for name in ("libllm.a", "llm.h", "llm.aotc")]
    for path in paths:
        path.write_bytes(b"old")
    left = iter(range(number - 1))

    def fail(_: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match=f"cannot write .*{paths[number - 1].name}: No space"):
        write_together(dict.fromkeys(paths, b"new"))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert {path.read_bytes() for path in paths} == {b"old"}
    monkeypatch.undo()
    write_together(dict.fromkeys(paths, b"new"))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert {path.read_bytes() for path in paths} == {b"new"}


def test_an_interrupt_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "llm.aotc"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["llm.aotc"]


def test_writing_into_a_missing_folder_is_an_io_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError) as error:
        write_file(tmp_path / "missing" / "llm.aotc", b"new")
    assert error.value.kind == "IO"
