"""Ping-pong of two warpgroups: positions of wait and arrive, and loops without it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

# Whole references stay, so the next scores are issued right after the second dot.
SOURCE = """def k(q, k, v, out, n):
    row = tl.program_id(0) * 128
    query = q.load([row, 0])
    top = tl.full((128,), -3.0e38, tl.float32)
    total = tl.zeros((128,), tl.float32)
    acc = tl.zeros((128, 64), tl.float32)
    for first in range(0, n - row, 64):
        scores = tl.dot(query, k.load([first, 0]).T) * 0.25
        columns = first + tl.arange(0, 64)
        scores = tl.where((columns < n - row)[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.ceil(tl.max(scores, 1)))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(top - new)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None]
        acc = tl.dot(weights.to(tl.float16), v.load([first, 0]), acc)
        top = new
    out.store([row, 0], acc * (1.0 / total)[:, None])
"""
SIGNATURE = {
    "q": "tensordesc<fp16[128,64]>",
    "k": "tensordesc<fp16[64,64]>",
    "v": "tensordesc<fp16[64,64]>",
    "out": "tensordesc<fp32[128,64]>",
    "n": "i32",
}
PRODUCT = """def k(q, k, v, out, n):
    row = tl.program_id(0) * 128
    acc = tl.zeros((128, 64), tl.float32)
    for first in range(0, n, 64):
        acc = tl.dot(q.load([row, first]), k.load([first, 0]), acc)
    out.store([row, 0], acc)
"""
OPS = re.compile(r"gpu\.(turn(?=.*?kind = \"(\w+)\")|wgmma_wait|wgmma)\b")


def _ops(text: str) -> list[str]:
    """Return dots, waits and turns in the order of the text."""
    return [kind or name for name, kind in OPS.findall(text)]


def test_a_turn_is_for_the_dots_of_an_iteration(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 8, num_stages=2, mma_stages=2)
    ops = _ops(text)
    # The drain: work begun in the last iteration stands with the loop's final wait.
    drain = ["pass", "wgmma_wait"]
    assert ops == [
        *("begin", "take", *drain),
        *("wgmma", "pass", "wgmma_wait", "wgmma_wait", "take", "wgmma"),
    ]


@pytest.mark.parametrize(
    ("source", "num_warps", "mma_stages"),
    [(SOURCE, 8, 1), (SOURCE.replace("128", "64"), 4, 2), (PRODUCT, 8, 2)],
    ids=["dots are waited for one by one", "one warpgroup", "nothing is computed"],
)
def test_other_loops_have_no_turns(
    tmp_path: Path, source: str, num_warps: int, mma_stages: int
) -> None:
    rows = 16 * num_warps
    signature = SIGNATURE | dict.fromkeys("q", f"tensordesc<fp16[{rows},64]>")
    signature["out"] = f"tensordesc<fp32[{rows},64]>"
    text, _ = lowered(tmp_path, source, signature, num_warps, num_stages=2, mma_stages=mma_stages)
    assert "gpu.turn" not in text


@pytest.mark.emulated
@pytest.mark.parametrize("num_ctas", [1, 2, 3])
@pytest.mark.parametrize("n", [128, 129, 5 * 64, 384])
def test_results_of_programs_of_any_length(tmp_path: Path, n: int, num_ctas: int) -> None:
    """Turns continue from one program of a CTA to the next, for any iteration count."""
    options = {"num_stages": 2, "mma_stages": 2, "map_pointers": True, "persistent": True}
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, num_warps=8, **options)
    rng = np.random.default_rng(n)
    q, k, v = (rng.normal(size=(rows, 64)).astype(np.float16) for rows in (384, n, n))
    out = like(tensor((384, 64), "fp32"))
    programs = min(3, (n - 1) // 128 + 1)
    values = {"q": q, "k": k, "v": v, "out": out, "n": n}
    launch(kernel, (programs,), values, seed=n, num_ctas=num_ctas)
    for program in range(programs):
        mine, seen = slice(128 * program, 128 * program + 128), n - 128 * program
        scores = q[mine].astype(float) @ k[:seen].astype(float).T * 0.25
        weights = np.exp2(scores - scores.max(1, keepdims=True))
        expected = weights @ v[:seen].astype(float) / weights.sum(1, keepdims=True)
        assert np.abs(out[mine] - expected).max() <= 2e-3 * np.abs(expected).max()
