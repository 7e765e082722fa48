"""Distances between results: identical, in steps, relative to magnitudes, NaN apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibration.case import Bound
from benchmarks.calibration.distance import compare, ulp_distance, ulp_size

WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20)


def f32(*values):
    return np.array(values, np.float32).view(np.uint32)


@given(WORDS)
def test_an_array_is_identical_to_itself(words):
    array = np.array(words, np.uint32)
    for kind in ("f32", "u32", "f16x2", "bf16x2"):
        comparison = compare(kind, array, array, Bound())
        assert (comparison.identical, comparison.broken, comparison.examples) == (
            comparison.count,
            0,
            (),
        )
    assert compare("f16x2", array, array, Bound()).count == 2 * len(words)


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_distance_counts_the_numbers_between(x, y):
    left, right = f32(x), f32(y)
    distance = int(ulp_distance("f32", left, right)[0])
    assert distance == int(ulp_distance("f32", right, left)[0])
    assert (distance == 0) == (x == y)
    step = np.nextafter(np.float32(x), np.float32(y))
    nearer = int(ulp_distance("f32", f32(step), right)[0])
    assert nearer == max(distance - 1, 0)


def test_distance_passes_zero():
    least = np.array([1], np.uint32)
    assert ulp_distance("f32", least, least | np.uint32(1 << 31))[0] == 2
    top = np.array([0x7C00], np.uint16)  # infinity is one step above the largest number
    assert ulp_distance("f16", top, top - np.uint16(1))[0] == 1


@pytest.mark.parametrize(
    ("kind", "value", "step"),
    [
        ("f32", 1.0, 2.0**-23),
        ("f32", 1.99, 2.0**-23),
        ("f32", 0.0, 2.0**-149),
        ("f16", 2.0**-14, 2.0**-24),
        ("f16", 2.0**-20, 2.0**-24),
        ("bf16", 4.0, 2.0**-5),
        ("f64", 1.0, 2.0**-52),
    ],
)
def test_steps(kind, value, step):
    assert ulp_size(kind, np.array([value]))[0] == step


def test_what_must_be_identical_and_is_not():
    left, right = f32(1, 2, 3, np.nan), f32(1, 2, 3, np.nan)
    right[3] ^= 1
    right[1] += 1
    comparison = compare("f32", left, right, Bound())
    assert (comparison.count, comparison.identical, comparison.nan_only, comparison.broken) == (
        4,
        2,
        1,
        2,
    )
    assert comparison.max_ulps == 1
    assert comparison.examples[0] == (1, "0x40000000", "0x40000001")


def test_integers_have_no_distance():
    left, right = np.arange(10, dtype=np.uint64), np.arange(10, dtype=np.uint64)
    right[7] = 0
    comparison = compare("u64", left, right, Bound(ulps=100))
    assert (comparison.broken, comparison.examples[0][0]) == (1, 7)


@pytest.mark.parametrize(("bound", "broken"), [(Bound(ulps=2), 1), (Bound(ulps=3), 0)])
def test_bounds_in_steps(bound, broken):
    left = f32(1.0, -5.0, 0.0)
    right = left + np.array([3, 2, 0], np.uint32)
    comparison = compare("f32", left, right, bound)
    assert (comparison.broken, comparison.max_ulps) == (broken, 3)


def test_of_alternatives_each_distance_is_what_the_other_does_not_cover():
    # Near zero many steps and a tiny distance, far from it few steps and a large one.
    left = f32(1e-9, 2.0**20)
    right = left + np.array([5000, 1], np.uint32)
    comparison = compare("f32", left, right, Bound(ulps=2, absolute=2.0**-22))
    assert (comparison.broken, comparison.max_ulps) == (0, 1)
    assert comparison.max_absolute == abs(
        float(right.view(np.float32)[0]) - float(np.float32(1e-9))
    )


def test_bounds_allow_half_a_step_more():
    exact = f32(1.0)
    assert not compare("f32", exact, exact + np.uint32(4), Bound(relative=3.5 * 2.0**-23)).broken
    assert compare("f32", exact, exact + np.uint32(5), Bound(relative=3.5 * 2.0**-23)).broken
    assert not compare("f32", exact, exact + np.uint32(4), Bound(absolute=3.5 * 2.0**-23)).broken


def test_bounds_relative_to_magnitudes():
    left, right, scale = f32(1e-6), f32(3e-6), f32(4.0)
    comparison = compare("f32", left, right, Bound(scaled=2.0**-20), scale)
    assert not comparison.broken
    assert comparison.max_scaled == pytest.approx(2e-6 / 4, rel=1e-6)
    assert compare("f32", left, right, Bound(scaled=2.0**-22), scale).broken == 1


def test_a_number_is_never_within_bounds_of_nan_or_of_infinity():
    left, right = f32(np.nan, 1.0, np.inf, 3.4e38), f32(1.0, np.nan, 3.4e38, np.inf)
    comparison = compare("f32", left, right, Bound(absolute=1e30, relative=0.5))
    assert comparison.broken == 4


def test_a_bound_says_what_it_is():
    assert str(Bound()) == "identical"
    assert str(Bound(ulps=2, absolute=2.0**-22)) == "2 ulp or 2^-22 absolute"
