"""Every possible fault of an archive is found and named."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.package.archive.file import decode, encode
from aotc.package.archive.index import (
    Archive,
    ArchiveError,
)
from aotc.package.archive.layout import KERNEL_SECTIONS, ROOT_SECTIONS
from tests.support.archive_bytes import (
    ROOT,
    field,
    frame_rows,
    index_of,
    num_kernels,
    patched,
    place,
    places_of,
    refusal,
    resealed,
    root_at,
    root_end,
    u32,
    with_blob,
    with_contents,
    with_field,
    with_frame,
    with_index,
)
from tests.support.extent import examples

_GOLDEN = Path(__file__).with_name("golden.aotc")


def test_every_truncation_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    for size in range(len(data)):
        assert refusal(data[:size]).kind == "FORMAT", size


def test_every_flipped_bit_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
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
    for version, other in ((b"\x0a\0", "10.0"), (b"\x08\0", "8.0")):
        error = refusal(patched(data, 8, version))
        assert (error.kind, other in error.message, "9.0" in error.message) == (
            "VERSION",
            True,
            True,
        )
    error = refusal(resealed(patched(data, 16, b"\1\2")))
    assert error.kind == "VERSION"
    assert "bits 9" in error.message


def test_a_newer_minor_version_may_append(samples: SimpleNamespace) -> None:
    """New trailing sections and optional features do not stop an older reader."""
    data = encode(samples.small)
    newer = resealed(patched(patched(data, 10, b"\1\0"), 24, b"\1"))
    assert decode(newer) == samples.small
    assert refusal(resealed(patched(data, 24, b"\1"))).kind == "FORMAT"


@pytest.mark.parametrize("offset", [32, 48])
def test_huge_sizes_are_refused_before_allocation(samples: SimpleNamespace, offset: int) -> None:
    assert refusal(patched(encode(samples.small), offset, b"\xff" * 8)).kind == "LIMIT"


@pytest.mark.parametrize("name", ROOT_SECTIONS)
def test_huge_counts_are_refused_before_allocation(samples: SimpleNamespace, name: str) -> None:
    data = encode(samples.small)
    count_at = root_at(data) + 8 + 16 * ROOT_SECTIONS.index(name) + 12
    assert refusal(resealed(patched(data, count_at, b"\xff" * 4))).kind == "LIMIT"


@pytest.mark.parametrize("name", KERNEL_SECTIONS)
def test_huge_counts_of_a_kernel_are_refused(samples: SimpleNamespace, name: str) -> None:
    data = encode(samples.small)
    count_at = 8 + 16 * KERNEL_SECTIONS.index(name) + 12
    assert refusal(with_index(data, 0, count_at, b"\xff" * 4)).kind == "LIMIT"


def test_a_section_behind_the_index_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    offset_at = 8 + 16 * KERNEL_SECTIONS.index("VARIANTS") + 8
    error = refusal(with_index(data, 0, offset_at, b"\0\0\0\x7f"))
    assert (error.kind, "VARIANTS" in error.message) == ("FORMAT", True)


@pytest.mark.parametrize("field_offset", [8, 16, 20])
def test_overlapping_indices_are_refused(samples: SimpleNamespace, field_offset: int) -> None:
    data = encode(samples.archive)
    first, second = (field(data, "ENTRIES", number, field_offset) for number in (0, 1))
    size = 8 if field_offset == 8 else 4
    assert data[first : first + size] != data[second : second + size]
    overlapping = resealed(patched(data, second, data[first : first + size]))
    assert refusal(overlapping).kind == "FORMAT"


def test_frames_may_not_be_exchanged(samples: SimpleNamespace) -> None:
    """An index names its kernel, and the content of each frame."""
    data = encode(samples.archive)
    kernels = num_kernels(data)
    assert kernels > 1
    contents = {0: index_of(data, 1), 1: index_of(data, 0)}
    assert refusal(with_contents(data, contents)).kind == "FORMAT"
    for kernel in range(kernels):
        assert refusal(with_field(data, "ENTRIES", kernel, 24, bytes(32))).kind == "CHECKSUM"
        for number in range(place(data, "FRAMES", kernel)[1]):
            changed = with_field(data, "FRAMES", number, 8, bytes(32), kernel)
            assert refusal(changed).kind == "CHECKSUM"
    offsets = [offset for offset, *_ in frame_rows(data)]
    for *_, position in places_of(data):
        for value in (0, *offsets, offsets[-1] + 1, len(data), 1 << 63):
            changed = patched(data, position, value.to_bytes(8, "little"))
            if changed != data:
                assert refusal(changed).kind == "FORMAT"


@pytest.mark.parametrize("record", range(4))
def test_slots_are_those_of_the_names(samples: SimpleNamespace, record: int) -> None:
    data = encode(samples.archive)
    assert record < place(data, "SLOTS")[1]
    for field_offset, value in ((0, 0), (0, 7), (4, 0), (4, 1), (4, 2), (4, num_kernels(data) + 1)):
        changed = patched(data, field(data, "SLOTS", record, field_offset), u32(value))
        if changed != data:
            error = refusal(resealed(changed))
            assert (error.kind, "SLOTS" in error.message) == ("FORMAT", True)


@pytest.mark.parametrize(
    ("field_offset", "value", "kind"),
    [
        (0, 1, "FORMAT"),  # another frame, size or kind than the place before it leaves
        (8, 1, "FORMAT"),
        (12, 2, "FORMAT"),
        (4, 0, "FORMAT"),
        (4, 1, "FORMAT"),
        (4, 64 << 20, "LIMIT"),
    ],
)
def test_a_blob_elsewhere_than_in_its_frame_is_refused(
    samples: SimpleNamespace, field_offset: int, value: int, kind: str
) -> None:
    data = encode(samples.archive)
    kernel = 1
    start = field(data, "BLOBS", 2, 4, kernel)
    assert any(index_of(data, kernel)[start : start + 4])
    assert refusal(with_field(data, "BLOBS", 2, field_offset, u32(value), kernel)).kind == kind


def test_padding_is_zero_everywhere(samples: SimpleNamespace) -> None:
    data = encode(samples.archive)
    strings, count = place(data, "STRINGS")
    assert count % 8, "the sample has padding behind a section"
    assert refusal(resealed(patched(data, strings + count, b"\1"))).kind == "FORMAT"
    code, count = place(data, "CODE", 1)
    assert count % 8, "the sample has padding behind a section"
    assert refusal(with_index(data, 1, code + count, b"\1")).kind == "FORMAT"


def test_a_hole_before_a_frame_is_refused(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    *_, offset, position = places_of(data)[0]
    holed = data[:offset] + bytes(64) + data[offset:]
    holed = patched(
        patched(holed, position, (offset + 64).to_bytes(8, "little")), 32, u32(len(holed))
    )
    error = refusal(resealed(holed))
    assert (error.kind, "follow one another" in error.message) == ("FORMAT", True)


def test_duplicate_kernel_names_are_refused(samples: SimpleNamespace) -> None:
    with pytest.raises(ArchiveError, match="two kernel names") as error:
        encode(Archive("n", "1", (samples.copy, samples.copy)))
    assert error.value.kind == "FORMAT"
    data = encode(samples.archive)
    name_at = field(data, "ENTRIES", 0, 0)
    renamed = patched(data, field(data, "ENTRIES", 1, 0), data[name_at : name_at + 4])
    assert refusal(resealed(renamed)).kind == "FORMAT"


@pytest.mark.parametrize("bad", [b"\0", b"\xff", b"\xc3"])
def test_names_are_utf8_without_nul(samples: SimpleNamespace, bad: bytes) -> None:
    data = encode(samples.small)
    strings, _ = place(data, "STRINGS")
    position = data.index(b"copy\0", strings)
    assert refusal(resealed(patched(data, position + 2, bad))).kind == "FORMAT"
    position = index_of(data, 0).index(b"copy\0")
    assert refusal(with_index(data, 0, position + 2, bad)).kind == "FORMAT"


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "n" * 256])
def test_bad_names_are_not_written(samples: SimpleNamespace, name: str) -> None:
    with pytest.raises(ArchiveError) as error:
        encode(Archive("n", "1", (replace(samples.copy, name=name),)))
    assert error.value.kind == ("LIMIT" if len(name) > 255 else "FORMAT")


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
    """A variant's PTX is never launched, so it must not pass for a cubin."""
    variant = samples.copy.variants[0]
    kernel = replace(samples.copy, variants=(replace(variant, ptx=variant.cubin),))
    with pytest.raises(ArchiveError, match="its PTX is not UTF-8 at byte 18"):  # e_machine
        encode(Archive("n", "1", (kernel,)))
    data = encode(samples.small)
    assert refusal(with_field(data, "VARIANTS", 0, 24, u32(0), 0)).kind == "FORMAT"


