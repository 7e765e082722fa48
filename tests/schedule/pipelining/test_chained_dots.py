"""Attention's two dots: scores and weights of the next iteration run beside the second dot of this one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, lowered, tensor

SOURCE = """def k(q, k, v, out, scale, n, CAUSAL: tl.constexpr = {causal}):
    row = tl.program_id(0) * 64
    rows = row + tl.arange(0, 64)
    query = q.load([row, 0])
    top = tl.full((64,), -1.0e30, tl.float32)
    total = tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        scores = tl.dot(query, k.load([first, 0]).T) * scale
        columns = first + tl.arange(0, 64)
        seen = (columns <= rows[:, None]) & (columns < n)[None, :] if CAUSAL else columns < n
        scores = tl.where(seen if CAUSAL else seen[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(top - new)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None]
        acc = tl.dot(weights.to(tl.float16), v.load([first, 0]), acc)
        top = new
    out.store([row, 0], acc / total[:, None])
"""
SIGNATURE = {
    **dict.fromkeys("qkv", "tensordesc<fp16[64,64]>"),
    "out": "tensordesc<fp32[64,64]>",
    "scale": "fp32",
    "n": "i32",
}
ARGUMENTS = ("q", "k", "v", "bias", "out", "scale", "n")
AHEAD = "a dot is in flight while the result of the one before is used"


def _expected(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool
) -> np.ndarray:
    scores = q.astype(np.float64) @ k.astype(np.float64).T * scale
    if causal:
        scores[np.tril(np.ones_like(scores)) == 0] = -np.inf
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    return weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("num_warps", [4, 8])
def test_attention_is_right_at_every_length(
    tmp_path: Path, num_stages: int, num_warps: int, causal: bool
) -> None:
    source = SOURCE.format(causal=causal)
    signature = SIGNATURE
    if num_warps == 8:
        source = source.replace("64,)", "128,)").replace(
            "acc = tl.zeros((64, ", "acc = tl.zeros((128, "
        )
        source = source.replace("tl.program_id(0) * 64", "tl.program_id(0) * 128")
        source = source.replace("rows = row + tl.arange(0, 64)", "rows = row + tl.arange(0, 128)")
        signature = signature | {
            "q": "tensordesc<fp16[128,64]>",
            "out": "tensordesc<fp32[128,64]>",
        }
    options = {"num_warps": num_warps, "num_stages": num_stages, "mma_stages": 2}
    kernel = compiled(tmp_path, source, signature, **options)
    # At most as many iterations as a ring has stages, and enough to use each twice.
    for seed, n in enumerate((1, 63, 64, 65, 128, 200, 64 * (2 * num_stages + 1))):
        q, k, v = (tensor((n, 64), "fp16", seed=3 * seed + at) / np.float16(64) for at in range(3))
        out = like(tensor((n, 64), "fp32"))
        rows = 64 if num_warps == 4 else 128
        scale = (-0.25, 0.5)[seed % 2]
        values = {"q": q, "k": k, "v": v, "out": out, "scale": scale, "n": n}
        launch(kernel, (-(-n // rows),), values, seed=seed)
        expected = _expected(q, k, v, scale, causal)
        # Weights are rounded to fp16, and the rest is fp32.
        bound = 2.0**-10 * np.abs(v.astype(np.float64)).max()
        assert np.abs(out - expected).max() <= bound


def test_the_order_of_an_iteration(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, SOURCE.format(causal=False), SIGNATURE, 4, mma_stages=2)
    assert AHEAD in remarks
    body = text[text.index("scf.for", text.index("gpu.wgmma_wait")) :]
    line = next(line for line in text.splitlines() if body.split("\n")[0] in line)
    indentation = line[: len(line) - len(line.lstrip())]
    body = body[: body.index(f"\n{indentation}}} :")]
    words = r"gpu\.wgmma_wait|gpu\.wgmma\b|gpu\.mbarrier_wait|gpu\.mbarrier_arrive|gpu\.reduce|arith\.cast\(%weights"
    assert [each.removeprefix("gpu.") for each in re.findall(words, body)][:6] == [
        *("mbarrier_wait", "wgmma"),  # the next scores
        "wgmma",  # this iteration's weights by its values, waited for an iteration ago
        *("wgmma_wait", "mbarrier_arrive", "reduce"),
    ]
    pending = re.findall(r"gpu\.wgmma_wait\(.*?\{(.*?)\}", text)
    assert ["pending = 1" in each for each in pending] == [False, True, False, False]


def test_a_factor_of_each_row_is_carried_and_not_a_tile(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE.format(causal=False), SIGNATURE, 4, mma_stages=2)
    loop = next(line for line in text.splitlines() if "scf.for" in line and "acc" in line)
    arguments = loop[loop.rindex("(") :]
    assert arguments.count("tile<64x64xfp32") == 1  # the accumulator
    assert arguments.count("tile<64x64xfp16") == 1  # the operand of the next second dot


def test_weights_that_need_the_accumulator_stay_in_their_iteration(tmp_path: Path) -> None:
    """No chain: the next scores are in flight, and what threads compute is not moved."""
    source = SOURCE.format(causal=False).replace(
        "weights.to(tl.float16)", "(weights + tl.sum(acc, 1)[:, None]).to(tl.float16)"
    )
    text, remarks = lowered(tmp_path, source, SIGNATURE, 4, mma_stages=2)
    assert AHEAD in remarks
    assert text.count("gpu.wgmma(") == 4 + 5  # unrolled by two


# A bias of each block of keys, which lies in memory.
BIASED = (
    SOURCE.format(causal=False)
    .replace("def k(q, k, v, out,", "def k(q, k, v, bias, out,")
    .replace("new = tl.maximum", "scores += tl.load(bias + first // 64)\n        new = tl.maximum")
)
# Each iteration adds what the one before it has stored.
STORED = BIASED.replace(
    "        top = new",
    "        tl.store(bias + first // 64 + 1, first * 0.03125)\n        top = new",
)


@pytest.mark.parametrize(("source", "num_dots"), [(BIASED, 2 + 2), (STORED, 4 + 5)])
def test_loads_that_scores_need_come_ahead_where_nothing_is_stored(
    tmp_path: Path, source: str, num_dots: int
) -> None:
    signature = {key: {**SIGNATURE, "bias": "*fp32:16"}[key] for key in ARGUMENTS}
    options = {"num_stages": 2, "mma_stages": 2}
    text, _ = lowered(tmp_path, source, signature, 4, **options)
    assert text.count("gpu.wgmma(") == num_dots
    kernel = compiled(tmp_path, source, signature, **options)
    n = 320
    q, k, v = (tensor((n, 64), "fp16", seed=at) / np.float16(64) for at in range(3))
    bias = np.random.default_rng(5).standard_normal(n // 64 + 1).astype(np.float32)
    added = bias.copy()
    if source is STORED:
        added[1:] = np.arange(0, n, 64) * 0.03125
    out = like(tensor((64, 64), "fp32"))
    values = {"q": q, "k": k, "v": v, "bias": bias, "out": out, "scale": 0.25, "n": n}
    launch(kernel, (1,), values)
    np.testing.assert_array_equal(bias, added)
    scores = q[:64].astype(np.float64) @ k.astype(np.float64).T * 0.25
    scores += np.repeat(added[:-1], 64)
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    expected = weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)
    assert np.abs(out - expected).max() <= 2.0**-10 * np.abs(v.astype(np.float64)).max()
