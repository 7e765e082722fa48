"""Instructions as differences: lossless for any bytes, the same in C, and smaller."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aotc.package.code_filter import filtered, restored
from tests.support.fake_gpu import ROOT, compile_library

_HEADER, _SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<IIQQQQIIQQ")
_TABLE = 64


def _image(sections: list[tuple[int, int, int, int]], body: bytes, table: int = _TABLE) -> bytes:
    """Return a file with sections of (type, flags, offset, size), whose table comes before the body."""
    head = bytearray(_HEADER.pack(table, 64, len(sections), 0))
    rows = b"".join(
        _SECTION.pack(0, kind, flags, 0, start, size, 0, 0, 1, 0)
        for kind, flags, start, size in sections
    )
    return bytes(head) + rows + body


@pytest.fixture(scope="module")
def restored_in_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], bytes]:
    source = ROOT / "runtime_c" / "src" / "code_filter.c"
    path = compile_library([source], tmp_path_factory.mktemp("filter") / "filter.so")
    restore = ctypes.CDLL(str(path)).aotci_code_restore
    restore.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    restore.restype = None

    def call(stored: bytes) -> bytes:
        guard = b"\xa5" * 64
        buffer = ctypes.create_string_buffer(guard + stored + guard, len(stored) + 128)
        restore(ctypes.addressof(buffer) + 64, len(stored))
        assert buffer.raw[:64] == buffer.raw[len(stored) + 64 :] == guard
        return buffer.raw[64 : len(stored) + 64]

    return call


_instructions = st.lists(
    st.builds(
        lambda opcode, rest: opcode + rest,
        st.sampled_from([b"\x0f\x72", b"\x19\xf9", b"\x19\x89"]),
        st.binary(min_size=14, max_size=14),
    ),
    max_size=12,
).map(b"".join)


@given(first=_instructions, between=st.binary(max_size=20), second=_instructions)
def test_what_is_stored_comes_back(
    restored_in_c: Callable[[bytes], bytes], first: bytes, between: bytes, second: bytes
) -> None:
    start = _TABLE + 3 * 64
    after = start + len(first) + len(between)
    image = _image(
        [(1, 6, start, len(first)), (8, 6, start, 32), (1, 6, after, len(second))],
        first + between + second,
    )
    stored = filtered(image)
    assert restored(stored) == restored_in_c(stored) == image
    assert len(stored) == len(image)
    assert stored[start + len(first) : after] == between


@given(
    sections=st.lists(
        st.tuples(
            st.sampled_from([1, 8]),
            st.sampled_from([2, 6]),
            st.one_of(st.integers(0, 700), st.integers((1 << 64) - 32, (1 << 64) - 1)),
            st.one_of(st.sampled_from([0, 16, 32, 128]), st.integers(0, (1 << 64) - 1)),
        ),
        max_size=4,
    ),
    table=st.one_of(
        st.just(_TABLE), st.integers(0, 800), st.integers((1 << 64) - 64, (1 << 64) - 1)
    ),
    body=st.binary(max_size=600),
)
def test_forged_sections_are_the_same_to_both(
    restored_in_c: Callable[[bytes], bytes],
    sections: list[tuple[int, int, int, int]],
    table: int,
    body: bytes,
) -> None:
    image = _image(sections, body, table)
    assert restored(image) == restored_in_c(image)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127])
def test_what_is_too_short_stays(restored_in_c: Callable[[bytes], bytes], size: int) -> None:
    image = (b"\x7fELF" + bytes(_HEADER.pack(64, 64, 1, 0)))[:size].ljust(size, b"\1")
    assert filtered(image) == restored(image) == restored_in_c(image) == image


def test_unrolled_code_gets_smaller() -> None:
    modifiers, random_bytes = bytes(7), random.Random(3)
    code = b"".join(
        b"\x23\x72" + bytes([4 * at & 255, 8 + 2 * at & 255, at & 255, 0, at // 3, 0, 4 * at & 255])
        + modifiers
        for at in range(400)
    )  # fmt: skip
    image = _image([(1, 6, 128, len(code))], code + random_bytes.randbytes(50))
    sizes = [len(zstandard.compress(one, 19)) for one in (image, filtered(image))]
    assert sizes[1] * 4 < sizes[0]