def test_strings_are_sorted_and_distinct(samples: SimpleNamespace) -> None:
    data = encode(samples.small)
    for kernel in (ROOT, 0):
        strings, count = place(data, "STRINGS", kernel)
        for forged in (bytes(count), b"\0" * 2 + b"z" * (count - 3) + b"\0"):
            if kernel == ROOT:
                error = refusal(resealed(patched(data, strings, forged)))
            else:
                error = refusal(with_index(data, kernel, strings, forged))
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
    for label, (changed, raw_bytes) in frames.items():
        assert refusal(with_frame(data, changed, raw_bytes)).kind == "FORMAT", label


def test_bombs_are_refused_before_decoding(samples: SimpleNamespace) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes((64 << 20) + 1))
    assert refusal(with_frame(encode(samples.small), bomb, (64 << 20) + 1)).kind == "LIMIT"


@pytest.mark.parametrize("kernel", [ROOT, 0])
def test_every_field_of_an_index_at_its_extremes(samples: SimpleNamespace, kernel: int) -> None:
    """A forged index is refused, or it is the canonical encoding of something sensible."""
    data = encode(samples.small)
    index = data[: root_end(data)] if kernel == ROOT else index_of(data, kernel)
    outcomes = {"refused": 0, "accepted": 0}
    for position in range(root_at(data) if kernel == ROOT else 0, len(index), 4):
        old = int.from_bytes(index[position : position + 4], "little")
        for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, old ^ 1, old + 1, old ^ 0x10000):
            if value & 0xFFFFFFFF == old:
                continue
            new = u32(value & 0xFFFFFFFF)
            if kernel == ROOT:
                forged = resealed(patched(data, position, new))
            else:
                forged = with_index(data, kernel, position, new)
            try:
                archive = decode(forged)
            except ArchiveError:
                outcomes["refused"] += 1
            else:
                again = encode(archive)
                assert index_of(again, 0) == index_of(forged, 0)
                outcomes["accepted"] += 1
    assert outcomes["refused"] > 5 * outcomes["accepted"] > 0


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_forged_indices_never_escape(samples: SimpleNamespace, data: st.DataObject) -> None:
    """Several random changes at once end in an `ArchiveError` or in an archive."""
    golden = _GOLDEN.read_bytes()
    kernel = data.draw(st.integers(ROOT, num_kernels(golden) - 1))
    start = root_at(golden) if kernel == ROOT else 0
    forged = bytearray(golden if kernel == ROOT else index_of(golden, kernel))
    end = root_end(golden) if kernel == ROOT else len(forged)
    for _ in range(data.draw(st.integers(1, 4))):
        forged[data.draw(st.integers(start, end - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(forged)
    with suppress(ArchiveError):
        decode(resealed(changed) if kernel == ROOT else with_contents(golden, {kernel: changed}))
