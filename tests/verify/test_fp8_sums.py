"""Sums of fp8 products with few bits, against the same in whole numbers, term by term."""

from __future__ import annotations

from fractions import Fraction
from math import floor, log2

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.arrays import Array
from aotc.verify.fp8_sums import STEP_K, fp8_step, fp8_sums

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
BOTH = ("e4m3", "e4m3")
RNG = np.random.default_rng(5)


def _cut(value: Fraction, unit: Fraction) -> Fraction:
    """Return the multiple of a unit next to a value, towards zero."""
    units = abs(value) // unit
    return (units if value > 0 else -units) * unit


def _by_terms(a: Array, b: Array, acc: float, kinds: tuple[str, str]) -> float:
    pairs = [(Fraction(x), Fraction(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    terms = [*(x * y for x, y in pairs), Fraction(acc)]
    exponents = [_exponent(x, kinds[0]) + _exponent(y, kinds[1]) for x, y in pairs if x * y]
    exponents += [floor(log2(abs(acc)))] if acc else []
    if not exponents:
        return 0.0
    unit = Fraction(2) ** (max(exponents) - 13)
    total = sum((_cut(term, unit) for term in terms), Fraction(0))
    return float(_cut(total, max(_unit(abs(total)), unit))) if total else 0.0


def _exponent(factor: Fraction, kind: str) -> int:
    return max(floor(log2(abs(factor))), {"e4m3": -6, "e5m2": -14}[kind])


def _unit(value: Fraction) -> Fraction:
    """Return the value of the last bit of a 14-bit number."""
    return Fraction(2) ** (floor(log2(value)) - 13)


def _fp8(kind: str, *shape: int, spread: int = 0) -> Array:
    values = RNG.standard_normal(shape) * 2.0 ** RNG.integers(-spread, spread + 1, shape)
    return values.astype(TYPES[kind]).astype(np.float64)


@pytest.mark.parametrize("spread", [0, 3, 6])
@pytest.mark.parametrize("size", [0.0, 2.0**-12, 1.0, 1000.0])
@pytest.mark.parametrize("kinds", [BOTH, ("e5m2", "e4m3")])
def test_terms_are_cut_where_the_largest_ends(
    spread: int, size: float, kinds: tuple[str, str]
) -> None:
    a, b = _fp8(kinds[0], 3, STEP_K, spread=spread), _fp8(kinds[1], STEP_K, 5, spread=spread)
    acc = (RNG.standard_normal((3, 5)) * size).astype(np.float32).astype(np.float64)
    expected = [[_by_terms(a[m], b[:, n], acc[m, n], kinds) for n in range(5)] for m in range(3)]
    np.testing.assert_array_equal(fp8_step(a, b, acc, kinds), expected)


@pytest.mark.parametrize(
    ("products", "acc", "expected"),
    [
        (2.0**-13, 1.0, 1.0 + 2.0**-13),
        (2.0**-14, 1.0, 1.0),
        (-(2.0**-14), 1.0, 1.0),  # towards zero
        (-(2.0**-13), -1.0, -1.0 - 2.0**-13),
        (1.0, 2.0**-13, 1.0 + 2.0**-13),
        (1.0, 2.0**-14, 1.0),
        (0.0, 2.0**-140, 2.0**-140),
        (0.0, 0.0, 0.0),
        (1.0, np.inf, np.inf),
        (1.0, np.nan, np.nan),
        (np.nan, 1.0, np.nan),
    ],
)
def test_one_product_and_an_accumulator(products: float, acc: float, expected: float) -> None:
    a, b = np.zeros((1, STEP_K)), np.ones((STEP_K, 1))
    a[0, 17] = products
    np.testing.assert_array_equal(fp8_step(a, b, np.array([[acc]]), BOTH), [[expected]])


@pytest.mark.parametrize("depth", [0, 32, 96, 128])
def test_whole_numbers_are_exact(depth: int) -> None:
    a, b = RNG.integers(-8, 9, (2, 4, depth)) * 1.0, RNG.integers(-8, 9, (2, depth, 4)) * 1.0
    acc = RNG.integers(-99, 99, (2, 4, 4)) * 1.0
    for interval in (0, 32, 64):  # below 2^14: they fit 14 bits
        np.testing.assert_array_equal(fp8_sums(a, b, acc, BOTH, interval), a @ b + acc)


@pytest.mark.parametrize(
    ("factors", "acc", "expected"),
    [
        (((1.75, 1.75), (-1.5, 1.5)), 2.0**-13, 0.8125 + 2.0**-13),  # count as 1, not as 2
        (((1.75, 1.75), (-1.5, 1.5)), 2.0**-14, 0.8125),
        (((2.0**-9, 1.0),), 2.0**-19, 2.0**-9 + 2.0**-19),  # counts as 2^-6
        (((2.0**-9, 1.0),), 2.0**-20, 2.0**-9),
        (((0.0, 448.0),), 2.0**-20, 2.0**-20),  # counts for nothing
    ],
)
def test_products_count_by_the_exponents_of_their_factors(
    factors: tuple[tuple[float, float], ...], acc: float, expected: float
) -> None:
    a, b = np.zeros((1, STEP_K)), np.zeros((STEP_K, 1))
    for k, pair in enumerate(factors):
        a[0, k], b[k, 0] = pair
    assert fp8_step(a, b, np.array([[acc]]), BOTH)[0, 0] == expected


def test_the_sum_has_as_few_bits() -> None:
    a, b = np.ones((1, STEP_K)), np.ones((STEP_K, 1))
    a[0, :2] = 2.0**-9, 2.0**-10
    assert (
        fp8_step(a, b, np.zeros((1, 1)), BOTH)[0, 0] == 30 + 2.0**-9
    )  # of 5 bits before the point
    a[0, 0] = 2.0**-11
    assert fp8_step(a, b, np.zeros((1, 1)), BOTH)[0, 0] == 30


def test_long_sums_lose_what_a_gpu_was_measured_to_lose() -> None:
    """K of 8,192 positive numbers: an rms error of 273 of 2,047, 1.0 with a sum for each 128."""
    a, b = (
        RNG.uniform(0.0, 1.0, shape).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        for shape in ((16, 8192), (8192, 16))
    )
    exact, zero = a @ b, np.zeros((16, 16))

    def rms(value: Array) -> float:
        return float(np.sqrt(np.square(value).mean()))

    assert rms(exact) == pytest.approx(2047, rel=0.02)
    assert rms(fp8_sums(a, b, zero, BOTH) - exact) == pytest.approx(273, rel=0.05)
    assert rms(fp8_sums(a, b, zero, BOTH, 128) - exact) == pytest.approx(1.0, rel=0.2)
