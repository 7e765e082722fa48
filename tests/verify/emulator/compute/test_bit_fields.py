"""Bit fields and counts against the loops of the PTX manual, on Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aotc.verify.emulator.errors import Unsupported
from tests.support.ptx_compute import compute, signed, words

ALL = 0xFFFFFFFF


def apply(bits: int, function: Callable[..., int], *arrays: Any) -> Any:
    rows = zip(*(array.tolist() for array in arrays), strict=True)
    return np.array([function(*row) % (1 << bits) for row in rows], f"u{bits // 8}")


def fields(bits: int) -> tuple[Any, Any]:
    edges = [0, 1, 5, bits // 2, bits - 1, bits, bits + 3, 255, 256, 256 + 7, 0x80000005, ALL]
    starts, lengths = np.meshgrid(edges, edges)
    return starts.ravel().astype(np.uint32), lengths.ravel().astype(np.uint32)


def read_bits(bits: int) -> int:
    """Return the mask of a position's or length's used bits: 8, or all for 64-bit words."""
    return 0xFF if bits == 32 else ALL


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bfe_takes_the_sign_from_the_last_bit(kind) -> None:
    bits = int(kind[1:])
    start, length = fields(bits)
    a = words(bits, len(start))

    def extract(x: int, pos: int, count: int) -> int:
        pos, count, msb = pos & read_bits(bits), count & read_bits(bits), bits - 1
        sign = 0 if kind[0] == "u" or count == 0 else x >> min(pos + count - 1, msb) & 1
        field_bits = (
            (x >> (pos + i) & 1) if i < count and pos + i <= msb else sign for i in range(bits)
        )
        return sum(bit << i for i, bit in enumerate(field_bits))

    want = apply(bits, extract, a, start, length)
    assert np.array_equal(compute(f"bfe.{kind}", a, start, length), want)


@pytest.mark.parametrize("bits", [32, 64])
def test_bfi_drops_bits_past_the_end(bits) -> None:
    start, length = fields(bits)
    a, b = words(bits, len(start)), words(bits, len(start), seed=1)

    def insert(x: int, y: int, pos: int, count: int) -> int:
        pos, count = pos & read_bits(bits), count & read_bits(bits)
        for i in range(min(count, bits)):
            if pos + i < bits:
                y = y & ~(1 << (pos + i)) | (x >> i & 1) << (pos + i)
        return y

    want = apply(bits, insert, a, b, start, length)
    assert np.array_equal(compute(f"bfi.b{bits}", a, b, start, length), want)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk_and_szext(mode) -> None:
    start, length = fields(32)

    def mask(a: int, b: int) -> int:
        if mode == "wrap":
            a, b = a & 31, b & 31
        return ((1 << min(b, 32)) - 1) << min(a, 32)

    actual = compute(f"bmsk.{mode}.b32", start, length)
    assert np.array_equal(actual, apply(32, mask, start, length))
    a = words(32, len(length))

    def extend(x: int, n: int, *, sign: bool) -> int:
        n = n & 31 if mode == "wrap" else min(n, 32)
        low = x & ((1 << n) - 1)
        return signed(low, n) if sign and n else low

    for kind in ("u32", "s32"):
        want = apply(32, lambda x, n, k=kind: extend(x, n, sign=k == "s32"), a, length)
        assert np.array_equal(compute(f"szext.{mode}.{kind}", a, length), want)


# ---- counting and finding ---------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(bits) -> None:
    a = words(bits)
    assert np.array_equal(compute(f"popc.b{bits}", a), apply(32, lambda x: x.bit_count(), a))
    assert np.array_equal(compute(f"clz.b{bits}", a), apply(32, lambda x: bits - x.bit_length(), a))
    turned = apply(bits, lambda x: int(f"{x:0{bits}b}"[::-1], 2), a)
    assert np.array_equal(compute(f"brev.b{bits}", a, target=bits), turned)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bfind(kind) -> None:
    bits = int(kind[1:])
    a = words(bits)

    def find(x: int) -> int:
        x = ~signed(x, bits) if kind[0] == "s" and signed(x, bits) < 0 else x
        return x.bit_length() - 1

    assert np.array_equal(compute(f"bfind.{kind}", a), apply(32, find, a))
    want = apply(32, lambda x: bits - 1 - find(x) if find(x) >= 0 else -1, a)
    assert np.array_equal(compute(f"bfind.shiftamt.{kind}", a), want)


def test_fns_finds_the_nth_set_bit() -> None:
    mask = np.array([0b10110, 0b10110, 0b10110, 0b10110, 0b10110, 0, 1 << 31, 3], np.uint32)
    base = np.array([0, 0, 4, 2, 3, 0, 31, 8], np.uint32)
    n = np.array([1, 4, -2, 0, 0, 1, 1, -(1 << 31)]).astype(np.uint32)
    want = [1, ALL, 2, 2, ALL, ALL, 31, 0]
    assert compute("fns.b32", mask, base, n).tolist() == want


@pytest.mark.parametrize(
    ("mnemonic", "count"),
    [
        ("popc.b16", 1), ("bfe.u16", 3), ("bfi.b16", 4), ("brev.u8", 1), ("bmsk.b32", 2),
        ("szext.s32", 2), ("fns.b64", 3), ("fns.u32", 3), ("bfind.u16", 1), ("clz.wrap.b32", 1),
    ],
)  # fmt: skip
def test_unknown_forms_are_refused(mnemonic, count) -> None:
    with pytest.raises(Unsupported):
        compute(mnemonic, *[words(32)] * count)
