"""Rings of the CTAs of a cluster, interpreted, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.frontend import translate
from aotc.verify.interpreter.run import run

KERNELS = Path(__file__).parents[2] / "kernels"
SOURCE = str(KERNELS / "cluster_ring.py")


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("stride", [1, 31, 64])
def test_everybody_has_seen_all_tiles(size: int, stride: int) -> None:
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "n_clusters": "i32"}
    translation = translate(SOURCE, "all_gather_kernel", signature, {"BLOCK": 64}, num_ctas=size)
    x = np.random.default_rng(size).standard_normal((3, size, stride)).astype(np.float32)
    out = np.full((3, size, size, stride), np.nan, np.float32)
    run(translation.kernel, (3,), [x, out, stride, 3])
    np.testing.assert_array_equal(out, np.broadcast_to(x[:, None], out.shape))


@pytest.mark.parametrize("pull", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 8, 9])
def test_the_ring_adds_up_passing_tiles(steps: int, *, pull: bool) -> None:
    signature = {"x_ptr": "*fp32", "right_ptr": "*fp32", "left_ptr": "*fp32"}
    signature |= {"steps": "i32", "n_clusters": "i32"}
    constants = {"BLOCK": 64, "PULL": pull}
    translation = translate(SOURCE, "ring_kernel", signature, constants, num_ctas=8)
    x = np.random.default_rng(steps).integers(-9, 9, (2, 8, 64)).astype(np.float32)
    right, left = np.full_like(x, np.nan), np.full_like(x, np.nan)
    run(translation.kernel, (2,), [x, right, left, steps, 2])
    for out, way in ((right, 1), (left, -1)):
        passed = [np.roll(x, way * step, 1) for step in range(1, steps + 1)]
        np.testing.assert_array_equal(out, sum(passed, np.zeros_like(x)))


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("n_rows", [0, 1, 5])
def test_each_cta_adds_up_its_share(size: int, n_rows: int) -> None:
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n_rows": "i32", "n_clusters": "i32"}
    translation = translate(
        SOURCE, "reduce_scatter_kernel", signature, {"BLOCK": 64}, num_ctas=size
    )
    x = np.random.default_rng(size).integers(-9, 9, (3, n_rows, size, 64)).astype(np.float32)
    out = np.full((3, n_rows, 64), np.nan, np.float32)
    run(translation.kernel, (3,), [x, out, n_rows, 3])
    np.testing.assert_array_equal(out, x.sum(axis=2))
