"""Comparisons and choices against Python's own comparisons."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from aotc.verify.emulator.errors import Unsupported
from tests.support.ptx_compute import compute, signed, words
from tests.support.softfloat import LAYOUTS, decode, samples

COUNT = 300
ORDER = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
EQUALITY = {"eq": operator.eq, "ne": operator.ne}
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}


@pytest.mark.parametrize("kind", [f"{s}{bits}" for bits in (16, 32, 64) for s in "bus"])
def test_integers_compare_by_sign(kind) -> None:
    bits = int(kind[1:])
    a, b = words(bits), words(bits, seed=1)
    b[::5] = a[::5]
    tables = {"b": EQUALITY, "s": EQUALITY | ORDER, "u": EQUALITY | ORDER | UNSIGNED}
    for name, function in tables[kind[0]].items():
        values = [
            [signed(int(x), bits) if kind[0] == "s" else int(x) for x in array] for array in (a, b)
        ]
        want = [function(x, y) for x, y in zip(*values, strict=True)]
        actual = compute(f"setp.{name}.{kind}", a, b, target=1)
        assert actual.dtype == bool
        assert actual.tolist() == want, name


@pytest.mark.parametrize("kind", LAYOUTS)
def test_floats_compare_ordered_or_not(kind) -> None:
    layout = LAYOUTS[kind]
    a, b = samples(layout, COUNT, 1), samples(layout, COUNT, 2)
    b[::5] = a[::5]
    zero, nan = a.dtype.type(0), a.dtype.type(layout.nan)
    top = a.dtype.type(1 << (layout.bits - 1))
    a[:6], b[:6] = [zero, top, nan, zero, nan, nan | top], [top, zero, zero, nan, nan, nan]
    values = [[decode(x, layout) for x in array] for array in (a, b)]
    for name, function in (EQUALITY | ORDER).items():
        for unordered in ("", "u"):
            want = []
            for x, y in zip(*values, strict=True):
                missing = x != x or y != y  # noqa: PLR0124
                want.append(bool(unordered) if missing else function(x, y))
            actual = compute(f"setp.{name}{unordered}.{kind}", a, b, target=1)
            assert actual.tolist() == want, name
    missing = [x != x or y != y for x, y in zip(*values, strict=True)]  # noqa: PLR0124
    assert any(missing)
    assert compute(f"setp.nan.{kind}", a, b, target=1).tolist() == missing
    assert compute(f"setp.num.{kind}", a, b, target=1).tolist() == [not m for m in missing]


def test_ftz_compares_subnormals_as_zeros() -> None:
    tiny, zero = np.array([1, 0x80000001], np.uint32), np.zeros(2, np.uint32)
    assert compute("setp.eq.ftz.f32", tiny, zero, target=1).all()
    assert not compute("setp.eq.f32", tiny, zero, target=1).any()


def test_results_combine_and_pair_with_their_negation() -> None:
    a, b = words(32), words(32, seed=1)
    c = np.arange(len(a)) % 3 == 0
    less = a < b
    p, q = compute("setp.lt.u32", a, b, target="pair")
    assert np.array_equal(p, less)
    assert np.array_equal(q, ~less)
    for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.not_equal)):
        actual = compute(f"setp.lt.{name}.u32", a, b, c, target=1)
        assert np.array_equal(actual, function(less, c))
        p, q = compute(f"setp.lt.{name}.u32", a, b, c, target="pair")
        assert np.array_equal(p, function(less, c))
        assert np.array_equal(q, function(~less, c))
    assert compute("setp.eq.s32", a, -1, target=1).tolist() == (a == 2**32 - 1).tolist()


def test_packed_halves_give_two_predicates() -> None:
    a, b = words(32), words(32, seed=1)
    c = np.arange(len(a)) % 2 == 0
    halves: list[Any] = [array.view(np.uint16).reshape(-1, 2) for array in (a, b)]
    for kind in ("f16", "bf16"):
        want = [
            compute(f"setp.lt.{kind}", *(half[:, half_index].copy() for half in halves), target=1)
            for half_index in range(2)
        ]
        low, high = compute(f"setp.lt.{kind}x2", a, b, target="pair")
        assert np.array_equal(low, want[0])
        assert np.array_equal(high, want[1])
        low, high = compute(f"setp.lt.and.{kind}x2", a, b, c, target="pair")
        assert np.array_equal(low, want[0] & c)
        assert np.array_equal(high, want[1] & c)


def test_set_writes_ones_or_one() -> None:
    a, b = words(32), words(32, seed=1)
    less = a.view(np.int32) < b.view(np.int32)
    actual = compute("set.lt.u32.s32", a, b)
    assert np.array_equal(actual, np.where(less, 2**32 - 1, 0))
    actual = compute("set.lt.f32.s32", a, b).view(np.float32)
    assert np.array_equal(actual, less.astype(np.float32))
    c = np.arange(len(a)) % 2 == 0
    assert np.array_equal(compute("set.lt.and.u32.s32", a, b, c) != 0, less & c)
    x = np.array([0x3C004000, 0x7E000000], np.uint32)  # 1.0 over 2.0, NaN over 0
    y = np.array([0x3C003C00, 0x00000000], np.uint32)
    assert compute("set.eq.f16x2.f16x2", x, y).tolist() == [0x3C000000, 0x00003C00]


def test_choices() -> None:
    a, b = words(64), words(64, seed=1)
    c = np.arange(len(a)) % 3 == 0
    assert np.array_equal(compute("selp.b64", a, b, c, target=64), np.where(c, a, b))
    actual = compute("selp.f32", a.astype(np.uint32), 7, c)
    assert actual.dtype == np.uint32
    assert np.array_equal(actual, np.where(c, a.astype(np.uint32), np.uint32(7)))
    signs = words(32, len(a))
    actual = compute("slct.u64.s32", a, b, signs, target=64)
    assert np.array_equal(actual, np.where(signs.view(np.int32) >= 0, a, b))
    floats = np.array([1.0, -1.0, 0.0, -0.0, np.nan, -1e-40], np.float32).view(np.uint32)
    x, y = np.full(6, 1, np.uint32), np.full(6, 2, np.uint32)
    assert compute("slct.u32.f32", x, y, floats).tolist() == [1, 2, 1, 1, 2, 2]
    assert compute("slct.ftz.u32.f32", x, y, floats).tolist() == [1, 2, 1, 1, 2, 1]


@pytest.mark.parametrize(
    "mnemonic",
    [
        "setp.lt.b32", "setp.lo.s32", "setp.u32", "setp.equ.s32", "setp.lt.u8", "setp.eq.ftz.f64",
        "setp.eq.f16x2", "set.eq.u32", "set.eq.u32.f16x2", "selp.u8", "slct.u32.u32",
        "setp.lt.nand.u32",
    ],
)  # fmt: skip
def test_unknown_forms_are_refused(mnemonic) -> None:
    count = 3 if mnemonic.startswith(("selp", "slct")) else 2
    with pytest.raises(Unsupported):
        compute(mnemonic, *[words(32)] * count, target=1)
