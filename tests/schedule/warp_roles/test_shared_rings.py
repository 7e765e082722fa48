"""Consecutive loops load through one ring, without draining it in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

SOURCE = """def k(a, b, c, low, high, tiles):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((64, 64), tl.float32)
        for k in range(0, low):
            total = tl.dot(a.load([tile * 64, k * 64]), b.load([0, k * 64]).T, total)
        total = total * 0.5
        for k in range(low, high):
            total = tl.dot(a.load([tile * 64, k * 64]), b.load([0, k * 64]).T, total)
        c.store([tile * 64, 0], total)
"""
SIGNATURE = {
    "a": "tensordesc<fp16[64,64]>",
    "b": "tensordesc<fp16[64,64]>",
    "c": "tensordesc<fp32[64,64]>",
    "low": "i32",
    "high": "i32",
    "tiles": "i32",
}
STAGE_BYTES = 2 * 64 * 64 * 2


def test_there_is_one_ring(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=3)
    rings = [line for line in text.splitlines() if "shared_alloc" in line and "= 3}" in line]
    assert len(rings) == 2 + 2  # buffers of A and of B, `full` and `empty`
    # The second loop goes on where the first one is.
    loops = [line for line in text.splitlines() if "scf.for" in line and "%stage" in line]
    assert loops


@pytest.mark.emulated
@pytest.mark.parametrize("config", [{}, {"num_consumer_groups": 2}, {"num_stages": 2}])
def test_sums_over_both_loops_are_right(tmp_path: Path, config: dict[str, Any]) -> None:
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, **config)
    rows, tiles = 3 * 64 - 7, 3
    for seed, (low, high) in enumerate([(0, 0), (0, 1), (1, 1), (1, 2), (3, 4), (2, 7), (4, 9)]):
        depth = 64 * max(1, high)
        a, b = (
            np.sign(tensor((size, depth), "fp16", seed=2 * seed + index))
            for index, size in ((0, rows), (1, 64))
        )
        c = like(tensor((rows, 64), "fp32"))
        values = {"a": a, "b": b, "c": c, "low": low, "high": high, "tiles": tiles}
        launch(kernel, (2,), values, seed=seed)
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        first, last = slice(0, 64 * low), slice(64 * low, 64 * high)
        expected = wide_a[:, first] @ wide_b[:, first].T * 0.5 + wide_a[:, last] @ wide_b[:, last].T
        np.testing.assert_array_equal(c, expected)


def test_it_fits_where_two_rings_do_not(tmp_path: Path) -> None:
    """The stages of both loops together would take more shared memory than a CTA has."""
    num_stages = 232448 // STAGE_BYTES - 2
    assert 2 * num_stages * STAGE_BYTES > 232448
    _, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=num_stages)
    assert "a producer warp issues the loads, stages ahead" in remarks
