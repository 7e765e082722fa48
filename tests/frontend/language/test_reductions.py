"""Reductions and scans, run on tile IR against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.conftest import I, Sources, X, evaluate, kernel_of
from tests.support.rows_with_nan import places_without_nan, rows_with_nan


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


REDUCTIONS = [
    ("tl.sum(x, 0)", X, X.sum(0)),
    ("tl.sum(x, 1, keep_dims=True)", X, X.sum(1, keepdims=True)),
    ("tl.sum(x)", X, X.sum()),
    ("tl.sum(x, keep_dims=True)", X, X.sum(keepdims=True)),
    ("tl.max(x, -1)", X, X.max(1)),
    ("tl.min(x, 0)", I, I.min(0)),
    ("x.max()", X, X.max()),
    ("tl.argmax(x, 1)", X, X.argmax(1)),
    ("tl.argmin(x, axis=0)", X, X.argmin(0)),
    ("tl.argmax(x * 0, 1)", I, np.zeros(4)),
    ("tl.argmax(x, 1, keep_dims=True)", X, X.argmax(1)[:, None]),
    ("tl.argmax(x, None)", X, X.argmax()),
    ("tl.max(x, 1, return_indices=True)[1]", X, X.argmax(1)),
    ("tl.min(x, 1, return_indices=True)[0]", X, X.min(1)),
    ("tl.xor_sum(x, 0)", I, np.bitwise_xor.reduce(I, 0)),
    ("tl.reduce_or(x, 1)", I, np.bitwise_or.reduce(I, 1)),
    ("tl.sum(x, 1)", I.astype(np.int8), I.sum(1)),
    ("tl.sum(x > 0, 1)", I, (I > 0).sum(1)),
    ("tl.reduce(x, 1, larger)", X, X.max(1)),
    ("tl.reduce(x, None, larger)", X, X.max()),
    ("tl.reduce((x, -x), 0, both)[1]", X, (-X).max(0)),
    ("tl.cumsum(x, 1)", I, I.cumsum(1)),
    ("tl.cumsum(x, 0)", I.astype(np.int8), I.cumsum(0)),
    ("tl.cumsum(x, 1, reverse=True)", I, I[:, ::-1].cumsum(1)[:, ::-1]),
    ("tl.cumprod(x, 0)", X, X.cumprod(0)),
    ("tl.associative_scan(x, 1, larger)", X, np.maximum.accumulate(X, 1)),
    ("tl.associative_scan((x, x), 0, both)[0]", X, np.minimum.accumulate(X, 0)),
    ("tl.associative_scan(x, 0, larger, reverse=True)", X, np.maximum.accumulate(X[::-1], 0)[::-1]),
    ("tl.softmax(x)", X, softmax(X, 0)),
    ("tl.softmax(x, 1, ieee_rounding=True)", X, softmax(X, 1)),
]
COMBINES = """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b)

@triton.jit
def both(a, b, c, d):
    return tl.minimum(a, c), tl.where(b > d, b, d)
"""


@pytest.mark.parametrize(
    ("expression", "x", "expected"),
    REDUCTIONS,
    ids=[f"{label}-{index}" for index, (label, _, _) in enumerate(REDUCTIONS)],
)
def test_reductions_and_scans(
    sources: Sources, expression: str, x: np.ndarray, expected: np.ndarray
) -> None:
    out_type = "fp64" if x.dtype.kind == "f" else "i32"
    shape = np.shape(expected)
    actual = evaluate(sources, expression, x, out_type, shape, COMBINES)
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("tl.cumsum(y, 0)", "float32"),
        ("tl.cumprod(y, 0, reverse=True)", "float32"),
        ("tl.cumsum(y, 0, dtype=tl.bfloat16)", "bfloat16"),
        ("tl.associative_scan(y, 0, larger)", "bfloat16"),
        ("tl.sum(y, 0)", "bfloat16"),
    ],
)
def test_only_named_scans_widen_bf16(sources: Sources, call: str, kind: str) -> None:
    """Triton up to 3.8 does the same, and kernels rely on it."""
    body = f"y = tl.full([8], 2, tl.bfloat16)\nz = {call}\ntl.static_assert(z.dtype == tl.{kind})"
    sources.translate(COMBINES + kernel_of(body))


def test_a_cumulative_sum_of_bf16_is_not_rounded_on_its_way(sources: Sources) -> None:
    """A running bf16 sum of 255 and ones stays at 256."""
    x = np.ones((4, 8), np.float32)
    x[0] = 255
    actual = evaluate(sources, "tl.cumsum(x.to(tl.bfloat16), 0)", x, "fp64", x.shape)
    np.testing.assert_array_equal(actual, x.cumsum(0))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64", "float8e5"])
def test_a_nan_is_left_out(sources: Sources, kind: str, left: bool) -> None:
    x = rows_with_nan(4, 8, ties=left)
    if kind == "float8e5":  # casts to it end at the largest finite number
        x[np.isinf(x)] = -8
    for name in ("max", "min"):
        how = f"return_indices=True, return_indices_tie_break_left={left}"
        call = f"tl.{name}(x.to(tl.{kind}), 1, {how})"
        index = evaluate(sources, f"{call}[1]", x, "i32", (4,))
        np.testing.assert_array_equal(index, places_without_nan(x, name))
        value = evaluate(sources, f"{call}[0].to(tl.float32)", x, "fp32", (4,))
        np.testing.assert_array_equal(value, x[np.arange(4), index])
