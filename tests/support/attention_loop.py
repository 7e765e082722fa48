"""The loop of attention without its exponentials: exact in integers, with two dots an iteration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aotc.compiler import PtxKernel
from tests.support.descriptors import launch, like, tensor

ATTENTION = """def k(q, kk, v, out, n, D: tl.constexpr):
    for tile in range(tl.program_id(0), tl.cdiv(n, 64), tl.num_programs(0)):
        query = q.load([tile * 64, 0])
        total = tl.zeros((64, D), tl.float32)
        largest = tl.full((64,), -1000.0, tl.float32)
        for j in range(0, n, 32):
            scores = tl.dot(query, kk.load([j, 0]).T)
            largest = tl.maximum(largest, tl.max(scores, 1))
            total = tl.dot(scores.to(v.dtype), v.load([j, 0]), total)
        out.store([tile * 64, 0], total + largest[:, None])
"""
SIGNATURE = {
    "q": "tensordesc<fp16[64,32]>",
    **dict.fromkeys(("kk", "v"), "tensordesc<fp16[32,32]>"),
    "out": "tensordesc<fp32[64,32]>",
    "n": "i32",
}


def check_attention(kernel: PtxKernel, grid: tuple[int, ...], lengths: Iterable[int]) -> None:
    """Check `ATTENTION`, compiled with D = 32, in the emulator for sequences of these lengths."""
    rng = np.random.default_rng(0)
    for seed, rows in enumerate(lengths):
        q, k, v = (rng.integers(-3, 4, (rows, 32)).astype(np.float16) for _ in range(3))
        out = like(tensor((rows, 32), "fp32"))
        launch(kernel, grid, {"q": q, "kk": k, "v": v, "out": out, "n": rows}, seed=seed)
        exact_q, exact_k, exact_v = (array.astype(np.float64) for array in (q, k, v))
        scores = exact_q @ exact_k.T
        largest = scores.max(1, keepdims=True)
        largest = np.maximum(largest, 0) if rows % 32 else largest
        np.testing.assert_array_equal(out, scores @ exact_v + largest)
