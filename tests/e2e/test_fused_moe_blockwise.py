"""Mixtures of experts in fp8 with scales of blocks, in the emulator, against NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import CompileRequest, compile_ptx
from tests.support.descriptors import launch
from tests.support.requests import request_of

SOURCE = str(Path(__file__).parents[2] / "kernels" / "fused_moe_blockwise.py")
BLOCK_M = BLOCK_N = 64
TAIL = EPILOGUE_N = 32
MOST = 2 * BLOCK_M + TAIL
ROWS_PER_TOKEN = 2
NUM_PROGRAMS = 3
# Rows of each expert: none, few, two whole parts, and parts with a tail of columns.
COUNTS = (0, 3, 2 * BLOCK_M, 2 * BLOCK_M + 1, MOST)
FP8 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_rows_go_through_the_weights_of_their_experts(first: bool, cut: bool) -> None:
    # N of the first layer is whole blocks of 128, as gate and up have scales of their own.
    columns, depth, parts = (128, 144, 2) if first else (80, 256, 1)
    rng = np.random.default_rng(depth)
    num_rows, num_scales = sum(COUNTS), -(-depth // 128)
    tokens = rng.normal(size=(-(-num_rows // ROWS_PER_TOKEN), depth)).astype(FP8)
    of_tokens = rng.uniform(0.5, 2, (len(tokens), num_scales)).astype(np.float32)
    b = (rng.normal(size=(len(COUNTS), parts, columns, depth)) / 8).astype(FP8)
    of_b = rng.uniform(0.5, 2, (len(COUNTS), parts, num_scales)).astype(np.float32)
    weight = rng.normal(size=num_rows).astype(np.float32)
    experts = rng.permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    # There is room for MOST rows of each, and for a block more than there are.
    rows = np.full((len(COUNTS) + 1, MOST), num_rows, np.int32)
    for expert, count in enumerate(COUNTS):
        rows[expert, :count] = np.flatnonzero(experts == expert)
    real = np.minimum(rows.ravel(), num_rows - 1)
    in_order = tokens[real // ROWS_PER_TOKEN]
    out = np.full((rows.size, columns), np.nan, ml_dtypes.bfloat16)
    halves = b.reshape(len(COUNTS), 2, columns // 8, 8, depth).swapaxes(1, 2) if first else b[:, 0]
    values = {
        "a": in_order,
        "more": in_order,
        "b": _cut(halves) if cut else halves,
        "out": out,
        "out_beyond": out,
        "scale_a": np.ascontiguousarray(of_tokens[real // ROWS_PER_TOKEN].T),
        "scale_b_ptr": of_b,
        "start_ptr": (np.arange(len(rows)) * MOST).astype(np.int32),
        "count_ptr": np.array([*COUNTS, MOST], np.int32),
        "expert_ptr": np.array([*range(len(COUNTS)), 0], np.int32),
        "num_blocks_ptr": np.array([len(COUNTS)], np.int32),
        "N": columns,
        "K": depth,
        "stride_sbe": parts * num_scales,
        "stride_sbn": num_scales,
        "n_blocks": len(rows),
        "n_programs": NUM_PROGRAMS,
    }
    if not first:
        values["factors"] = weight[real]
    width = BLOCK_N // 2 if first else BLOCK_N
    launch(compile_ptx(_request(first, width, cut)), (NUM_PROGRAMS,), values, seed=depth)
    assert np.isnan(out[len(COUNTS) * MOST :].astype(np.float32)).all()
    wide = tokens.astype(np.float64) * of_tokens.repeat(128, 1)[:, :depth]
    wide_b = b.astype(np.float64) * of_b.repeat(128, 2)[:, :, None, :depth]
    order = np.argsort(rows.ravel(), kind="stable")
    for row, expert in enumerate(experts):
        gate, *ups = wide_b[expert] @ wide[row // ROWS_PER_TOKEN]
        expected = gate / (1 + np.exp(-gate)) * ups[0] if first else gate * weight[row]
        bound = 2.0**-7 * np.abs(expected) + 2.0**-8 * np.abs(expected).max()
        assert (np.abs(out[order[row]].astype(np.float64) - expected) <= bound).all()


def _cut(b: np.ndarray) -> np.ndarray:
    """Return weights cut along K, (experts, blocks, N, 128), the last block filled up."""
    whole = b.reshape(len(b), -1, b.shape[-1])
    filled = np.pad(whole, ((0, 0), (0, 0), (0, -b.shape[-1] % 128)), constant_values=1)
    return np.ascontiguousarray(filled.reshape(*whole.shape[:2], -1, 128).swapaxes(1, 2))


def _signature(first: bool, width: int, cut: bool) -> dict[str, str]:
    rows = f"tensordesc<fp8e4nv[{BLOCK_M},128]>"
    block = f"1,1,{BLOCK_N},128" if cut else "1,4,2,8,128" if first else f"1,{BLOCK_N},128"
    signature = {
        "a": rows,
        "more": rows,
        "b": f"tensordesc<fp8e4nv[{block}]>",
        "out": f"tensordesc<bf16[{BLOCK_M},{EPILOGUE_N}]>",
        "out_beyond": f"tensordesc<bf16[{TAIL},{width}]>",
        "scale_a": f"tensordesc<fp32[1,{BLOCK_M}]>",
        "scale_b_ptr": "*fp32:4",
        **dict.fromkeys(("start_ptr", "count_ptr", "expert_ptr", "num_blocks_ptr"), "*i32:4"),
        **dict.fromkeys(("N", "K", "stride_sbe", "stride_sbn", "n_blocks", "n_programs"), "i32"),
    }
    return signature if first else signature | {"factors": f"tensordesc<fp32[{BLOCK_M}]>"}


def _request(first: bool, width: int, cut: bool) -> CompileRequest:
    constants = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": 128,
        "TAIL": TAIL,
        "SWIGLU": first,
        "EPILOGUE_N": EPILOGUE_N,
    }
    signature = tuple(_signature(first, width, cut).items())
    return request_of(
        *(SOURCE, "fused_moe_blockwise_kernel", signature, tuple(constants.items()), "sm_90a"),
        num_warps=4,
        num_stages=3,
    )
