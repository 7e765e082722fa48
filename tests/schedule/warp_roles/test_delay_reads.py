"""Tensor loads to registers are read at their use, and share a stage with loads around them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

SOURCE = """def k(a, b, scale, c, n):
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, n, 64):
        x = a.load([0, key])
        factor = scale.load([0, key]).reshape(64)
        y = b.load([key, 0])
        total += tl.dot(x, y.T) * factor[None, :]
    c.store([0, 0], total)
"""
SIGNATURE = {
    **dict.fromkeys("ab", "tensordesc<fp16[64,64]>"),
    "scale": "tensordesc<fp32[1,64]>",
    "c": "tensordesc<fp32[64,64]>",
    "n": "i32",
}


def test_a_read_stands_behind_the_dot_and_ahead_of_the_wait_for_it(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=2)
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    ops = re.findall(r"gpu\.(mbarrier_wait|mbarrier_arrive|wgmma_wait|wgmma|shared_load)\(", loop)
    assert ops == ["mbarrier_wait", "wgmma", "shared_load", "wgmma_wait", "mbarrier_arrive"]


@pytest.mark.emulated
def test_what_is_read_late_is_what_was_loaded(tmp_path: Path) -> None:
    for num_stages in (1, 2):
        kernel = compiled(tmp_path, SOURCE, SIGNATURE, num_stages=num_stages)
        for n in (0, 64, 64 * 3):
            a, b = (
                np.sign(tensor((64, max(n, 64)), "fp16")),
                np.sign(tensor((max(n, 64), 64), "fp16", seed=1)),
            )
            scale, c = (
                np.sign(tensor((1, max(n, 64)), "fp32", seed=2)),
                like(tensor((64, 64), "fp32")),
            )
            launch(kernel, (1,), {"a": a, "b": b, "scale": scale, "c": c, "n": n}, seed=n)
            expected = np.zeros((64, 64))
            for key in range(0, n, 64):
                part = slice(key, key + 64)
                expected += (a[:, part].astype(np.float64) @ b[part].astype(np.float64).T) * scale[
                    :, part
                ]
            np.testing.assert_array_equal(c, expected)
