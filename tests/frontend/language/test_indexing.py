"""Gathers and histograms, run on tile IR against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.conftest import I, Sources, X, evaluate

INDEX = (np.arange(32).reshape(4, 8) * 3 + 1) % 4
COUNTED = np.bincount(I[I >= 0], minlength=16)
EVEN = np.bincount(I[(I >= 0) & (I % 2 == 0)], minlength=16)

CALLS = [
    ("tl.gather(x, index(), 0)", X, np.take_along_axis(X, INDEX, 0)),
    ("x.gather(index(), axis=-1)", X, np.take_along_axis(X, INDEX, 1)),
    ("tl.gather(x, index().to(tl.int64), 1)", I, np.take_along_axis(I, INDEX, 1)),
    ("tl.gather(x, index().to(tl.uint8), 1)", I, np.take_along_axis(I, INDEX, 1)),
    ("tl.gather(x, index().reshape(8, 4).trans(), 1)", X, np.take_along_axis(
        X, INDEX.reshape(8, 4).T, 1)),
    ("tl.gather(x, tl.zeros((4, 2), tl.int32) - 1, 1)", X, X[:, [7, 7]]),
    ("tl.gather(x, tl.zeros((16, 8), tl.int8) + 2, 0)", X, X[[2] * 16]),
    ("tl.histogram(x.ravel(), 16)", I, COUNTED),
    ("x.ravel().histogram(8, mask=x.ravel() % 2 == 0)", I, EVEN[:8]),
    ("tl.histogram(x.ravel().to(tl.uint32), num_bins=1, mask=True)", I, COUNTED[:1]),
    ("tl.histogram(x.ravel(), 16, x.ravel() > 100)", I, COUNTED * 0),
]  # fmt: skip
PRELUDE = """
@triton.jit
def index():
    return ((tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]) * 3 + 1) % 4
"""


@pytest.mark.parametrize(("expression", "x", "expected"), CALLS, ids=[call[0] for call in CALLS])
def test_gathers_and_histograms(
    sources: Sources, expression: str, x: np.ndarray, expected: np.ndarray
) -> None:
    out_type = "fp32" if x.dtype.kind == "f" else "i32"
    actual = evaluate(sources, expression, x, out_type, expected.shape, PRELUDE)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("call", "message", "remedy"),
    [
        ("tl.gather(1.5, i, 0)", "takes a tile of numbers", ""),
        ("tl.gather(p + i, i, 0)", "takes a tile of numbers", ""),
        ("tl.gather(x, x, 0)", "must be a tile of integers", ".to(tl.int32)"),
        ("tl.gather(x, x > 0, 0)", "must be a tile of integers", ".to(tl.int32)"),
        ("tl.gather(x, 1, 0)", "must be a tile of integers", ""),
        ("tl.gather(x, tl.ravel(i), 0)", "an index of as many axes", "[:, None]"),
        ("tl.gather(x, i, 2)", "the axis must be from -2 to 1, got 2", ""),
        ("tl.gather(x, i, tl.program_id(0))", "known at compile time", "tl.constexpr"),
        ("tl.gather(x, tl.trans(i), 0)", "axis 1 has 4 and not 8", "tl.broadcast_to"),
        ("tl.gather(x, i[:2], 0)", "indexed by `None` and `:`", ""),
        ("tl.histogram(i, 16)", "takes a tile of one axis", "tl.ravel"),
        ("tl.histogram(3, 16)", "takes a tile of one axis", ""),
        ("tl.histogram(tl.ravel(x), 16)", "int32 or uint32, got", ".to(tl.int32)"),
        ("tl.histogram(tl.arange(0, 8).to(tl.int64), 16)", "int32 or uint32", ".to(tl.int32)"),
        ("tl.histogram(tl.arange(0, 8), 12)", "power of two, got 12", "next_power_of_2"),
        ("tl.histogram(tl.arange(0, 8), 0)", "power of two, got 0", ""),
        ("tl.histogram(tl.arange(0, 8), tl.program_id(0))", "num_bins must be known", ""),
        ("tl.histogram(tl.arange(0, 8), 8, tl.arange(0, 8))", "mask of tl.histogram", "!= 0"),
        ("tl.histogram(tl.arange(0, 8), 8, x > 0)", "cannot broadcast", ""),
    ],
)
def test_mistakes(sources: Sources, call: str, message: str, remedy: str) -> None:
    body = f"x = tl.zeros((4, 8), tl.float32)\ni = tl.zeros((4, 8), tl.int32)\ny = {call}"
    error = sources.body_error(body, {"p": "*fp32"}, params="p")
    assert message in str(error)
    assert remedy in str(error)
