"""What a loop's dots read in every iteration is loaded by tensor copies, too, if others are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch

SOURCE = """def k(q_ptr, k_ptr, out_ptr, n, stride):
    m, d = tl.arange(0, 64), tl.arange(0, 64)
    start = tl.program_id(0) * 64
    q = tl.load(q_ptr + (start + m)[:, None] * 64 + d[None, :], mask=(start + m < n)[:, None], other=0.0)
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        keys = k_ptr + (first + m)[:, None] * stride + d[None, :]
        acc = tl.dot(q, tl.load(keys, mask=(first + m < n)[:, None], other=0.0).T, acc)
    tl.store(out_ptr + (start + m)[:, None] * 64 + d[None, :], acc, mask=(start + m < n)[:, None])
"""
SIGNATURE = {"q_ptr": "*fp16:16", "k_ptr": "*fp16:16", "out_ptr": "*fp32:16", "n": "i32"}


@pytest.mark.emulated
@pytest.mark.parametrize("stride_type", ["i32:16", "i32"])
def test_they_are_if_the_loads_of_the_loop_are(tmp_path: Path, stride_type: str) -> None:
    signature = {**SIGNATURE, "stride": stride_type}
    kernel = compiled(tmp_path, SOURCE, signature, map_pointers=True)
    mapped = {slot.argument for slot in kernel.params if slot.tensor_map is not None}
    assert ({"q_ptr", "k_ptr"} <= mapped) == (stride_type == "i32:16")
    assert bool(mapped) == (stride_type == "i32:16")
    rng = np.random.default_rng(5)
    for n in (1, 63, 64, 65, 130):
        q, k = (rng.integers(-2, 3, (n, 64)).astype(np.float16) for _ in range(2))
        out = np.full((n, 64), np.nan, np.float32)
        values = {"q_ptr": q, "k_ptr": k, "out_ptr": out, "n": n, "stride": 64}
        launch(kernel, (-(-n // 64),), values, seed=n)
        tiles = np.zeros((-(-n // 64) * 64, 64))
        tiles[:n] = k
        expected = q.astype(np.float64) @ tiles.reshape(-1, 64, 64).sum(axis=0).T
        np.testing.assert_array_equal(out, expected)
