"""Integer instructions against Python's unbounded integers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.emulator.errors import Unsupported
from tests.support.ptx_compute import compute, signed, words

TYPES = [f"{sign}{bits}" for bits in (16, 32, 64) for sign in "us"]


def bits_of(kind: str) -> int:
    return int(kind[1:].removesuffix("x2"))


def value(word: Any, kind: str) -> int:
    return signed(int(word), bits_of(kind)) if kind[0] == "s" else int(word)


def expected(kind: str, function: Callable[..., int], *arrays: Any, bits: int = 0) -> Any:
    """Return the low bits of a function of integers, over arrays."""
    bits = bits or bits_of(kind)
    results = [function(*(value(word, kind) for word in row)) for row in zip(*arrays, strict=True)]
    return np.array([result % (1 << bits) for result in results], f"u{bits // 8}")


def clamped(number: int, kind: str) -> int:
    bits = bits_of(kind)
    low = -(1 << (bits - 1)) if kind[0] == "s" else 0
    return max(low, min(number, low + (1 << bits) - 1))


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("kind", TYPES)
def test_sums_products_and_extremes(kind) -> None:
    bits = bits_of(kind)
    a, b, c = (words(bits, seed=seed) for seed in range(3))
    cases: dict[str, Callable[..., int]] = {
        f"add.{kind}": operator.add,
        f"sub.{kind}": operator.sub,
        f"mul.lo.{kind}": operator.mul,
        f"mul.hi.{kind}": lambda x, y: x * y >> bits,
        f"min.{kind}": min,
        f"max.{kind}": max,
    }
    for mnemonic, function in cases.items():
        actual = compute(mnemonic, a, b, target=bits)
        assert actual.dtype == a.dtype
        assert np.array_equal(actual, expected(kind, function, a, b)), mnemonic
    for mnemonic, function in {
        f"mad.lo.{kind}": lambda x, y, z: x * y + z,
        f"mad.hi.{kind}": lambda x, y, z: (x * y >> bits) + z,
        f"sad.{kind}": lambda x, y, z: z + abs(x - y),
    }.items():
        actual = compute(mnemonic, a, b, c, target=bits)
        assert np.array_equal(actual, expected(kind, function, a, b, c)), mnemonic


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind) -> None:
    bits = bits_of(kind)
    a, b, c = words(bits), words(bits, seed=1), words(2 * bits, seed=2)
    actual = compute(f"mul.wide.{kind}", a, b, target=2 * bits)
    assert np.array_equal(actual, expected(kind, operator.mul, a, b, bits=2 * bits))
    want = expected(kind, operator.mul, a, b, bits=2 * bits) + c
    assert np.array_equal(compute(f"mad.wide.{kind}", a, b, c, target=2 * bits), want)


@pytest.mark.parametrize("kind", TYPES)
def test_quotients_truncate_and_zero_gives_all_ones(kind) -> None:
    bits = bits_of(kind)
    a, b = words(bits), words(bits, seed=1)
    b[:20] = 0
    nonzero = b != 0
    quotient = compute(f"div.{kind}", a, b, target=bits)
    remainder = compute(f"rem.{kind}", a, b, target=bits)
    want = expected(kind, truncated, a[nonzero], b[nonzero])
    assert np.array_equal(quotient[nonzero], want)
    rest = expected(kind, lambda x, y: x - truncated(x, y) * y, a[nonzero], b[nonzero])
    assert np.array_equal(remainder[nonzero], rest)
    assert np.all(quotient[~nonzero] == (1 << bits) - 1)
    assert np.all(remainder[~nonzero] == (1 << bits) - 1)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_neg_and_abs_wrap_at_the_least_number(bits) -> None:
    a, kind = words(bits), f"s{bits}"
    assert np.array_equal(compute(f"neg.{kind}", a), expected(kind, operator.neg, a))
    assert np.array_equal(compute(f"abs.{kind}", a), expected(kind, abs, a))


def test_saturating_forms() -> None:
    a, b, c = (words(32, seed=seed) for seed in range(3))
    for opcode, function in (("add", operator.add), ("sub", operator.sub)):
        want = expected("s32", lambda x, y, f=function: clamped(f(x, y), "s32"), a, b)
        assert np.array_equal(compute(f"{opcode}.sat.s32", a, b), want)
    want = expected("s32", lambda x, y, z: clamped((x * y >> 32) + z, "s32"), a, b, c)
    assert np.array_equal(compute("mad.hi.sat.s32", a, b, c), want)
    relu = expected("s32", lambda x, y: max(0, min(x, y)), a, b)
    assert np.array_equal(compute("min.relu.s32", a, b), relu)


@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
def test_halves_are_computed_apart(kind) -> None:
    a, b = words(32), words(32, seed=1)
    for opcode in ("add", "min", "max"):
        actual = compute(f"{opcode}.{kind}", a, b).view(np.uint16)
        want = compute(f"{opcode}.{kind[:3]}", a.view(np.uint16), b.view(np.uint16), target=16)
        assert np.array_equal(actual, want)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_24_bit_products(kind) -> None:
    a, b, c = (words(32, seed=seed) for seed in range(3))

    def low24(word: int) -> int:
        return signed(word, 24) if kind[0] == "s" else word % (1 << 24)

    for part, shift in (("lo", 0), ("hi", 16)):
        want = expected(kind, lambda x, y, s=shift: low24(x) * low24(y) >> s, a, b)
        assert np.array_equal(compute(f"mul24.{part}.{kind}", a, b), want)
        assert np.array_equal(compute(f"mad24.{part}.{kind}", a, b, c), want + c)


@pytest.mark.parametrize("a_kind", ["u32", "s32"])
@pytest.mark.parametrize("b_kind", ["u32", "s32"])
def test_dot_products_of_bytes(a_kind, b_kind) -> None:
    a, b, c = (words(32, seed=seed) for seed in range(3))

    def part(word: int, index: int, bits: int, kind: str) -> int:
        piece = int(word) >> (index * bits) & ((1 << bits) - 1)
        return signed(piece, bits) if kind[0] == "s" else piece

    def dot4(x: int, y: int, z: int) -> int:
        return z + sum(part(x, i, 8, a_kind) * part(y, i, 8, b_kind) for i in range(4))

    def dot2(x: int, y: int, z: int, first: int) -> int:
        return z + sum(part(x, i, 16, a_kind) * part(y, first + i, 8, b_kind) for i in range(2))

    types = f"{a_kind}.{b_kind}"
    assert np.array_equal(compute(f"dp4a.{types}", a, b, c), expected("u32", dot4, a, b, c))
    for mode, first in (("lo", 0), ("hi", 2)):
        want = expected("u32", lambda x, y, z, f=first: dot2(x, y, z, f), a, b, c)
        assert np.array_equal(compute(f"dp2a.{mode}.{types}", a, b, c), want)


# ---- carries ----------------------------------------------------------------------------------

LIMBS = st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3)
EDGES = st.sampled_from([0, 1, 2**32 - 1, 2**31])
NUMBERS = st.one_of(LIMBS, st.lists(EDGES, min_size=3, max_size=3))


def limbs(number: int, count: int) -> list[Any]:
    return [np.array([number >> (32 * index) & 0xFFFFFFFF], np.uint32) for index in range(count)]


def number(parts: list[Any]) -> int:
    return sum(int(part[0]) << (32 * index) for index, part in enumerate(parts))


@given(NUMBERS, NUMBERS)
def test_chains_add_and_subtract_long_numbers(x, y) -> None:
    a, b = ([np.array([limb], np.uint32) for limb in limbs] for limbs in (x, y))
    for first, rest, sign in (("add.cc", "addc.cc", 1), ("sub.cc", "subc.cc", -1)):
        low, carry = compute(f"{first}.u32", a[0], b[0], target="pair")
        middle, carry = compute(f"{rest}.u32", a[1], b[1], carry, target="pair")
        high = compute(f"{rest.removesuffix('.cc')}.u32", a[2], b[2], carry)
        want = (number(a) + sign * number(b)) % (1 << 96)
        assert number([low, middle, high]) == want
        _, last = compute(f"{rest}.u32", a[2], b[2], carry, target="pair")
        assert bool(last[0]) == (number(a) + sign * number(b) != want)


@given(NUMBERS, st.one_of(EDGES, st.integers(0, 2**32 - 1)), NUMBERS)
def test_chains_multiply_and_add_long_numbers(x, factor, addend) -> None:
    """A number of 96 bits times a word plus a number of 128: low products first, then high."""
    a, c = ([np.array([limb], np.uint32) for limb in limbs] for limbs in (x, addend))
    c.append(np.array([0], np.uint32))
    m = np.array([factor], np.uint32)
    r = [np.zeros(1, np.uint32)] * 4
    r[0], carry = compute("mad.lo.cc.u32", a[0], m, c[0], target="pair")
    r[1], carry = compute("madc.lo.cc.u32", a[1], m, c[1], carry, target="pair")
    r[2], carry = compute("madc.lo.cc.u32", a[2], m, c[2], carry, target="pair")
    r[3] = compute("addc.u32", c[3], 0, carry)
    r[1], carry = compute("mad.hi.cc.u32", a[0], m, r[1], target="pair")
    r[2], carry = compute("madc.hi.cc.u32", a[1], m, r[2], carry, target="pair")
    r[3] = compute("madc.hi.u32", a[2], m, r[3], carry)
    assert number(r) == (number(a) * factor + number(c)) % (1 << 128)


def test_carries_of_64_bits() -> None:
    a, b = words(64), words(64, seed=1)
    low, carry = compute("add.cc.u64", a, b, target="pair")
    assert np.array_equal(low, a + b)
    exact = [int(x) + int(y) >= 1 << 64 for x, y in zip(a, b, strict=True)]
    assert np.array_equal(carry, exact)


# ---- operands and refusals --------------------------------------------------------------------


def test_constants_and_wider_registers_are_cut_down() -> None:
    a = words(32)
    assert np.array_equal(compute("add.s32", a, -1), a - np.uint32(1))
    assert np.array_equal(compute("add.s32", -1, a), a - np.uint32(1))
    product = compute("mul.lo.s32", -3, 5)
    assert int(product) == 2**32 - 15
    wide = words(64)
    low = wide.astype(np.uint32)
    assert np.array_equal(compute("add.s32", a, wide), a + low)


def test_exact_operands_reach_numpy_itself() -> None:
    from aotc.verify.emulator.compute.registry import COMPUTES
    from tests.support.ptx_compute import instruction

    a = words(32)
    assert COMPUTES["add"](instruction("add.s32", [a, a])) is np.add


@pytest.mark.parametrize(
    ("mnemonic", "count"),
    [
        ("add.s8", 2), ("add.b32", 2), ("add.sat.u32", 2), ("add.wide.s32", 2), ("mul.s32", 2),
        ("mul.wide.s64", 2), ("mad.lo.sat.s32", 3), ("neg.u32", 1), ("min.relu.u32", 2),
        ("add", 2), ("add.s32", 3), ("add.s32", 1), ("add.s32.s32", 2), ("dp4a.s32.u16", 3),
        ("mul.lo.u16x2", 2), ("dp2a.s32.u32", 3), ("div.rn.s32", 2), ("sad.u8", 3),
    ],
)  # fmt: skip
def test_unknown_forms_are_refused(mnemonic, count) -> None:
    with pytest.raises(Unsupported):
        compute(mnemonic, *[words(32)] * count)
