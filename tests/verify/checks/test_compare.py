"""Bounds: deviations explained by rounding pass, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.types import BF16, FP16, FP32, I8, I32, ScalarType
from aotc.verify.arrays import Array
from aotc.verify.checks.compare import compare
from aotc.verify.checks.contents import HEAD_BYTES
from aotc.verify.checks.reference import Buffer
from aotc.verify.interpreter.numerics import dtype_of


def _bytes(values: Array) -> Array:
    head = np.zeros(HEAD_BYTES, np.uint8)
    return np.concatenate([head, np.ascontiguousarray(values).view(np.uint8)])


def _buffer(values: Array, element: ScalarType, *noisy: Array) -> Buffer:
    """Return a fully written buffer, with a noisy run for each of `noisy`."""
    size = values.size * element.size_bytes
    marks = np.concatenate([np.zeros(HEAD_BYTES, bool), np.ones(size, bool)])
    return Buffer(
        name="out",
        pointee=element,
        start_bytes=HEAD_BYTES,
        initial=_bytes(np.zeros_like(values)),
        expected=_bytes(values),
        readable=np.zeros_like(marks),
        writable=marks,
        upward=tuple(_bytes(run) for run in noisy),
        random=(),
    )


RNG = np.random.default_rng(3)
FLOATS = RNG.standard_normal(1000).astype(np.float32)


@pytest.mark.parametrize("element", [FP16, BF16, FP32, I8, I32], ids=str)
def test_a_result_is_equal_to_itself_and_exact_ones_to_nothing_else(element: ScalarType) -> None:
    values = (8 * FLOATS).astype(dtype_of(element))
    buffer = _buffer(values, element)
    assert compare(buffer, _bytes(values)) is None
    wrong = values.copy()
    bits = wrong.view(f"u{values.itemsize}")
    bits[17] ^= 1
    difference = compare(buffer, _bytes(wrong))
    assert difference is not None
    assert (difference.index, difference.bound, difference.num_wrong, difference.num_written) == (
        17,
        0.0,
        1,
        1000,
    )


def test_any_nan_is_a_nan_but_zeros_have_signs() -> None:
    values = np.array([np.nan, 0.0], np.float32)
    other = values.copy()
    other.view(np.uint32)[0] ^= 1
    assert compare(_buffer(values, FP32), _bytes(other)) is None
    negative = np.array([np.nan, -0.0], np.float32)
    assert compare(_buffer(values, FP32), _bytes(negative)) is not None


def test_a_byte_that_the_kernel_does_not_write_must_stay() -> None:
    buffer = _buffer(FLOATS, FP32, FLOATS * np.float32(1 + 1e-6))
    marks = buffer.writable.copy()
    marks[HEAD_BYTES + 40 : HEAD_BYTES + 44] = False
    changed = FLOATS.copy()
    changed[10] = np.nextafter(changed[10], np.float32(9))
    difference = compare(replace(buffer, writable=marks), _bytes(changed))
    assert difference is not None
    assert (difference.index, difference.reason) == (
        10,
        "are written, which the kernel does not do",
    )


def test_noise_is_the_bound() -> None:
    buffer = _buffer(FLOATS, FP32, FLOATS * np.float32(1 + 1e-5))
    assert compare(buffer, _bytes(FLOATS * np.float32(1 - 3e-5))) is None
    difference = compare(buffer, _bytes(FLOATS * np.float32(1 - 2e-4)))
    assert difference is not None
    assert 0 < difference.bound < 1e-3
    assert compare(buffer, _bytes(FLOATS * np.float32(1 - 2e-4)), tolerance=1e-3) is None


def test_runs_add_up() -> None:
    run = FLOATS * np.float32(1 + 1e-5)
    actual = _bytes(FLOATS * np.float32(1 - 1.2e-4))
    assert compare(_buffer(FLOATS, FP32, run), actual) is not None
    assert compare(_buffer(FLOATS, FP32, run, run), actual) is None


def test_a_few_results_may_be_rounded_the_other_way_but_not_half_of_them() -> None:
    exact = 1 + RNG.uniform(0, 1, 1000)
    values = exact.astype(np.float16)
    buffer = _buffer(values, FP16, values)
    flipped = values.copy()
    flipped[5] = np.nextafter(flipped[5], np.float16(9))
    assert compare(buffer, _bytes(flipped)) is None
    chopped = (np.floor(exact * 1024) / 1024).astype(np.float16)
    difference = compare(buffer, _bytes(chopped))
    assert difference is not None
    assert difference.reason == "are off by one step, more than rounding explains"
    two_steps = np.nextafter(flipped, np.float16(9))
    assert compare(buffer, _bytes(np.where(np.arange(1000) == 5, two_steps, values))) is not None


def test_integers_that_depend_on_rounding_may_be_off_by_one_where_few_are() -> None:
    values = RNG.integers(-100, 100, 1000).astype(np.int8)
    buffer = _buffer(values, I8, values)
    off = values.copy()
    off[7] += 1
    assert compare(buffer, _bytes(off)) is None
    off[7] += 1
    assert compare(buffer, _bytes(off)) is not None
    assert compare(buffer, _bytes(values + np.int8(1))) is not None


def test_any_result_passes_only_where_noise_makes_an_infinity() -> None:
    values = np.array([3e38, 1.0], np.float32)
    buffer = _buffer(values, FP32, np.array([np.inf, 1.0], np.float32))
    assert compare(buffer, _bytes(np.array([np.inf, 1.0], np.float32))) is None
    assert compare(buffer, _bytes(np.array([3e38, np.inf], np.float32))) is not None
    assert compare(buffer, _bytes(np.array([3e38, np.nan], np.float32))) is not None


@pytest.mark.parametrize(
    ("element", "largest"),
    [(FP16, 65504.0), (BF16, 255 * 2.0**120), (FP32, (2**24 - 1) * 2.0**104)],
)
def test_an_infinity_is_one_step_from_the_largest_number(
    element: ScalarType, largest: float
) -> None:
    dtype = dtype_of(element)
    values = np.array([np.inf, largest, -np.inf, 1.0], np.float64).astype(dtype)
    rounded = np.array([largest, np.inf, -np.inf, 1.0], np.float64).astype(dtype)
    buffer = _buffer(values, element, values)
    assert compare(buffer, _bytes(rounded)) is None
    below = np.array([largest * 0.98, largest, -np.inf, 1.0], np.float64).astype(dtype)
    assert compare(buffer, _bytes(below)) is not None
    other_sign = np.array([-largest, largest, -np.inf, 1.0], np.float64).astype(dtype)
    assert compare(buffer, _bytes(other_sign)) is not None


@pytest.mark.parametrize("result", [np.nan, -np.inf, 3e38])
def test_a_tolerance_does_not_reach_an_infinity(result: float) -> None:
    values, actual = np.array([np.inf, 1.0], np.float32), np.array([result, 1.0], np.float32)
    buffer = _buffer(values, FP32, values)
    assert compare(buffer, _bytes(values), tolerance=1e-3) is None
    assert compare(buffer, _bytes(actual), tolerance=1e-3) is not None


@pytest.mark.parametrize("expected", [np.inf, -np.inf, np.nan, 1.0])
def test_any_result_passes_where_noise_makes_nan(expected: float) -> None:
    values = np.array([expected, np.inf, 1.0], np.float32)
    noisy = np.array([np.inf if np.isnan(expected) else np.nan, np.inf, 1.0], np.float32)
    for result in (np.inf, -np.inf, np.nan, -3.0):
        actual = np.array([result, np.inf, 1.0], np.float32)
        assert compare(_buffer(values, FP32, noisy), _bytes(actual)) is None
        actual[1] = -np.inf
        difference = compare(_buffer(values, FP32, noisy), _bytes(actual))
        assert difference is not None
        assert difference.index == 1


@given(st.integers(0, 999), st.sampled_from([FP16, BF16, FP32]), st.integers(0, 2**32 - 1))
def test_an_element_of_another_place_is_never_within_the_bound(
    index: int, kind: ScalarType, seed: int
) -> None:
    values = (4 * np.random.default_rng(seed).standard_normal(1000)).astype(dtype_of(kind))
    step = np.float32(1 + 4 * 2.0**-kind.mantissa_bits)
    buffer = _buffer(values, kind, (values.astype(np.float32) * step).astype(values.dtype))
    wrong = values.copy()
    far = 1 + abs(float(values[index]))  # differs by more than the element itself, for any element
    wrong[index] = values.dtype.type(float(values[index]) - far)
    difference = compare(buffer, _bytes(wrong))
    assert difference is not None
    assert difference.index == index
