"""Cubins as a frame has them: lossless for any bytes, the same in C, and smaller."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aotc.package.archive.code_filter import filtered, restored
from tests.support.fake_gpu import ROOT, compile_library

_HEADER, _SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<IIQQQQIIQQ")
_HEAD_BYTES = 64


def _image(
    sections: Sequence[tuple[int, int, int, int, int]], body: bytes, table: int | None = None
) -> bytes:
    """Return a file of (type, flags, offset, size, alignment) sections, its table after the body."""
    table_offset = _HEAD_BYTES + len(body) if table is None else table
    head = bytearray(_HEADER.pack(table_offset, 64, len(sections), 0))
    rows = b"".join(
        _SECTION.pack(0, kind, flags, 0, start, size, 0, 0, align, 0)
        for kind, flags, start, size, align in sections
    )
    return bytes(head) + body + rows


@pytest.fixture(scope="module")
def restored_in_c(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[bytes, Sequence[int]], list[bytes]]:
    source = ROOT / "runtime_c" / "src" / "code_filter.c"
    library = ctypes.CDLL(
        str(compile_library([source], tmp_path_factory.mktemp("filter") / "filter.so"))
    )
    code_bytes, restore = library.aotci_code_bytes, library.aotci_code_restore
    code_bytes.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    code_bytes.restype = ctypes.c_size_t
    restore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    restore.restype = None
    guard = b"\xa5" * 64

    def one(size: int, rest: int, code: int) -> bytes:
        cubin = ctypes.create_string_buffer(guard + bytes(size) + guard, size + 128)
        restore(ctypes.addressof(cubin) + 64, size, rest, code)
        assert cubin.raw[:64] == cubin.raw[size + 64 :] == guard
        return cubin.raw[64 : size + 64]

    def call(stored: bytes, sizes: Sequence[int]) -> list[bytes]:
        # A buffer of exactly these bytes: under a sanitizer, a read past its end is an error.
        frame = ctypes.create_string_buffer(stored, max(len(stored), 1))
        rest, code = ctypes.addressof(frame), ctypes.addressof(frame) + len(stored)
        cubins: list[bytes] = []
        for size in sizes:
            apart = code_bytes(rest, size)
            assert apart <= size
            code -= apart
            cubins.append(one(size, rest, code))
            rest += size - apart
        assert rest == code
        return cubins

    return call


_instructions = st.lists(
    st.builds(
        lambda opcode, rest: opcode + rest,
        st.sampled_from([b"\x0f\x72", b"\x19\xf9", b"\x19\x89"]),
        st.binary(min_size=14, max_size=14),
    ),
    max_size=12,
).map(b"".join)


@st.composite
def _cubins(draw: st.DrawFn) -> bytes:
    """Draw a file with two sections of code, one without bytes in the file, and bytes between and after."""
    first, second = draw(_instructions), draw(_instructions)
    between, after = draw(st.binary(max_size=20)), draw(st.binary(max_size=20))
    start = _HEAD_BYTES
    again = start + len(first) + len(between)
    aligns = st.sampled_from([0, 1, 4, 128, 3, (1 << 64) - 1])
    sections = [
        (1, 6, start, len(first), draw(aligns)),
        (8, 6, start, 32, draw(aligns)),
        (1, 6, again, len(second), draw(aligns)),
    ]
    return _image(sections, first + between + second + after) + draw(st.binary(max_size=20))


@given(cubins=st.lists(_cubins(), min_size=1, max_size=4))
def test_what_is_stored_comes_back(
    restored_in_c: Callable[[bytes, Sequence[int]], list[bytes]], cubins: list[bytes]
) -> None:
    stored, sizes = filtered(cubins), list(map(len, cubins))
    assert restored(stored, sizes) == restored_in_c(stored, sizes) == cubins
    assert len(stored) == sum(sizes)


_any_u64 = st.one_of(
    st.integers(0, 900), st.integers((1 << 64) - 900, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)
)


@given(
    sections=st.lists(
        st.tuples(
            st.sampled_from([1, 8]),
            st.sampled_from([2, 6]),
            _any_u64,
            st.one_of(st.sampled_from([0, 16, 32, 128]), _any_u64),
            st.one_of(st.sampled_from([0, 1, 128]), _any_u64),
        ),
        max_size=4,
    ),
    table=st.one_of(st.none(), st.just(64), _any_u64),
    body=st.binary(max_size=600),
    other_cubins=st.lists(st.binary(max_size=200), max_size=2),
)
def test_forged_sections_are_the_same_to_both(
    restored_in_c: Callable[[bytes, Sequence[int]], list[bytes]],
    sections: list[tuple[int, int, int, int, int]],
    table: int | None,
    body: bytes,
    other_cubins: list[bytes],
) -> None:
    cubins = [_image(sections, body, table), *other_cubins]
    sizes = list(map(len, cubins))
    for stored in (b"".join(cubins), filtered(cubins)):
        cubins_again = restored(stored, sizes)
        assert cubins_again == restored_in_c(stored, sizes)
    assert cubins_again == cubins


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127])
def test_what_is_too_short_stays(
    restored_in_c: Callable[[bytes, Sequence[int]], list[bytes]], size: int
) -> None:
    image = (b"\x7fELF" + bytes(_HEADER.pack(64, 64, 1, 0)))[:size].ljust(size, b"\1")
    assert filtered([image]) == image
    assert restored(image, [size]) == restored_in_c(image, [size]) == [image]


def test_code_comes_after_all_else_the_last_one_first() -> None:
    code = [bytes([0x23, 0x72, *range(start, start + 14)]) for start in (0, 40)]
    cubins = [_image([(1, 6, 65, 16, 1)], b"\7" + instruction + b"\5") for instruction in code]
    stored = filtered(cubins)
    rest_bytes = len(cubins[0]) - 16
    assert stored[40:48] == cubins[0][40:48]
    rests = [stored[:rest_bytes], stored[rest_bytes : 2 * rest_bytes]]
    assert [rest[128:] for rest in rests] == [b"\7\5", b"\7\5"]
    assert [filtered([cubin]) for cubin in cubins] == [
        rests[0] + stored[-16:],
        rests[1] + stored[-32:-16],
    ]


def test_fields_of_an_instruction_have_the_places_that_the_format_gives() -> None:
    """Each bit of an instruction alone, after one of zeros in the same slot, moves to where its field is stored."""
    stored_bits = [
        (range(24, 32), 0), (range(16, 24), 8), (range(32, 40), 16), (range(64, 72), 24),
        (range(72, 80), 32), (range(88, 96), 40), (range(12), 48), (range(96, 100), 60),
        (range(80, 88), 64), (range(40, 64), 72),
        (range(110, 116), 96), (range(126, 128), 102), (range(12, 16), 104), (range(100, 104), 108),
        (range(116, 122), 112), (range(124, 126), 118), (range(109, 110), 120),
        (range(105, 109), 121), (range(104, 105), 125), (range(122, 124), 126),
    ]  # fmt: skip
    stored_by_bit = {
        bit: offset + i for field, offset in stored_bits for i, bit in enumerate(field)
    }
    assert sorted(stored_by_bit) == sorted(stored_by_bit.values()) == list(range(128))
    for bit, stored_bit in stored_by_bit.items():
        image = _image([(1, 6, 64, 16, 1)], (1 << bit).to_bytes(16, "little"))
        assert int.from_bytes(filtered([image])[-16:], "little") == 1 << stored_bit, bit


def test_unrolled_code_gets_smaller() -> None:
    modifiers, random_bytes = bytes(7), random.Random(3)
    code = b"".join(
        b"\x23\x72" + bytes([4 * step & 255, 8 + 2 * step & 255, step & 255, 0, step // 3, 0, 4 * step & 255])
        + modifiers
        for step in range(400)
    )  # fmt: skip
    image = _image([(1, 6, 64, len(code), 128)], code + random_bytes.randbytes(50))
    sizes = [len(zstandard.compress(content, 19)) for content in (image, filtered([image]))]
    assert sizes[1] * 4 < sizes[0]


def test_offsets_that_follow_from_sizes_are_stored_as_zeros() -> None:
    sizes = [48, 3, 16, 100]
    starts = [-(-end // 16) * 16 for end in accumulate(sizes, initial=64)]
    sections = [(1, 2, start, size, 16) for start, size in zip(starts, sizes, strict=False)]
    stored = filtered([_image(sections, bytes(starts[-1] - 64))])
    rows = _SECTION.iter_unpack(stored[64 : 64 + 64 * len(sizes)])
    assert [row[4] for row in rows] == [64, 0, 0, 0]  # the first one is from the start of the file
