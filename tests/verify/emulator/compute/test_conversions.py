"""Conversions against rationals and ml_dtypes: every pair of types, every rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.emulator.errors import Unsupported
from tests.support.ptx_compute import compute, signed, words
from tests.support.softfloat import LAYOUTS, Layout, as_float, decode, encode, samples

COUNT = 400
INTEGERS = [f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "us"]
ROUNDINGS = ["rn", "rz", "rm", "rp"]
TO_INTEGER = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
RANK = {"f16": 1, "bf16": 1, "f32": 2, "f64": 3}


def bits_of(kind: str) -> int:
    return LAYOUTS[kind].bits if kind in LAYOUTS else int(kind[1:])


def limits(kind: str) -> tuple[int, int]:
    bits = bits_of(kind)
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def value_of(word: Any, kind: str) -> int:
    return signed(int(word), bits_of(kind)) if kind[0] == "s" else int(word)


@pytest.mark.parametrize(("target", "source"), [("bf16", "f16"), ("f16", "bf16")])
def test_between_formats_of_16_bits_no_mode_is_to_nearest(target: str, source: str) -> None:
    inputs = np.arange(1 << 16, dtype=np.uint16)
    plain, nearest = (compute(f"cvt{mode}.{target}.{source}", inputs) for mode in ("", ".rn"))
    np.testing.assert_array_equal(plain, nearest)


def as_words(numbers: list[int], bits: int) -> Any:
    return np.array([number % (1 << bits) for number in numbers], f"u{bits // 8}")


def same(actual: Any, want: Any, layout: Layout | None = None) -> bool:
    """Compare bits; the NaN of fp64 may be any."""
    if layout is not None and layout.bits == 64:
        nan = np.isnan(actual.view(np.float64)) & np.isnan(want.view(np.float64))
        actual = np.where(nan, want, actual)
    return actual.dtype == want.dtype and np.array_equal(actual, want)


# ---- integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_extend_truncate_and_saturate(target, source) -> None:
    a = words(bits_of(source))
    values = [value_of(word, source) for word in a]
    low, high = limits(target)
    # A narrow result spreads its sign over a wider register.
    register = max(16, bits_of(target))
    for sat in ("", ".sat"):
        numbers = [min(max(v, low), high) if sat else v for v in values]
        wrapped = [value_of(v % (1 << bits_of(target)), target) for v in numbers]
        actual = compute(f"cvt{sat}.{target}.{source}", a, target=register)
        width = register if target[0] == "s" else bits_of(target)
        assert np.array_equal(actual, as_words(wrapped, width))


@pytest.mark.parametrize("kind", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_pack_clamps_and_shifts_the_third_up(kind) -> None:
    a, b, c = (words(32, seed=seed) for seed in range(3))
    bits = bits_of(kind)
    low, high = limits(kind)
    pairs = zip(a, b, c, strict=True)
    want = []
    for x, y, z in pairs:
        upper, lower = (min(max(signed(int(n), 32), low), high) % (1 << bits) for n in (x, y))
        want.append(int(z) << (2 * bits) | upper << bits | lower)
    if bits == 16:
        actual = compute(f"cvt.pack.sat.{kind}.s32", a, b)
    else:
        actual = compute(f"cvt.pack.sat.{kind}.s32.b32", a, b, c)
    assert np.array_equal(actual, as_words(want, 32))


# ---- between integers and floats --------------------------------------------------------------


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_integers_become_floats_rounded_once(target, source) -> None:
    a = words(bits_of(source))
    layout = LAYOUTS[target]
    if source[1:] == "64":
        # Middles of fp32 and fp64, and just beside them.
        near = [(1 << 63) + (1 << 39) + k for k in (-1, 0, 1)]
        near += [(1 << 62) + (1 << 9) + k for k in (-1, 0, 1)]
        a[: len(near)] = near
    values = [value_of(word, source) for word in a]
    for mode in ROUNDINGS:
        want = [encode(Fraction(v) if v else 0.0, layout, mode) for v in values]
        actual = compute(f"cvt.{mode}.{target}.{source}", a, target=layout.bits)
        assert same(actual, np.array(want, actual.dtype)), mode


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_become_integers_that_saturate(target, source) -> None:
    layout = LAYOUTS[source]
    a = samples(layout, COUNT, 1)
    low, high = limits(target)
    edges = [low, high, low - 1, high + 1, Fraction(1, 2), Fraction(3, 2), -Fraction(1, 2), 2.5]
    a[: len(edges)] = [encode(Fraction(e) if e else 0.0, layout) for e in edges]
    nan = 0 if layout.bits < 64 and bits_of(target) < 64 else 1 << (bits_of(target) - 1)
    register = max(16, bits_of(target))
    width = register if target[0] == "s" else bits_of(target)
    for mode, function in TO_INTEGER.items():
        want = []
        for word in a:
            value = decode(word, layout)
            if isinstance(value, Fraction):
                want.append(min(max(function(value), low), high))
            elif math.isnan(value):
                want.append(value_of(nan, target))
            else:
                want.append(0 if value == 0 else high if value > 0 else low)
        actual = compute(f"cvt.{mode}.{target}.{source}", a, target=register)
        assert np.array_equal(actual, as_words(want, width)), mode


def test_ftz_flushes_before_rounding_up() -> None:
    tiny = np.array([1, 0x807FFFFF], np.uint32)
    assert compute("cvt.rpi.s32.f32", tiny).tolist() == [1, 0]
    assert compute("cvt.rpi.ftz.s32.f32", tiny).tolist() == [0, 0]
    assert compute("cvt.rmi.ftz.f32.f32", tiny).tolist() == [0, 0x80000000]


# ---- floats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("target", LAYOUTS)
def test_floats_convert_with_one_rounding(target, source) -> None:
    of, into = LAYOUTS[source], LAYOUTS[target]
    a = samples(of, COUNT, 2)
    # Beside the middles of the target, where rounding twice goes wrong.
    if of.mantissa_bits > into.mantissa_bits + 8:
        drop = of.mantissa_bits - into.mantissa_bits
        base = a[:90] & ~a.dtype.type((1 << drop) - 1)
        middle = base + a.dtype.type(1 << (drop - 1))
        a[:90] = middle + (np.arange(90) % 3).astype(a.dtype) - a.dtype.type(1)
    values = [decode(word, of) for word in a]
    widening = RANK[target] > RANK[source]
    for mode in [""] if widening or target == source else ROUNDINGS:
        want = [encode(value, into, mode or "rn") for value in values]
        dot = f".{mode}" if mode else ""
        actual = compute(f"cvt{dot}.{target}.{source}", a, target=into.bits)
        is_number = np.array([value == value for value in values])  # noqa: PLR0124
        assert same(actual[is_number], np.array(want, actual.dtype)[is_number], into), mode
        assert all(math.isnan(decode(word, into)) for word in actual[~is_number])


NANS = {
    "f16": [0x7E00, 0x7C01, 0xFE55],
    "bf16": [0x7FC0, 0x7F81, 0xFFD5],
    "f32": [0x7FC00000, 0x7F800001, 0xFFC12345],
    "f64": [0x7FF8000000000000, 0x7FF0000000000001, 0xFFF9345678000001],
}


@pytest.mark.parametrize(
    ("mnemonic", "want"),
    [
        # Moves and shifts leave NaN alone.
        ("cvt.f32.f32", NANS["f32"]),
        ("cvt.f32.bf16", [0x7FC00000, 0x7F810000, 0xFFD50000]),
        # Instructions make it canonical.
        ("cvt.ftz.f32.f32", [0x7FFFFFFF] * 3),
        ("cvt.f32.f16", [0x7FFFFFFF] * 3),
        ("cvt.rn.f16.f32", [0x7FFF] * 3),
        ("cvt.rz.bf16.f32", [0x7FFF] * 3),
        # Between binary64 and others, the upper part of the payload stays.
        ("cvt.rn.f32.f64", [0x7FC00000, 0x7FC00000, 0xFFC9A2B3]),
        ("cvt.rm.ftz.f32.f64", [0x7FC00000, 0x7FC00000, 0xFFC9A2B3]),
        ("cvt.rp.f16.f64", [0x7E00, 0x7E00, 0xFE4D]),
        ("cvt.rz.bf16.f64", [0x7FC0, 0x7FC0, 0xFFC9]),
        ("cvt.f64.f32", [0x7FF8000000000000, 0x7FF8000020000000, 0xFFF82468A0000000]),
        ("cvt.ftz.f64.f32", [0x7FFFFFFFE0000000] * 3),
        # Their code truncates bits beyond tf32, or takes canonical NaN.
        ("cvt.rna.tf32.f32", [0x7FC00000, 0x7F800000, 0xFFC12000]),
        ("cvt.rna.satfinite.tf32.f32", [0x7FBFE000, 0x7F7FE000, 0xFFC10000]),
        ("cvt.rn.tf32.f32", [0x7FFFE000] * 3),
    ],
)
def test_nan_converts_as_on_an_h200(mnemonic, want) -> None:
    target, source = mnemonic.split(".")[-2:]
    bits = 32 if target == "tf32" else LAYOUTS[target].bits
    a = np.array(NANS[source], f"u{LAYOUTS[source].bits // 8}")
    assert compute(mnemonic, a, target=bits).tolist() == want


def test_ftz_flushes_as_if_rounded_with_unbounded_exponents() -> None:
    # Just below the least normal number: with 24 bits, and with more, rounding up to it.
    a = np.array([0x380FFFFFE0000000, 0x380FFFFFF0000000, 0xB80FFFFFE0000000], np.uint64)
    assert compute("cvt.rn.f32.f64", a, target=32).tolist() == [0x7FFFFF + 1] * 2 + [0x80800000]
    assert compute("cvt.rn.ftz.f32.f64", a, target=32).tolist() == [0, 0x800000, 0x80000000]


def test_ftz_of_fp16_sees_subnormal_operands() -> None:
    tiny = np.array([1, 0x80000001], np.uint32)
    assert compute("cvt.rp.ftz.f16.f32", tiny, target=16).tolist() == [1, 0x8000]
    assert compute("cvt.rm.ftz.f16.f32", tiny, target=16).tolist() == [0, 0x8001]


@pytest.mark.parametrize("name", LAYOUTS)
def test_rounding_to_integral_floats(name) -> None:
    layout = LAYOUTS[name]
    a = samples(layout, COUNT, 3)
    for mode, function in TO_INTEGER.items():
        want = []
        for word in a:
            value = decode(word, layout)
            if isinstance(value, Fraction):
                whole = function(value)
                value = Fraction(whole) if whole else math.copysign(0.0, as_float(value))
            want.append(encode(value, layout))
        actual = compute(f"cvt.{mode}.{name}.{name}", a, target=layout.bits)
        assert same(actual, np.array(want, actual.dtype), layout), mode


def test_finishes() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1e9, -1e9, -2.0, -0.0, 0.5, 3.0], np.float32)
    a = values.view(np.uint32)
    actual = compute("cvt.rn.satfinite.f16.f32", a, target=16)
    assert [hex(word) for word in actual[:5]] == ["0x7bff", "0xfbff", "0x7fff", "0x7bff", "0xfbff"]
    actual = compute("cvt.rn.relu.bf16.f32", a, target=16)
    assert actual.tolist() == [0x7F80, 0, 0x7FFF, 0x4E6E, 0, 0, 0, 0x3F00, 0x4040]
    actual = compute("cvt.sat.f32.f32", a).view(np.float32)
    assert actual.tolist() == [1, 0, 0, 1, 0, 0, 0, 0.5, 1]
    assert not np.signbit(actual).any()
    actual = compute("cvt.rn.sat.f32.s32", np.array([-5, 0, 7], np.int32).view(np.uint32))
    assert actual.view(np.float32).tolist() == [0, 0, 1]


def test_tf32_keeps_ten_bits() -> None:
    layout = Layout(8, 10, 0x7FFFFFFF >> 13)
    a = samples(LAYOUTS["f32"], COUNT, 4)
    a[:30] = (a[:30] & ~np.uint32(0x1FFF)) | np.uint32(0x1000)
    finite = (a & np.uint32(0x7FFFFFFF)) <= 0x7F800000
    for mode in ("rn", "rz"):
        want = [encode(decode(word, LAYOUTS["f32"]), layout, mode) << 13 for word in a[finite]]
        actual = compute(f"cvt.{mode}.tf32.f32", a)
        assert actual[finite].tolist() == want
        assert np.all(actual[~finite] == 0x7FFFE000)
    # Ties away from zero: the size plus half, truncated.
    actual = compute("cvt.rna.tf32.f32", a)
    want = [((int(word) + 0x1000) >> 13 << 13) for word in a[finite]]
    assert actual[finite].tolist() == want
    largest = np.array([0x7F7FFFFF, 0xFF7FFFFF], np.uint32)
    assert compute("cvt.rna.satfinite.tf32.f32", largest).tolist() == [0x7F7FE000, 0xFF7FE000]


# ---- pairs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_the_first_of_a_pair_is_the_upper_half(name) -> None:
    a, b = samples(LAYOUTS["f32"], COUNT, 5), samples(LAYOUTS["f32"], COUNT, 6)
    for mode in ("rn", "rz", "rn.relu", "rz.satfinite"):
        actual = compute(f"cvt.{mode}.{name}x2.f32", a, b)
        upper = compute(f"cvt.{mode}.{name}.f32", a, target=16).astype(np.uint32)
        lower = compute(f"cvt.{mode}.{name}.f32", b, target=16)
        assert np.array_equal(actual, upper << np.uint32(16) | lower)


SMALL = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 8),
    "e2m3": (ml_dtypes.float6_e2m3fn, 6),
    "e3m2": (ml_dtypes.float6_e3m2fn, 6),
    "e2m1": (ml_dtypes.float4_e2m1fn, 4),
}


def neighbours(name: str) -> Any:
    """Return all values of a small format, their midpoints, and the neighbours of these."""
    dtype, bits = SMALL[name]
    codes = np.arange(1 << bits, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float64)
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    exact = np.concatenate([finite, middles, [1e30, -1e30, np.inf, -np.inf, 1e-30, 0.0, -0.0]])
    a = exact.astype(np.float32)
    return np.concatenate([a, np.nextafter(a, np.float32(np.inf)), np.nextafter(a, np.float32(0))])


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_round_to_nearest_and_saturate(name) -> None:
    dtype, bits = SMALL[name]
    values = neighbours(name)
    largest = float(ml_dtypes.finfo(dtype).max)
    want = np.clip(values, -largest, largest).astype(dtype).view(np.uint8)
    a = values.view(np.uint32)
    b = a[::-1]
    actual = compute(f"cvt.rn.satfinite.{name}x2.f32", a, b, target=16)
    shift = 4 if bits == 4 else 8
    packed = want.astype(np.uint16) << shift | want[::-1]
    assert np.array_equal(actual, packed)
    # NaN: the canonical one, or the largest number where there is none.
    nan = np.array([0x7FC00000, 0xFFC00000], np.uint32)
    code = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}[name]
    actual = compute(f"cvt.rn.satfinite.{name}x2.f32", nan, nan, target=16)
    assert actual.tolist() == [code << shift | code] * 2
    actual = compute(f"cvt.rn.satfinite.relu.{name}x2.f32", a, a, target=16)
    rectified = np.where(values <= 0, 0, want).astype(np.uint16)
    assert np.array_equal(actual, rectified << shift | rectified)


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_become_halves(name) -> None:
    dtype, bits = SMALL[name]
    codes = np.arange(1 << bits, dtype=np.uint8)
    want = codes.view(dtype).astype(np.float32).astype(np.float16)
    shift = 4 if bits == 4 else 8
    pairs = codes.astype(np.uint16) << shift | codes[::-1]
    actual = compute(f"cvt.rn.f16x2.{name}x2", pairs).view(np.uint16).reshape(-1, 2)
    for half, expected in ((actual[:, 1], want), (actual[:, 0], want[::-1])):
        assert np.array_equal(half.view(np.float16), expected, equal_nan=True)
        assert np.all(half[np.isnan(expected)] == 0x7FFF)
    relu = compute(f"cvt.rn.relu.f16x2.{name}x2", pairs).view(np.float16).reshape(-1, 2)[:, 1]
    assert np.array_equal(relu, np.where(want <= 0, np.float16(0), want), equal_nan=True)
    if bits == 8:
        halves = compute(f"cvt.rn.f16x2.{name}x2", pairs)
        back = compute(f"cvt.rn.satfinite.{name}x2.f16x2", halves, target=16)
        finite = np.isfinite(want) & np.isfinite(want[::-1])
        assert np.array_equal(back[finite], pairs[finite])


def test_scales_are_powers_of_two() -> None:
    codes = np.arange(256, dtype=np.uint16)
    pairs = codes << 8 | codes[::-1]
    actual = compute("cvt.rn.bf16x2.ue8m0x2", pairs).view(np.uint16).reshape(-1, 2)
    values = (actual.astype(np.uint32) << 16).view(np.float32)
    want = np.exp2(np.arange(255, dtype=np.float64) - 127)
    assert np.array_equal(values[:255, 1], want.astype(np.float32))
    assert actual[255, 1] == 0x7FFF
    assert np.array_equal(actual[:, 0], actual[::-1, 1])
    a = np.array([1.0, 1.5, 2.0, 3e38, 1e-45, 0.0, np.nan], np.float32).view(np.uint32)
    low = compute("cvt.rz.satfinite.ue8m0x2.f32", a, a, target=16) & 0xFF
    assert low.tolist() == [127, 127, 128, 254, 0, 0, 255]
    up = compute("cvt.rp.satfinite.ue8m0x2.f32", a, a, target=16) >> 8
    assert up.tolist() == [127, 128, 128, 254, 0, 0, 255]


@pytest.mark.parametrize(
    ("mnemonic", "count"),
    [
        ("cvt.f16.f32", 1), ("cvt.s32.f32", 1), ("cvt.f32.s32", 1), ("cvt.rn.f32.pred", 1),
        ("cvt.rn.e4m3x2.f32", 2), ("cvt.rs.f16x2.f32", 3), ("cvt.rni.f16.f32", 1),
        ("cvt.rna.f16.f32", 1), ("cvt.rn.bf16.f16.relu.x", 1), ("cvt.rn.ftz.f64.f64", 1),
        ("cvt.f32", 1), ("cvt.pack.u8.s32.b32", 3), ("cvt.pack.sat.u8.s32", 2),
        ("cvt.rn.f16x2.f32", 1), ("cvt.u32.u16x2", 1), ("cvt.rm.satfinite.e4m3x2.f32", 2),
    ],
)  # fmt: skip
def test_unknown_forms_are_refused(mnemonic, count) -> None:
    with pytest.raises(Unsupported):
        compute(mnemonic, *[words(32)] * count)
