"""Elementwise functions, operators and casts, run on tile IR against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontend.conftest import I, Sources, X, evaluate

POSITIVE = np.abs(X) + 0.25


def _swizzled(i: int, j: int, size_i: int, size_j: int, size_g: int) -> int:
    """Return 10 * row + column of the swizzled (i, j), by enumeration."""
    walked = [
        10 * row + column
        for first in range(0, size_i, size_g)
        for column in range(size_j)
        for row in range(first, min(first + size_g, size_i))
    ]
    return walked[i * size_j + j]


ELEMENTWISE = [
    ("tl.exp(x)", X, np.exp(X)),
    ("tl.exp2(x)", X, np.exp2(X)),
    ("tl.log(x)", POSITIVE, np.log(POSITIVE)),
    ("tl.math.log2(x)", POSITIVE, np.log2(POSITIVE)),
    ("tl.sqrt(x) + tl.sqrt_rn(x)", POSITIVE, 2 * np.sqrt(POSITIVE)),
    ("x.rsqrt()", POSITIVE, 1 / np.sqrt(POSITIVE)),
    ("tl.sin(x) * tl.cos(x)", X, np.sin(X) * np.cos(X)),
    ("tl.abs(x)", X, np.abs(X)),
    ("tl.floor(x) + 2 * tl.ceil(x)", X, np.floor(X) + 2 * np.ceil(X)),
    ("tl.sigmoid(x)", X, 1 / (1 + np.exp(-X))),
    ("tl.clamp(x, -0.5, 0.5)", X, np.clip(X, -0.5, 0.5)),
    ("tl.minimum(x, 0) + tl.maximum(0.25, x)", X, np.minimum(X, 0) + np.maximum(X, 0.25)),
    ("min(x, 0.5, 0.25)", X, np.minimum(X, 0.25)),
    ("tl.fma(x, x, 1.0)", X, X * X + 1),
    ("tl.div_rn(1.0, x) + tl.fdiv(x, 2)", POSITIVE, 1 / POSITIVE + POSITIVE / 2),
    ("tl.where(x > 0, x, -1.0)", X, np.where(X > 0, X, -1)),
    ("tl.where(x > 0, 1, 0).to(tl.float32)", X, (X > 0)),
    ("x // 3", I, np.trunc(I / 3)),
    ("x % 3", I, np.fmod(I, 3)),
    ("x / 3", I, I / 3),
    ("x >> 1", I, I >> 1),
    ("x.to(tl.uint32) >> 1", I, I.astype(np.uint32) >> 1),
    ("(x << 2) ^ (x & 3) | 8", I, (I << 2) ^ (I & 3) | 8),
    ("~x", I, ~I),
    ("-x", I, -I),
    ("tl.cdiv(x.to(tl.uint32) & 15, 4)", I, ((I & 15) + 3) // 4),
    (
        "tl.umulhi(x.to(tl.uint32), 3000000000)",
        I,
        (I.astype(np.uint32).astype(np.uint64) * 3000000000) >> 32,
    ),
    (
        "tl.swizzle2d(3 + (x & 3), 3, 7, 5, 4)[0] * 10 + tl.swizzle2d(3 + (x & 3), 3, 7, 5, 4)[1]",
        I,
        np.vectorize(lambda i: _swizzled(3 + (i & 3), 3, 7, 5, 4))(I),
    ),
    ("x.to(tl.float32).to(tl.int32, bitcast=True)", I, I.astype(np.float32).view(np.int32)),
    ("x.to(tl.float16)", X, X.astype(np.float16)),
    ("x.to(tl.float8e5).to(tl.float32)", X, X.astype(ml_dtypes.float8_e5m2).astype(np.float32)),
    ("(x * 3).to(tl.int8)", X, np.trunc(X * 3)),
    ("x.to(tl.int1)", I, I != 0),
    ("(x > 0) & (x < 1)", X, (X > 0) & (X < 1)),
    ("not (tl.sum(x) > 1e9)", X, True),
    ("tl.extra.libdevice.tanh(x)", X, np.tanh(X)),
    ("0 < x.to(tl.int32) + 1", X, np.trunc(X) + 1 > 0),
]


@pytest.mark.parametrize(
    ("expression", "x", "expected"), ELEMENTWISE, ids=[label for label, _, _ in ELEMENTWISE]
)
def test_elementwise(
    sources: Sources, expression: str, x: np.ndarray, expected: np.ndarray
) -> None:
    actual = evaluate(sources, expression, x, "fp64", np.shape(expected))
    np.testing.assert_allclose(actual, np.asarray(expected, np.float64), rtol=3e-6, atol=1e-6)


def test_rounding_towards_zero(sources: Sources) -> None:
    near = evaluate(sources, "x.to(tl.bfloat16)", X, "fp32", (4, 8))
    down = evaluate(sources, "x.to(tl.bfloat16, fp_downcast_rounding='rtz')", X, "fp32", (4, 8))
    np.testing.assert_array_equal(near, X.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert (np.abs(down) <= np.abs(X)).all()
    assert (near != down).any()


def test_nan(sources: Sources) -> None:
    x = X.copy()
    x[0, 0] = np.nan
    maxima = evaluate(
        sources, "tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)", x, "fp32", (4, 8)
    )
    dropped = evaluate(sources, "tl.maximum(x, 0.0)", x, "fp32", (4, 8))
    assert np.isnan(maxima[0, 0])
    assert dropped[0, 0] == 0
    assert evaluate(sources, "tl.extra.libdevice.isnan(x)", x, "i32", (4, 8)).sum() == 1
