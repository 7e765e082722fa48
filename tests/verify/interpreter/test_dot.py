"""Matrix products of the interpreter, against sums written out."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from aotc.ir.dialects import tile
from aotc.ir.dialects.tile import InputPrecision
from aotc.ir.types import BF16, FP8E4NV, FP8E5, FP16, FP32, FP64, I8, I32, U8, ScalarType
from aotc.verify.arrays import Array
from aotc.verify.interpreter.dot import dot, truncate_to_tf32
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.run_op import run_op

RNG = np.random.default_rng(4)


def _random(shape: tuple[int, ...], scalar: ScalarType) -> Array:
    if scalar.is_int:
        info = np.iinfo(dtype_of(scalar))
        return RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype_of(scalar))
    return RNG.standard_normal(shape).astype(dtype_of(scalar))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((FP16, FP32), (FP16, FP16), (BF16, FP32), (FP64, FP64)),
        *((FP8E4NV, FP32), (FP8E5, FP16), (I8, I32), (U8, I32)),
    ],
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 8, 2), (2, 4, 4, 8)])
def test_every_type_against_a_sum_of_products(
    source: ScalarType, target: ScalarType, shape: tuple[int, ...]
) -> None:
    *batch, m, n, k = shape
    a, b = _random((*batch, m, k), source), _random((*batch, k, n), source)
    acc = _random((*batch, m, n), target)
    (actual,) = run_op(lambda add, *values: add(tile.Dot(*values)).out, a, b, acc)
    products = a.astype(np.float64)[..., None] * b.astype(np.float64)[..., None, :, :]
    exact = products.sum(axis=-2) + acc.astype(np.float64)
    assert actual.dtype == dtype_of(target)
    if target.is_int:
        assert (actual == exact.astype(np.int64).astype(np.int32)).all()
    else:
        error = np.abs(actual.astype(np.float64) - exact)
        size = np.abs(products).sum(axis=-2) + np.abs(acc.astype(np.float64))
        assert (error <= 2.0**-target.mantissa_bits * np.abs(exact) + 2.0**-50 * size).all()


def test_integers_wrap() -> None:
    a = np.full((1, 4), 127, np.int8)
    acc = np.full((1, 1), 2**31 - 1, np.int32)
    assert dot(a, a.T, acc, I8, I32, "ieee").item() == 2**31 - 1 + 4 * 127**2 - 2**32


def test_tf32_ignores_the_low_bits() -> None:
    value = np.array([1 + 2.0**-10 + 2.0**-11 + 2.0**-23, -(2 - 2.0**-23), np.inf], np.float32)
    truncated = truncate_to_tf32(value)
    assert truncated.tolist() == [1 + 2.0**-10, -(2 - 2.0**-10), np.inf]
    # A NaN with all its mantissa in the dropped bits would become an infinity.
    low_nan = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(truncate_to_tf32(low_nan)).all()


@pytest.mark.parametrize(
    ("how", "bits"), [("tf32", 9), ("tf32x3", 19), ("bf16x3", 14), ("bf16x6", 21), ("ieee", 24)]
)
def test_input_precision(how: InputPrecision, bits: int) -> None:
    a, b = _random((16, 64), FP32), _random((64, 16), FP32)
    acc = np.zeros((16, 16), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b)
    error: Any = np.abs(dot(a, b, acc, FP32, FP32, how) - exact) / size
    assert error.max() <= 2.0**-bits
    # A small deviation: the error comes from the mode alone.
    assert error.max() > 2.0 ** -(bits + 8)


@pytest.mark.parametrize("how", ["tf32x3", "bf16x3", "bf16x6"])
def test_infinities_have_no_residual(how: InputPrecision) -> None:
    a = np.array([[np.inf, 1.5], [1.0, 2.0]], np.float32)
    b = np.array([[2.0, -1.0], [0.5, 3.0]], np.float32)
    with np.errstate(all="ignore"):
        actual = dot(a, b, np.zeros((2, 2), np.float32), FP32, FP32, how)
    assert actual.tolist() == [[np.inf, -np.inf], [3.0, 5.0]]


def test_half_precision_operands_ignore_the_mode() -> None:
    a, b = _random((4, 8), FP16), _random((8, 4), FP16)
    acc = _random((4, 4), FP32)
    results = [dot(a, b, acc, FP16, FP32, how) for how in get_args(InputPrecision)]
    assert all((result == results[0]).all() for result in results)
