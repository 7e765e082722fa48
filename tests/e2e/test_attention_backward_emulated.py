"""The backward pass of attention through descriptors, in the emulator against float64 gradients."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_ptx
from tests.support.descriptors import launch
from tests.support.requests import request_of

KERNELS = Path(__file__).parents[2] / "kernels"
SOURCE = KERNELS / "attention_backward.py"
PAIR_SOURCE = KERNELS / "attention_backward_pair.py"
STORED_SOURCE = KERNELS / "attention_backward_stored.py"
HEAD_DIM, BLOCK_M, BLOCK_N = 64, 64, 128
KV_HEADS, HEADS_PER_KV_HEAD = 1, 2
HEADS = KV_HEADS * HEADS_PER_KV_HEAD
LOG2_E = 1.4426950408889634
TOGETHER = {"TOGETHER": 3}  # more heads than there are


@lru_cache
def _compiled(causal: bool, num_stages: int, mma_stages: int, narrow: bool) -> PtxKernel:
    constants = {"NARROW": narrow} | TOGETHER
    name, stages = "attention_backward_kernel", (num_stages, mma_stages)
    outputs = ("dq", "dscores_ptr", "dk", "dv")
    return _compiled_as(name, outputs, constants, causal, stages, BLOCK_M)


@lru_cache
def _compiled_pair(causal: bool, mma_stages: int, block_q: int = 0) -> PtxKernel:
    """Return the kernel for dK and dV, storing gradients of scores for blocks of queries, if any."""
    outputs = ("dscores_ptr", "dk", "dv")
    constants = {"BLOCK_Q": block_q} if block_q else {}
    name, stages = "attention_backward_pair_kernel", (2, mma_stages)
    return _compiled_as(name, outputs, constants, causal, stages, BLOCK_M, PAIR_SOURCE, num_ctas=2)


@lru_cache
def _compiled_storing(causal: bool, mma_stages: int, block_q: int) -> PtxKernel:
    """Return the single-CTA kernel for dK and dV, storing gradients of scores for blocks of queries."""
    constants = {"NARROW": mma_stages > 1, "BLOCK_Q": block_q} | TOGETHER
    name, stages = "attention_backward_kernel", (3, mma_stages)
    outputs = ("dq", "dscores_ptr", "dk", "dv")
    return _compiled_as(name, outputs, constants, causal, stages, BLOCK_M)


@lru_cache
def _compiled_stored(causal: bool, block_m: int) -> PtxKernel:
    """Return the kernel for dQ from stored gradients of scores."""
    kinds = {
        "dscores": f"tensordesc<bf16[1,64,{block_m}]>",
        "k": f"tensordesc<bf16[1,64,{HEAD_DIM}]>",
        "dq": f"tensordesc<bf16[1,{block_m},{HEAD_DIM}]>",
        "scale": "fp32",
        **dict.fromkeys(("heads_per_kv_head", "n_queries", "n_keys"), "i32"),
    }
    constants = {"HEAD_DIM": HEAD_DIM, "BLOCK_M": block_m, "BLOCK_N": 64, "CAUSAL": causal}
    constants |= TOGETHER
    parts = tuple(kinds.items()), tuple(constants.items())
    name = "attention_backward_stored_kernel"
    options = {"num_warps": 8, "num_stages": 3, "num_ctas": block_m // 128}
    return compile_ptx(request_of(*(str(STORED_SOURCE), name, *parts, "sm_90a"), **options))


@lru_cache
def _compiled_by_gradient(causal: bool, mma_stages: int) -> dict[str, PtxKernel]:
    """Return a kernel for dQ and one for both other gradients, and one for each of these."""
    name, outputs = "attention_backward_keys_kernel", ("dk", "dv")
    kernels = {
        "dq": _compiled_as(
            *("attention_backward_queries_kernel", ("dq",), TOGETHER, causal, (2, mma_stages), 128)
        )
    }
    for kind, of_keys, of_values in (("dk", 1, 0), ("dv", 0, 1), ("both", 1, 1)):
        constants = {"OF_KEYS": bool(of_keys), "OF_VALUES": bool(of_values)} | TOGETHER
        kernels[kind] = _compiled_as(name, outputs, constants, causal, (2, mma_stages), BLOCK_M)
    return kernels


def _compiled_as(
    name: str,
    outputs: tuple[str, ...],
    build_constants: dict[str, int],
    causal: bool,
    stages: tuple[int, int],
    block_m: int,
    source: Path = SOURCE,
    num_ctas: int = 1,
) -> PtxKernel:
    rows, columns = (f"bf16[1,{block},{HEAD_DIM}]" for block in (block_m, BLOCK_N))
    sums = f"tensordesc<fp32[1,{block_m},{HEAD_DIM}]>"
    gradients = {
        "dq": sums if "dscores_ptr" in outputs else f"tensordesc<{rows}>",
        "dk": f"tensordesc<{columns}>",
        "dv": f"tensordesc<{columns}>",
        "dscores_ptr": "none",
    }
    if "BLOCK_Q" in build_constants:
        gradients |= {"dq": "none", "dscores_ptr": "*bf16:16"}
    signature = {
        "q": f"tensordesc<{rows}>",
        "k": f"tensordesc<{columns}>",
        "v": f"tensordesc<{columns}>",
        "dout": f"tensordesc<{rows}>",
        "lse_log2": f"tensordesc<fp32[1,{block_m}]>",
        "delta": f"tensordesc<fp32[1,{block_m}]>",
        **{output: gradients[output] for output in outputs},
        "scale": "fp32",
        "scale_log2": "fp32",
        "heads_per_kv_head": "i32",
        "n_queries": "i32",
        "n_keys": "i32",
    }
    constants = {
        "HEAD_DIM": HEAD_DIM,
        "BLOCK_M": block_m,
        "BLOCK_N": BLOCK_N,
        "CAUSAL": causal,
        **build_constants,
    }
    parts = tuple(signature.items()), tuple(constants.items())
    num_stages, mma_stages = stages
    options = {"num_warps": 8, "num_stages": num_stages, "mma_stages": mma_stages}
    options["num_ctas"] = num_ctas
    return compile_ptx(request_of(*(str(source), name, *parts, "sm_90a"), **options))


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def _padded(rows: np.ndarray) -> np.ndarray:
    """Return numbers of rows with room for rows of 16 bytes."""
    wide = np.zeros((rows.shape[0], -(-rows.shape[1] // 4) * 4), np.float32)
    wide[:, : rows.shape[1]] = rows
    return wide[:, : rows.shape[1]]


@pytest.mark.parametrize(
    ("num_stages", "mma_stages", "narrow"),
    [(1, 1, False), (2, 1, True), (2, 2, False), (2, 2, True)],
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("n_queries", "n_keys"), [(1, 1), (63, 129), (64, 128), (200, 131), (331, 331)]
)
def test_gradients(
    n_queries: int, n_keys: int, causal: bool, num_stages: int, mma_stages: int, narrow: bool
) -> None:
    if causal and n_queries > n_keys:
        pytest.skip("a query that sees no key has no softmax")
    values, expected = _operands(n_queries, n_keys, causal=causal)
    kernel = _compiled(causal, num_stages, mma_stages, narrow)
    launch(kernel, (KV_HEADS * -(-n_keys // BLOCK_N),), values, seed=n_keys)
    values["dq"] = values["dq"] * values["scale"]
    _check(values, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "mma_stages"), [(1, 1, 2), (63, 129, 1), (131, 200, 2)]
)
def test_gradients_in_a_pass_each(
    n_queries: int, n_keys: int, causal: bool, mma_stages: int
) -> None:
    kernels = _compiled_by_gradient(causal, mma_stages)
    of_queries = (HEADS * -(-n_queries // 128),)
    of_keys = (KV_HEADS * -(-n_keys // BLOCK_N),)
    for kinds in (("dq", "dk", "dv"), ("dq", "both")):
        values, expected = _operands(n_queries, n_keys, causal=causal)
        values["dq"] = np.full((HEADS, n_queries, HEAD_DIM), np.nan, ml_dtypes.bfloat16)
        for kind in kinds:
            kernel = kernels[kind]
            args = {name: array for name, array in values.items() if name in _names(kernel)}
            launch(kernel, of_queries if kind == "dq" else of_keys, args, seed=n_keys)
        _check(values, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("n_queries", "n_keys", "mma_stages"), [(1, 1, 2), (63, 129, 1), (200, 201, 2)]
)
def test_gradients_by_pairs_of_ctas(
    n_queries: int, n_keys: int, causal: bool, mma_stages: int
) -> None:
    kernel = _compiled_pair(causal, mma_stages)
    values, expected = _operands(n_queries, n_keys, causal=causal)
    del values["dq"], expected["dq"]
    launch(kernel, (2 * KV_HEADS * -(-n_keys // BLOCK_N),), values, seed=n_keys)
    _check(values, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("num_ctas", "block_m"), [(1, 128), (1, 256), (2, 128), (2, 256)])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (63, 129), (300, 331)])
def test_dq_by_gradients_of_scores_that_are_stored(
    n_queries: int, n_keys: int, num_ctas: int, block_m: int, causal: bool
) -> None:
    """Unwritten scores are NaN: none may reach dQ."""
    values, expected = _operands(n_queries, n_keys, causal=causal)
    values["dq"] = np.full((HEADS, n_queries, HEAD_DIM), np.nan, ml_dtypes.bfloat16)
    n_stored = HEADS_PER_KV_HEAD * -(-n_queries // BLOCK_M) * BLOCK_M
    dscores = np.full((KV_HEADS, n_keys, n_stored), np.nan, ml_dtypes.bfloat16)
    values |= {"dscores": dscores, "dscores_ptr": dscores}
    mma_stages = 1 + block_m // 256
    storing = (_compiled_storing if num_ctas == 1 else _compiled_pair)(causal, mma_stages, block_m)
    last = _compiled_stored(causal, block_m)
    for kernel, blocks in (
        (storing, num_ctas * KV_HEADS * -(-n_keys // BLOCK_N)),
        (last, block_m // 128 * HEADS * -(-n_queries // block_m)),
    ):
        args = {name: array for name, array in values.items() if name in _names(kernel)}
        launch(kernel, (blocks,), args, seed=n_keys)
    _check(values, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (300, 331)])
def test_a_cluster_shares_keys_and_values(n_queries: int, n_keys: int, causal: bool) -> None:
    name, outputs = "attention_backward_queries_kernel", ("dq",)
    kernel = _compiled_as(name, outputs, TOGETHER, causal, (2, 1), 256, num_ctas=2)
    assert ".multicast::cluster" in kernel.ptx
    values, expected = _operands(n_queries, n_keys, causal=causal)
    values["dq"] = np.full((HEADS, n_queries, HEAD_DIM), np.nan, ml_dtypes.bfloat16)
    args = {name: array for name, array in values.items() if name in _names(kernel)}
    launch(kernel, (2 * HEADS * -(-n_queries // 256),), args, seed=n_keys)
    _check(values, {"dq": expected["dq"]})


def _names(kernel: PtxKernel) -> set[str]:
    return {slot.name for slot in kernel.params}


def _operands(
    n_queries: int, n_keys: int, *, causal: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the arguments of a launch, and the gradients in float64."""
    rng = np.random.default_rng(n_queries)
    q, dout = (_random(rng, HEADS, n_queries, HEAD_DIM) for _ in range(2))
    k, v = (_random(rng, KV_HEADS, n_keys, HEAD_DIM) for _ in range(2))
    scale = HEAD_DIM**-0.5
    wide_k, wide_v = (array.astype(np.float64).repeat(HEADS_PER_KV_HEAD, 0) for array in (k, v))
    wide_q, wide_dout = q.astype(np.float64), dout.astype(np.float64)
    scores = wide_q @ wide_k.transpose(0, 2, 1) * scale
    if causal:
        seen = np.arange(n_keys)[None, :] <= np.arange(n_queries)[:, None] + n_keys - n_queries
        scores = np.where(seen, scores, -np.inf)
    lse = np.log(np.exp(scores).sum(-1))
    weights = np.exp(scores - lse[..., None])
    dweights = wide_dout @ wide_v.transpose(0, 2, 1)
    delta = (weights * dweights).sum(-1)
    dscores = weights * (dweights - delta[..., None]) * scale
    expected_q = dscores @ wide_k
    expected_k = (dscores.transpose(0, 2, 1) @ wide_q).reshape(KV_HEADS, -1, n_keys, HEAD_DIM)
    expected_v = (weights.transpose(0, 2, 1) @ wide_dout).reshape(KV_HEADS, -1, n_keys, HEAD_DIM)
    dq = np.zeros((HEADS, n_queries, HEAD_DIM), np.float32)
    dk, dv = (np.full((KV_HEADS, n_keys, HEAD_DIM), np.nan, ml_dtypes.bfloat16) for _ in range(2))
    values = {
        "q": q,
        "k": k,
        "v": v,
        "dout": dout,
        "dq": dq,
        "dk": dk,
        "dv": dv,
        "lse_log2": _padded(lse * LOG2_E),
        "delta": _padded(delta),
        "scale": scale,
        "scale_log2": scale * LOG2_E,
        "heads_per_kv_head": HEADS_PER_KV_HEAD,
        "n_queries": n_queries,
        "n_keys": n_keys,
    }
    return values, {"dq": expected_q, "dk": expected_k.sum(1), "dv": expected_v.sum(1)}


def _check(values: dict[str, Any], exact: dict[str, np.ndarray]) -> None:
    for name, expected in exact.items():
        actual = values[name].astype(np.float64)
        # Weights and gradients of scores are rounded to bf16; a sum averages most of the error away.
        bound = 2.0**-7 * np.abs(expected).max() + 1e-5  # of a single key, differences alone
        np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)
