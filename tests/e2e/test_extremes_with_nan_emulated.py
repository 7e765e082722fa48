"""The index of a maximum among NaNs does not depend on the layout."""

from __future__ import annotations

import numpy as np
import pytest

import aotc
from aotc.verify.emulator.run import emulate
from tests.support.rows_with_nan import places_without_nan, rows_with_nan

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def places(x_ptr, high_ptr, low_ptr, best_ptr, ROWS: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, N)
    x = tl.load(x_ptr + i[:, None] * N + j[None, :])
    if AXIS == 0:
        x = x.trans()
    tl.store(low_ptr + i, tl.argmin(x, AXIS))
    best, place = tl.max(x, AXIS, return_indices=True)
    tl.store(high_ptr + i, place)
    tl.store(best_ptr + i, best)
"""
ROWS = 8


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("columns", "warps"), [(2, 1), (32, 1), (64, 4), (128, 8)])
def test_places(columns: int, warps: int, axis: int) -> None:
    kernel = aotc.compile(
        "places",
        source=SOURCE,
        signature={"x_ptr": "*fp32:16", "high_ptr": "*i32", "low_ptr": "*i32", "best_ptr": "*fp32"},
        constants={"ROWS": ROWS, "N": columns, "AXIS": axis},
        num_warps=warps,
    )
    x = rows_with_nan(ROWS, columns, ties=True)
    high, low, best = np.full(ROWS, -1, np.int32), np.full(ROWS, -1, np.int32), np.zeros(ROWS, "f4")
    emulate(
        kernel.asm["ptx"],
        (1, 1, 1),
        [x, high, low, best],
        shared_bytes=kernel.metadata.shared_bytes,
    )
    np.testing.assert_array_equal(high, places_without_nan(x, "max"))
    np.testing.assert_array_equal(low, places_without_nan(x, "min"))
    np.testing.assert_array_equal(best, x[np.arange(ROWS), high])
