"""Dots with joined sums: one wait for all, and results at every length."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

# Queries and keys of 192 features come in three parts.
PARTS = """def k(q, k, v, out, n):
    row = tl.program_id(0) * 64
    query = ()
    for i in tl.static_range(3):
        query += (q.load([row, 64 * i]),)
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        key = ()
        for i in tl.static_range(3):
            key += (k.load([first, 64 * i]),)
        scores = tl.zeros((64, 64), tl.float32)
        for i in tl.static_range(3):
            scores = tl.dot(query[i], key[i].T, scores)
        acc = tl.dot((scores * 0.5).to(tl.float16), v.load([first, 0]), acc)
    out.store([row, 0], acc)
"""
SIGNATURE = {
    **dict.fromkeys("qkv", "tensordesc<fp16[64,64]>"),
    "out": "tensordesc<fp32[64,64]>",
    "n": "i32",
}


def _order(text: str) -> list[str]:
    return re.findall(r"gpu\.(wgmma_wait|wgmma\b)", text)


def test_parts_of_a_sum_are_waited_for_once(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, PARTS, SIGNATURE, 4)
    loop = text[text.index("scf.for") :]
    assert _order(loop)[:6] == ["wgmma", "wgmma", "wgmma", "wgmma_wait", "wgmma", "wgmma_wait"]
    assert "gpu.mbarrier_arrive" not in loop[: loop.index("gpu.wgmma_wait")]


def test_all_parts_of_the_next_sum_are_in_flight(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, PARTS, SIGNATURE, 4, mma_stages=2)
    assert "a dot is in flight while the result of the one before is used" in remarks
    assert text.count("gpu.wgmma(") == 2 * 4


def test_a_sum_that_threads_scale_is_waited_for_between_its_parts(tmp_path: Path) -> None:
    scaled = PARTS.replace("key[i].T, scores)", "key[i].T, scores) * 0.5")
    text, _ = lowered(tmp_path, scaled, SIGNATURE, 4)
    assert _order(text)[:6] == ["wgmma", "wgmma_wait"] * 3


def test_a_part_whose_operand_threads_compute_waits(tmp_path: Path) -> None:
    """Its registers may be operands of the dot before it."""
    computed = PARTS.replace("tl.dot(query[i], key", "tl.dot(query[i] + query[i], key")
    text, _ = lowered(tmp_path, computed, SIGNATURE, 4)
    assert _order(text)[:6] == ["wgmma", "wgmma_wait"] * 3


@pytest.mark.emulated
@pytest.mark.parametrize("mma_stages", [1, 2])
def test_the_sum_is_right_at_every_length(tmp_path: Path, mma_stages: int) -> None:
    kernel = compiled(tmp_path, PARTS, SIGNATURE, num_stages=2, mma_stages=mma_stages)
    for seed, n in enumerate((0, 1, 64, 65, 320)):
        rows = max(n, 1)
        q, k = (
            tensor((rows, 192), "fp16", seed=3 * seed + index) / np.float16(256)
            for index in range(2)
        )
        v = tensor((rows, 64), "fp16", seed=3 * seed + 2) / np.float16(64)
        out = like(tensor((rows, 64), "fp32"))
        launch(kernel, (-(-rows // 64),), {"q": q, "k": k, "v": v, "out": out, "n": n}, seed=seed)
        wide = [matrix[:n].astype(np.float64) for matrix in (k, v)]
        expected = q.astype(np.float64) @ wide[0].T * 0.5 @ wide[1]
        assert np.abs(out - expected).max() <= 2.0**-10 * n * max(np.abs(expected).max(), 1.0)
