"""Floating-point instructions against rationals, in every format and rounding."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aotc.verify.emulator.errors import Unsupported
from tests.support import softfloat
from tests.support.ptx_compute import compute
from tests.support.softfloat import LAYOUTS, Layout, Value, decode, encode, samples

COUNT = 600
ROUNDINGS = ["rn", "rz", "rm", "rp"]
WIDE = ["f32", "f64"]


def rounded(layout: Layout, mode: str, function: Callable[..., Value], *arrays: Any) -> Any:
    """Return the bits of `function` of the values, rounded by the oracle."""
    results = [
        encode(function(*(decode(word, layout) for word in words)), layout, mode)
        for words in zip(*arrays, strict=True)
    ]
    return np.array(results, f"u{layout.bits // 8}")


def is_nan(bits: Any, layout: Layout) -> Any:
    return (bits & bits.dtype.type((1 << (layout.bits - 1)) - 1)) > layout.infinity


def check(actual: Any, want: Any, layout: Layout, *operands: Any) -> None:
    if layout.bits == 64:  # the choice of NaN is open
        actual = np.where(is_nan(want, layout) & is_nan(actual, layout), want, actual)
    assert actual.dtype == want.dtype
    wrong = np.flatnonzero(actual != want)
    shown = [[hex(int(array[row])) for array in (actual, want, *operands)] for row in wrong[:3]]
    assert wrong.size == 0, f"{wrong.size} wrong; got, want, operands: {shown}"


def operands(layout: Layout, count: int) -> list[Any]:
    arrays = [samples(layout, COUNT, seed) for seed in range(count)]
    # Pairs with full or near cancellation.
    top = arrays[0].dtype.type(1 << (layout.bits - 1))
    if count > 1:
        arrays[-1][:40] = arrays[0][:40] ^ top
        arrays[-1][40:60] = (arrays[0][40:60] ^ top) + arrays[0].dtype.type(1)
    return arrays


def modes_of(name: str, *, half: list[str]) -> list[str]:
    return ROUNDINGS if name in WIDE else half


CASES = [(name, mode) for name in LAYOUTS for mode in modes_of(name, half=["rn"])]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_sums_and_products(name, mode) -> None:
    layout = LAYOUTS[name]
    a, b = operands(layout, 2)
    unit = Fraction(1)
    want = rounded(layout, mode, lambda x, y: softfloat.fma(x, unit, y, mode), a, b)
    check(compute(f"add.{mode}.{name}", a, b), want, layout, a, b)
    minus = b ^ b.dtype.type(1 << (layout.bits - 1))
    check(compute(f"sub.{mode}.{name}", a, minus), want, layout, a, b)
    want = rounded(layout, mode, softfloat.mul, a, b)
    check(compute(f"mul.{mode}.{name}", a, b), want, layout, a, b)


@pytest.mark.parametrize("name", LAYOUTS)
def test_without_a_rounding_sums_go_to_nearest(name) -> None:
    layout = LAYOUTS[name]
    a, b = operands(layout, 2)
    for opcode in ("add", "sub", "mul"):
        plain = compute(f"{opcode}.{name}", a, b)
        assert np.array_equal(plain, compute(f"{opcode}.rn.{name}", a, b))


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_fma_rounds_once(name, mode) -> None:
    layout = LAYOUTS[name]
    a, b, c = operands(layout, 3)
    # The first third of samples has few bits, to make ties; others nearly cancel.
    for seed, array in enumerate((a, b, c)):
        array[60:260] = samples(layout, COUNT, 7 + seed)[:200]
    negated = rounded(layout, "rn", softfloat.mul, a[300:400], b[300:400])
    c[300:400] = negated ^ c.dtype.type(1 << (layout.bits - 1))
    want = rounded(layout, mode, lambda x, y, z: softfloat.fma(x, y, z, mode), a, b, c)
    check(compute(f"fma.{mode}.{name}", a, b, c), want, layout, a, b, c)


@pytest.mark.parametrize("name", LAYOUTS)
def test_fma_beside_a_middle(name) -> None:
    """A product midway between two numbers, and an addend too small for any wider format."""
    layout = LAYOUTS[name]
    ulp = softfloat.power(-layout.mantissa_bits)
    tiny = [1, 1 << (layout.bits - 1) | 1]
    rows = [
        (encode(s * (1 + ulp), layout), encode(Fraction(3, 2), layout), t)
        for s in (1, -1)
        for t in tiny
    ]
    a, b, c = (np.array(column, f"u{layout.bits // 8}") for column in zip(*rows, strict=True))
    want = rounded(layout, "rn", lambda x, y, z: softfloat.fma(x, y, z, "rn"), a, b, c)
    check(compute(f"fma.rn.{name}", a, b, c), want, layout, a, b, c)
    assert len(np.unique(want)) == 4


@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("name", WIDE)
def test_quotients_and_roots(name, mode) -> None:
    layout = LAYOUTS[name]
    a, b = operands(layout, 2)
    check(
        compute(f"div.{mode}.{name}", a, b),
        rounded(layout, mode, softfloat.div, a, b),
        layout,
        a,
        b,
    )
    unit = Fraction(1)
    want = rounded(layout, mode, lambda x: softfloat.div(unit, x), a)
    check(compute(f"rcp.{mode}.{name}", a), want, layout, a)
    want = rounded(layout, mode, softfloat.sqrt, a)
    check(compute(f"sqrt.{mode}.{name}", a), want, layout, a)


def test_full_division_is_exact_and_approximate_division_gives_up_on_huge_divisors() -> None:
    layout = LAYOUTS["f32"]
    a, b = operands(layout, 2)
    want = rounded(layout, "rn", softfloat.div, a, b)
    check(compute("div.full.f32", a, b), want, layout, a, b)
    actual = compute("div.approx.f32", a, b)
    size = b.view(np.float32)
    huge = np.isfinite(size) & (np.abs(size) > 2.0**126)
    assert huge.sum() > 5
    check(actual[~huge], want[~huge], layout, a[~huge], b[~huge])
    finite = np.isfinite(a.view(np.float32))
    assert np.all(actual[huge & finite] << 1 == 0)
    assert np.all(is_nan(actual[huge & ~finite], layout))


# ---- modifiers --------------------------------------------------------------------------------


def flushed(bits: Any, layout: Layout) -> Any:
    exponent = bits & bits.dtype.type(layout.infinity)
    return np.where(exponent == 0, bits & bits.dtype.type(1 << (layout.bits - 1)), bits)


@pytest.mark.parametrize("name", ["f16", "f32"])
@pytest.mark.parametrize(("opcode", "count"), [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)])
def test_ftz_flushes_sources_and_results(opcode, count, name) -> None:
    layout = LAYOUTS[name]
    arrays = operands(layout, count)
    word = arrays[0].dtype.type
    # Subnormal and barely normal numbers, times or plus some of any size.
    for index in {0, count - 1} - ({1} if opcode == "mul" else set()):
        small = arrays[index] % word(4 << layout.mantissa_bits)
        arrays[index] = small | (arrays[index] & word(1 << (layout.bits - 1)))
    actual = compute(f"{opcode}.rn.ftz.{name}", *arrays)
    plain = compute(f"{opcode}.rn.{name}", *(flushed(array, layout) for array in arrays))
    assert np.array_equal(actual, flushed(plain, layout))
    assert not np.array_equal(actual, compute(f"{opcode}.rn.{name}", *arrays))


@pytest.mark.parametrize("name", ["f16", "f32"])
def test_sat_clamps_to_one_and_nan_to_zero(name) -> None:
    layout = LAYOUTS[name]
    a, b = operands(layout, 2)
    plain = compute(f"add.rn.{name}", a, b)
    actual = compute(f"add.rn.sat.{name}", a, b)
    unit = encode(Fraction(1), layout)
    for value, clamped in zip(plain, actual, strict=True):
        exact = decode(value, layout)
        if exact != exact or exact <= 0:  # noqa: PLR0124
            assert clamped == 0
        else:
            assert clamped == min(int(value), unit)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_relu_leaves_nan(name) -> None:
    layout = LAYOUTS[name]
    a, b, c = operands(layout, 3)
    plain = compute(f"fma.rn.{name}", a, b, c)
    actual = compute(f"fma.rn.relu.{name}", a, b, c)
    negative = plain >> (layout.bits - 1) == 1
    assert np.array_equal(actual, np.where(negative, plain.dtype.type(0), plain))
    assert is_nan(actual, layout).any()


@pytest.mark.parametrize(
    ("packed", "name"), [("f16x2", "f16"), ("bf16x2", "bf16"), ("f32x2", "f32")]
)
def test_packed_types_work_on_both_halves(packed, name) -> None:
    layout = LAYOUTS[name]
    arrays = operands(layout, 3)
    whole = [array.view(f"u{layout.bits // 4}") for array in arrays]
    for opcode, count in (("add", 2), ("mul", 2), ("fma", 3)):
        actual = compute(f"{opcode}.rn.{packed}", *whole[:count], target=2 * layout.bits)
        want = compute(f"{opcode}.rn.{name}", *arrays[:count])
        assert actual.dtype == whole[0].dtype
        assert np.array_equal(actual.view(want.dtype), want)
    # A constant stands in the place of any register.
    constant = int(whole[1][0])
    actual = compute(f"add.rn.{packed}", whole[0], constant, target=2 * layout.bits)
    want = compute(f"add.rn.{packed}", whole[0], np.full_like(whole[0], constant))
    assert np.array_equal(actual, want)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_mixed_precision_widens_all_but_the_last_source(name) -> None:
    layout, single = LAYOUTS[name], LAYOUTS["f32"]
    a, b = operands(layout, 2)
    c = samples(single, COUNT, 5)
    x, y = (compute(f"cvt.f32.{name}", array) for array in (a, b))
    for mode in ROUNDINGS:
        for opcode in ("add", "sub"):
            want = compute(f"{opcode}.{mode}.sat.f32", x, c)
            assert np.array_equal(compute(f"{opcode}.{mode}.sat.f32.{name}", a, c), want)
        want = compute(f"fma.{mode}.f32", x, y, c)
        check(compute(f"fma.{mode}.f32.{name}", a, b, c), want, single, a, b, c)


SPECIAL = [
    (name, mode, opcode)
    for name, mode in CASES
    for opcode in ("add", "mul", "div")
    if opcode != "div" or name in WIDE
]


@pytest.mark.parametrize(("name", "mode", "opcode"), SPECIAL)
def test_every_pair_of_special_numbers(name, mode, opcode) -> None:
    layout = LAYOUTS[name]
    special = softfloat.specials(layout)
    pairs = [(x, y) for x in special for y in special]
    a, b = (np.array(column, f"u{layout.bits // 8}") for column in zip(*pairs, strict=True))
    unit = Fraction(1)
    function = {
        "add": lambda x, y: softfloat.fma(x, unit, y, mode),
        "mul": softfloat.mul,
        "div": softfloat.div,
    }[opcode]
    want = rounded(layout, mode, function, a, b)
    check(compute(f"{opcode}.{mode}.{name}", a, b), want, layout, a, b)
    if opcode == "mul":
        want = rounded(layout, mode, lambda x, y: softfloat.fma(x, y, y, mode), a, b)
        check(compute(f"fma.{mode}.{name}", a, b, b), want, layout, a, b)


# ---- sign and size ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_neg_abs_and_copysign(name) -> None:
    layout = LAYOUTS[name]
    a, b = operands(layout, 2)
    top = a.dtype.type(1 << (layout.bits - 1))
    nan = is_nan(a, layout)
    # Canonical, but in binary64, where the sign stays and a signalling NaN becomes quiet.
    quiet = a | a.dtype.type(1 << 51) if name == "f64" else a.dtype.type(layout.nan)
    assert nan.any()
    assert np.array_equal(compute(f"neg.{name}", a), np.where(nan, quiet, a ^ top))
    assert np.array_equal(compute(f"abs.{name}", a), np.where(nan, quiet, a & ~top))
    if name in WIDE:
        want = (a & top) | (b & ~top)
        assert np.array_equal(compute(f"copysign.{name}", a, b), want)


def smaller(a: int, b: int, layout: Layout, *, nan_wins: bool) -> int:
    x, y = decode(a, layout), decode(b, layout)
    if x != x or y != y:  # noqa: PLR0124
        if nan_wins or (x != x and y != y):  # noqa: PLR0124
            return layout.nan
        return a if y != y else b  # noqa: PLR0124
    if x == y:
        return a | b
    return a if x < y else b


@pytest.mark.parametrize(
    ("name", "nan"),
    [(name, nan) for name in LAYOUTS for nan in ("", ".NaN") if (name, nan) != ("f64", ".NaN")],
)
def test_min_and_max(name, nan) -> None:
    layout = LAYOUTS[name]
    a, b = operands(layout, 2)
    top = a.dtype.type(1 << (layout.bits - 1))
    zeros = np.array([0, top, 0, top], a.dtype)
    a[:4], b[:4] = zeros, zeros[[0, 0, 3, 3]]
    b[4:8] = a[4:8]
    least = [smaller(int(x), int(y), layout, nan_wins=bool(nan)) for x, y in zip(a, b, strict=True)]
    want = np.array(least, a.dtype)
    check(compute(f"min{nan}.{name}", a, b), want, layout, a, b)
    # The greatest is the least of the negated.
    flip = compute(f"max{nan}.{name}", a ^ top, b ^ top)
    want = np.where(is_nan(want, layout), want, want ^ top)
    check(flip, want, layout, a, b)


def test_min_of_three_and_by_size() -> None:
    a, b, c = operands(LAYOUTS["f32"], 3)
    want = compute("min.f32", compute("min.f32", a, b), c)
    assert np.array_equal(compute("min.f32", a, b, c), want)
    actual = compute("max.xorsign.abs.f32", a, b)
    size = np.uint32(0x7FFFFFFF)
    plain = compute("max.f32", a & size, b & size)
    signs = np.where(is_nan(plain, LAYOUTS["f32"]), np.uint32(0), (a ^ b) & ~size)
    assert np.array_equal(actual, plain | signs)


def test_testp_sorts_numbers_into_classes() -> None:
    for name in WIDE:
        layout = LAYOUTS[name]
        a = samples(layout, COUNT, 3)
        values = a.view(f"f{layout.bits // 8}")
        tiny = np.finfo(values.dtype).tiny
        with np.errstate(invalid="ignore"):
            normal = np.isfinite(values) & ((np.abs(values) >= tiny) | (values == 0))
            subnormal = (values != 0) & (np.abs(values) < tiny)
        want = {
            "finite": np.isfinite(values),
            "infinite": np.isinf(values),
            "number": ~np.isnan(values),
            "notanumber": np.isnan(values),
            "normal": normal,
            "subnormal": subnormal,
        }
        for test, expected in want.items():
            assert expected.any()
            assert np.array_equal(compute(f"testp.{test}.{name}", a, target=1), expected)


# ---- an H200's choices where PTX leaves them open ----------------------------------------------

# Quiet and signalling NaN of either sign, a number, infinity.
A, B, C = 0x7FF8000000000005, 0xFFF0000000000006, 0x7FF0000000000007
ONE, INFINITY, DEFAULT = 0x3FF0000000000000, 0x7FF0000000000000, 0xFFF8000000000000
QUIET = 1 << 51


@pytest.mark.parametrize(
    ("opcode", "operands_", "want"),
    [
        ("add", (A, B), B), ("add", (A, ONE), A), ("add", (ONE, B), B), ("add", (B, A), A),
        ("sub", (A, B), B), ("mul", (A, B), B), ("div", (A, B), A), ("div", (ONE, B), B),
        ("fma", (A, B, C), B), ("fma", (A, ONE, C), C), ("fma", (A, ONE, ONE), A),
        ("fma", (0, INFINITY, C), C), ("fma", (0, INFINITY, ONE), DEFAULT),
        ("mul", (0, INFINITY), DEFAULT), ("sub", (INFINITY, INFINITY), DEFAULT),
        ("div", (0, 0), DEFAULT), ("sqrt", (B,), B), ("sqrt", (ONE | 1 << 63,), DEFAULT),
    ],
)  # fmt: skip
def test_nan_of_binary64(opcode, operands_, want) -> None:
    words = [np.full(3, word, np.uint64) for word in operands_]
    for mode in ROUNDINGS:
        actual = compute(f"{opcode}.{mode}.f64", *words)
        assert [hex(word) for word in actual.tolist()] == [hex(want | QUIET)] * 3, mode


def test_of_two_nan_min_and_max_keep_the_second() -> None:
    a, b = np.array([A, A], np.uint64), np.array([B, ONE], np.uint64)
    for opcode in ("min", "max"):
        assert compute(f"{opcode}.f64", a, b).tolist() == [B | QUIET, ONE]


# Results just below the least normal number: one rounds up to it in its format only, one with any
# exponent range. Then both with `.ftz`.
RAISED = [
    ("mul.rn.ftz.f32", [(0x3F7FFFFF, 0x800000), (0x3F7FFFFE, 0x800001)], [0, 0x800000]),
    ("mul.rn.ftz.f32", [(0xBF7FFFFF, 0x800000), (0xBF7FFFFE, 0x800001)], [1 << 31, 0x80800000]),
    ("mul.rp.ftz.f32", [(0x3F7FFFFF, 0x800000)], [0]),
    ("mul.rm.ftz.f32", [(0xBF7FFFFF, 0x800000)], [1 << 31]),
    ("fma.rn.ftz.f32", [(0x3F7FFFFF, 0x800000, 0), (0x3F7FFFFE, 0x800001, 0)], [0, 0x800000]),
    ("fma.rp.ftz.f32", [(0x80800000, 0xBF7FFFFF, 0)], [0]),
    ("fma.rp.ftz.sat.f32", [(0x800000, 0x3F7FFFFF, 0x80000000)], [0]),
    ("div.rp.ftz.f32", [(0x800000, 0x3F800001)], [0]),
    ("div.rm.ftz.f32", [(0x80800000, 0x3F800001)], [1 << 31]),
    ("rcp.rp.ftz.f32", [(0x7E800001,), (0x7E800000,)], [0, 0x800000]),
    ("mul.rn.ftz.f16", [(0x3BFF, 0x400), (0x3BFE, 0x401)], [0, 0x400]),
    ("fma.rn.ftz.f16", [(0x8400, 0x3BFF, 0), (0x3BFE, 0x401, 0)], [0x8000, 0x400]),
]


@pytest.mark.parametrize(("mnemonic", "rows", "want"), RAISED)
def test_ftz_flushes_as_if_rounded_with_unbounded_exponents(mnemonic, rows, want) -> None:
    bits = int(mnemonic[-2:])
    words = [np.array(column, f"u{bits // 8}") for column in zip(*rows, strict=True)]
    assert compute(mnemonic, *words).tolist() == want
    # Without `.ftz`, all of them are the least normal number.
    top = 1 << (bits - 1)
    unflushed = compute(mnemonic.replace(".ftz", "").replace(".sat", ""), *words).tolist()
    assert {word & ~top for word in unflushed} == {0x800000 if bits == 32 else 0x400}


# ---- approximations ---------------------------------------------------------------------------

FUNCTIONS = {
    "sin.approx.f32": np.sin,
    "cos.approx.f32": np.cos,
    "lg2.approx.f32": np.log2,
    "ex2.approx.f32": np.exp2,
    "tanh.approx.f32": np.tanh,
    "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x),
    "rcp.approx.f32": lambda x: 1 / x,
    "sqrt.approx.f32": np.sqrt,
}


@pytest.mark.parametrize("mnemonic", FUNCTIONS)
def test_approximations_are_the_nearest_number(mnemonic) -> None:
    a = samples(LAYOUTS["f32"], 4 * COUNT, 4)
    with np.errstate(all="ignore"):
        # 64 bits of mantissa on x86; the second rounding is seen only beside a middle.
        want = FUNCTIONS[mnemonic](a.view(np.float32).astype(np.longdouble)).astype(np.float32)
    actual = compute(mnemonic, a).view(np.float32)
    same = (actual == want) | (np.isnan(actual) & np.isnan(want))
    is_neighbour = np.abs(actual.view(np.int32).astype(np.int64) - want.view(np.int32)) <= 1
    assert np.all(same | is_neighbour)
    assert np.count_nonzero(~same) <= 1
    assert np.array_equal(np.signbit(actual[actual == 0]), np.signbit(want[actual == 0]))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_functions_over_every_number(name) -> None:
    layout = LAYOUTS[name]
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        if name == "f16":
            values = bits.view(np.float16).astype(np.longdouble)
        else:
            values = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.longdouble)
        for opcode, function in (("ex2", np.exp2), ("tanh", np.tanh)):
            ftz = ".ftz" if (opcode, name) == ("ex2", "bf16") else ""
            actual = compute(f"{opcode}.approx{ftz}.{name}", bits)
            exact = function(values)
            kind = compute(f"cvt.f32.{name}", actual).view(np.float32).astype(np.longdouble)
            number = np.isfinite(exact) & np.isfinite(kind)
            # Half a unit in the last place, of the result's binade.
            unit = np.maximum(np.abs(exact), np.longdouble(2) ** (1 - layout.bias))
            unit = np.exp2(np.floor(np.log2(unit)) - layout.mantissa_bits)
            flushed_away = (kind == 0) & (np.abs(exact) < 2.0 ** (1 - layout.bias))
            off = np.abs(kind - exact) <= unit * 0.5001
            assert np.all(off[number] | (flushed_away[number] & bool(ftz)))
            assert np.array_equal(np.isnan(kind), np.isnan(exact))


def test_ftz_of_ex2_and_rsqrt() -> None:
    tiny = np.array([1, 0x80000001, 0x007FFFFF], np.uint32)
    assert compute("ex2.approx.ftz.f32", tiny).tolist() == [0x3F800000] * 3
    assert compute("rsqrt.approx.ftz.f32", tiny).tolist() == [0x7F800000, 0xFF800000, 0x7F800000]
    low = np.array([-127.5, -200.0], np.float32).view(np.uint32)
    assert compute("ex2.approx.ftz.f32", low).tolist() == [0, 0]
    assert compute("ex2.approx.f32", low[:1]).tolist() == [0x002D413D]


@pytest.mark.parametrize(
    ("mnemonic", "function"),
    [
        ("rcp.approx.ftz.f64", lambda x: 1 / x),
        ("rsqrt.approx.ftz.f64", lambda x: 1 / np.sqrt(x)),
    ],
)
def test_gross_approximations_have_an_empty_low_word(mnemonic, function) -> None:
    a = samples(LAYOUTS["f64"], COUNT, 5)
    actual = compute(mnemonic, a, target=64)
    assert np.all(actual & np.uint64(0xFFFFFFFF) == 0)
    values, results = a.view(np.float64), actual.view(np.float64)
    normal = np.isfinite(values) & (np.abs(values) >= 2.0**-1022)
    with np.errstate(all="ignore"):
        want = function(values)
    usual = normal & (np.abs(want) > 2.0**-1021)
    np.testing.assert_allclose(results[usual], want[usual], rtol=2.0**-19)
    subnormal = ~normal & np.isfinite(values)
    assert np.all(np.isinf(results[subnormal]))


# ---- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mnemonic",
    [
        "add.rna.f32", "add.ftz.f64", "add.ftz.bf16", "fma.f32", "div.f32", "div.rn.f16",
        "div.full.f64", "rsqrt.f32", "sqrt.approx.f64", "sin.f32", "sin.approx.f64", "min.rn.f32",
        "add.f32.f64", "add.f16.f32", "mul.f32.f16", "add.tf32", "copysign.f16", "fma.rn.oob.f16", "testp.big.f32",
    ],
)  # fmt: skip
def test_unknown_forms_are_refused(mnemonic) -> None:
    a = np.zeros(4, np.uint32)
    with pytest.raises(Unsupported):
        compute(mnemonic, *[a] * (3 if mnemonic.startswith("fma") else 2))
