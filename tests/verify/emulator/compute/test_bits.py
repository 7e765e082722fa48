"""Bit instructions against the loops of the PTX manual, on Python's integers."""

from __future__ import annotations

import operator
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


def amounts(count: int = 200) -> Any:
    """Return shift amounts: around every width, and huge ones."""
    shifts = np.resize(np.arange(70, dtype=np.uint32), count)
    shifts[-4:] = [256, 257, 1 << 31, ALL]
    return shifts


# ---- moves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_mov_copies(bits) -> None:
    a = words(bits)
    assert np.array_equal(compute(f"mov.b{bits}", a), a)
    assert int(compute(f"mov.b{bits}", -1)) == (1 << bits) - 1
    flags = np.array([True, False])
    assert np.array_equal(compute("mov.pred", flags, target=1), flags)
    assert bool(compute("mov.pred", -1, target=1))
    assert not bool(compute("mov.pred", 0, target=1))


@pytest.mark.parametrize(("bits", "count"), [(32, 2), (64, 2), (64, 4)])
def test_mov_packs_and_unpacks_the_first_element_lowest(bits, count) -> None:
    a = words(bits)
    part = bits // count
    parts = compute(f"mov.b{bits}", a, target=[part] * count)
    assert len(parts) == count
    want = a.view(f"u{part // 8}").reshape(-1, count)
    for index, element in enumerate(parts):
        assert np.array_equal(element, want[:, index])
    assert np.array_equal(compute(f"mov.b{bits}", tuple(parts), target=bits), a)


# ---- logic and shifts -------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits) -> None:
    a, b = words(bits), words(bits, seed=1)
    for opcode, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        assert np.array_equal(compute(f"{opcode}.b{bits}", a, b), apply(bits, function, a, b))
    assert np.array_equal(compute(f"not.b{bits}", a), apply(bits, operator.invert, a))
    assert np.array_equal(compute(f"cnot.b{bits}", a), apply(bits, lambda x: not x, a))


def test_logic_of_predicates() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert compute("and.pred", a, b).tolist() == [False, False, False, True]
    assert compute("or.pred", a, b).tolist() == [False, True, True, True]
    assert compute("xor.pred", a, b).tolist() == [False, True, True, False]
    assert compute("not.pred", a).tolist() == [True, True, False, False]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_past_the_width_leave_nothing_or_the_sign(bits) -> None:
    a, n = words(bits), amounts()
    capped = np.minimum(n, bits).astype(np.uint32)
    want = apply(bits, lambda x, s: x << s, a, capped)
    assert np.array_equal(compute(f"shl.b{bits}", a, n), want)
    want = apply(bits, lambda x, s: x >> s, a, capped)
    assert np.array_equal(compute(f"shr.u{bits}", a, n), want)
    assert np.array_equal(compute(f"shr.b{bits}", a, n), want)
    want = apply(bits, lambda x, s: signed(x, bits) >> s, a, capped)
    assert np.array_equal(compute(f"shr.s{bits}", a, n), want)
    assert np.array_equal(compute(f"shl.b{bits}", a, 3), a << a.dtype.type(3))


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(mode) -> None:
    a, b, n = words(32), words(32, seed=1), amounts()
    by = np.minimum(n, 32) if mode == "clamp" else n & 31
    left = apply(32, lambda x, y, s: ((y << 32 | x) << s) >> 32, a, b, by)
    assert np.array_equal(compute(f"shf.l.{mode}.b32", a, b, n), left)
    right = apply(32, lambda x, y, s: (y << 32 | x) >> s, a, b, by)
    assert np.array_equal(compute(f"shf.r.{mode}.b32", a, b, n), right)


@pytest.mark.parametrize("table", [0x00, 0x01, 0x80, 0xC0, 0xEA, 0x96, 0xCA, 0xFF])
def test_lop3_looks_up_every_bit(table) -> None:
    a, b, c = (words(32, seed=seed) for seed in range(3))

    def by_bit(x: int, y: int, z: int) -> int:
        index = ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1) for i in range(32))
        return sum((table >> entry & 1) << i for i, entry in enumerate(index))

    want = apply(32, by_bit, a, b, c)
    assert np.array_equal(compute("lop3.b32", a, b, c, table), want)
    q = np.arange(len(a)) % 2 == 0
    actual, p = compute("lop3.or.b32", a, b, c, table, q, target="pair")
    assert np.array_equal(actual, want)
    assert np.array_equal(p, (want != 0) | q)


# ---- bytes ------------------------------------------------------------------------------------

MODES = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


def picked(a: int, b: int, selector: int) -> int:
    bytes_ = (a | b << 32).to_bytes(8, "little")
    result = 0
    for index in range(4):
        nibble = selector >> (4 * index) & 15
        byte = bytes_[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << (8 * index)
    return result


def test_prmt() -> None:
    a, b, c = (words(32, seed=seed) for seed in range(3))
    assert np.array_equal(compute("prmt.b32", a, b, c), apply(32, picked, a, b, c))
    for selector in (0x3210, 0x7654, 0x4321, 0xBA98, 0x5140, 0x8880, 0x3281, 0xD5D4, 0xF72B):
        want = apply(32, lambda x, y, s=selector: picked(x, y, s), a, b)
        assert np.array_equal(compute("prmt.b32", a, b, selector), want)


@pytest.mark.parametrize("mode", MODES)
def test_prmt_modes(mode) -> None:
    a, b = words(32), words(32, seed=1)
    c = np.resize(np.arange(8, dtype=np.uint32), len(a))
    tables = [int(text, 16) for text in MODES[mode]]
    want = apply(32, lambda x, y, n: picked(x, y, tables[n & 3]), a, b, c)
    assert np.array_equal(compute(f"prmt.b32.{mode}", a, b, c), want)


@pytest.mark.parametrize(
    ("mnemonic", "count"),
    [
        ("and.s32", 2), ("not.b8", 1), ("mov.b128", 1), ("shl.wrap.b32", 2), ("shf.l.b32", 3),
        ("shf.l.wrap.b64", 3), ("lop3.b32", 4), ("prmt.b64", 3), ("mov.f16x4", 1),
    ],
)  # fmt: skip
def test_unknown_forms_are_refused(mnemonic, count) -> None:
    with pytest.raises(Unsupported):
        compute(mnemonic, *[words(32)] * count)
