"""Weights replicated in all warpgroups of a dot: dividing columns needs no exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

# Keys are values, too, as in multi-head latent attention; each warpgroup has half of the features.
SOURCE = """def k(q, c, out, scale, n):
    row = tl.program_id(0) * 64
    query = q.load([row, 0])
    top = tl.full((64,), -1.0e30, tl.float32)
    total = tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, 128), tl.float32)
    for first in range(0, n, 64):
        tile = c.load([first, 0])
        scores = tl.dot(query, tile.T) * scale
        scores = tl.where((first + tl.arange(0, 64) < n)[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(top - new)
        total = total * factor + tl.sum(weights, 1)
        acc = tl.dot(weights.to(tl.float16), tile, acc * factor[:, None])
        top = new
    out.store([row, 0], acc / total[:, None])
"""
SIGNATURE = {
    **dict.fromkeys("qc", "tensordesc<fp16[64,128]>"),
    "out": "tensordesc<fp32[64,128]>",
    "scale": "fp32",
    "n": "i32",
}
EXCHANGED = "is exchanged between threads"


def test_they_are_exchanged_unless_dots_are_to_be_in_flight(tmp_path: Path) -> None:
    _, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 8)
    assert EXCHANGED in remarks
    text, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 8, mma_stages=2)
    assert EXCHANGED not in remarks
    assert "gpu.barrier" not in text[text.index("scf.for") : text.rindex("gpu.wgmma(")]


@pytest.mark.parametrize(
    ("num_stages", "is_ahead"), [(2, False), (3, True)], ids=["both stages read", "one is left"]
)
def test_a_stage_is_left_to_load_ahead(tmp_path: Path, num_stages: int, is_ahead: bool) -> None:
    options = {"mma_stages": 2, "num_stages": num_stages}
    _, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 8, **options)
    assert ("a dot is in flight while the result" in remarks) == is_ahead
    assert ("would read both stages of what they share" in remarks) != is_ahead


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [2, 3])
def test_the_result_is_right_at_every_length(tmp_path: Path, num_stages: int) -> None:
    options: dict[str, Any] = {"mma_stages": 2, "num_stages": num_stages, "num_warps": 8}
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, **options)
    for seed, n in enumerate((1, 63, 64, 65, 400)):
        q, c = (
            tensor((n, 128), "fp16", seed=2 * seed + index) / np.float16(64) for index in range(2)
        )
        out = like(tensor((n, 128), "fp32"))
        values = {"q": q, "c": c, "out": out, "scale": 0.25, "n": n}
        launch(kernel, (-(-n // 64),), values, seed=seed)
        wide = c.astype(np.float64)
        scores = q.astype(np.float64) @ wide.T * 0.25
        weights = np.exp2(scores - scores.max(1, keepdims=True))
        expected = weights @ wide / weights.sum(1, keepdims=True)
        assert np.abs(out - expected).max() <= 2.0**-10 * np.abs(wide).max()


# Two warpgroups divide the columns of 64 rows, and both convert their own weights.
CONVERTED = """def k(a, s_ptr, b, out, n):
    acc = tl.zeros((64, 64), tl.float32)
    scales = tl.load(s_ptr + tl.arange(0, 64)).to(tl.bfloat16)
    for first in range(0, n, 64):
        weights = a.load([0, first]).to(tl.bfloat16) * scales[:, None]
        acc = tl.dot(weights, b.load([first, 0]), acc)
    out.store([0, 0], acc)
"""
CONVERTED_TYPES = {
    "a": "tensordesc<i8[64,64]>",
    "s_ptr": "*fp32:16",
    "b": "tensordesc<bf16[64,64]>",
    "out": "tensordesc<fp32[64,64]>",
    "n": "i32",
}
SHARED_A = "operand A of wgmma is computed and goes through shared memory"


@pytest.mark.parametrize(("num_warps", "is_held"), [(4, True), (8, True), (16, False)])
def test_two_warpgroups_convert_the_same_weights(
    tmp_path: Path, num_warps: int, *, is_held: bool
) -> None:
    text, remarks = lowered(tmp_path, CONVERTED, CONVERTED_TYPES, num_warps)
    assert (SHARED_A in remarks) != is_held
    assert (f"{num_warps // 4} warpgroups divide" in remarks) != is_held
    assert ("stay in flight across iterations" in remarks) == is_held
    loop = text[text.index("scf.for") :]
    assert ("gpu.shared_store" in loop[: loop.index("gpu.wgmma(")]) != is_held


@pytest.mark.emulated
@pytest.mark.parametrize("num_warps", [8, 16])
def test_products_of_shared_weights_are_right(tmp_path: Path, num_warps: int) -> None:
    kernel = compiled(tmp_path, CONVERTED, CONVERTED_TYPES, num_warps=num_warps)
    rng = np.random.default_rng(num_warps)
    scales = np.exp2(rng.integers(-2, 3, 64)).astype(np.float32)
    for seed, n in enumerate((1, 64, 65, 200)):
        a, b = tensor((64, n), "i8", seed=seed), tensor((n, 64), "bf16", seed=seed + 9)
        out = like(tensor((64, 64), "fp32"))
        launch(kernel, (1,), {"a": a, "s_ptr": scales, "b": b, "out": out, "n": n}, seed=seed)
        expected = (a.astype(np.float64) * scales[:, None]) @ b.astype(np.float64)
        np.testing.assert_array_equal(out, expected.astype(np.float32))
