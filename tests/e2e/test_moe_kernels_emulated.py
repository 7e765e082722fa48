"""Mixtures of experts in the emulator, against NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import compile_ptx
from tests.support.descriptors import launch
from tests.support.requests import request_of

KERNELS = Path(__file__).parents[2] / "kernels"
NUM_TOKENS, ROWS_PER_TOKEN, NUM_EXPERTS, BLOCK_M = 23, 2, 3, 64


def _sorted_rows(experts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers in blocks of one expert each, filled up, and the expert of each block."""
    rows, blocks = list[np.ndarray](), list[int]()
    for expert in range(NUM_EXPERTS):
        mine = np.flatnonzero(experts == expert)
        count = -(-mine.size // BLOCK_M)
        rows.append(np.pad(mine, (0, count * BLOCK_M - mine.size), constant_values=experts.size))
        blocks += [expert] * count
    return np.concatenate(rows).astype(np.int32), np.array(blocks, np.int32)


@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize(("columns", "depth"), [(16, 16), (128, 64), (144, 208)])
def test_rows_go_through_the_weights_of_their_experts(
    columns: int, depth: int, swiglu: bool
) -> None:
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "out_ptr"), "*bf16:16")
    pointers |= {"weight_ptr": "*fp32:16"}
    pointers |= dict.fromkeys(("sorted_ptr", "expert_ptr", "padded_ptr"), "*i32:16")
    sizes = dict.fromkeys(("N", "K", "stride_am", "stride_be", "stride_bn", "stride_om"), "i32:16")
    counts = dict.fromkeys(("n_rows", "rows_per_token", "n_blocks"), "i32")
    order = ("N", "K", "n_rows", "rows_per_token", "stride_am", "stride_be", "stride_bn")
    scalars = {name: {**sizes, **counts}[name] for name in (*order, "stride_om", "n_blocks")}
    constants = {"BLOCK_M": BLOCK_M, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8}
    constants |= {"WEIGHTED": True, "SWIGLU": swiglu}
    source = str(KERNELS / "fused_moe.py")
    signature = tuple({**pointers, **scalars}.items())
    request = request_of(
        *(source, "fused_moe_kernel", signature, tuple(constants.items()), "sm_90a"),
        num_warps=4,
        num_stages=3,
    )
    rng = np.random.default_rng(columns)
    n_rows, parts = NUM_TOKENS * ROWS_PER_TOKEN, 2 if swiglu else 1
    a = rng.normal(size=(NUM_TOKENS, depth)).astype(ml_dtypes.bfloat16)
    b = (rng.normal(size=(NUM_EXPERTS, parts * columns, depth)) / 8).astype(ml_dtypes.bfloat16)
    weight = rng.normal(size=n_rows).astype(np.float32)
    experts = rng.integers(0, NUM_EXPERTS, n_rows)
    rows, blocks = _sorted_rows(experts)
    out = np.full((n_rows, columns), np.nan, ml_dtypes.bfloat16)
    values = {
        "a_ptr": a, "b_ptr": b, "out_ptr": out, "weight_ptr": weight, "sorted_ptr": rows,
        "expert_ptr": blocks, "padded_ptr": np.array([rows.size], np.int32), "N": columns,
        "K": depth, "n_rows": n_rows, "rows_per_token": ROWS_PER_TOKEN, "stride_am": depth,
        "stride_be": parts * columns * depth, "stride_bn": depth, "stride_om": columns,
        "n_blocks": blocks.size,
    }  # fmt: skip
    launch(compile_ptx(request), (blocks.size * -(-columns // 128),), values, seed=depth)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    for row, expert in enumerate(experts):
        product = wide_b[expert] @ wide_a[row // ROWS_PER_TOKEN]
        if swiglu:
            gate, up = product[:columns], product[columns:]
            product = gate / (1 + np.exp(-gate)) * up
        expected = product * weight[row]
        bound = 2.0**-7 * np.abs(expected) + 2.0**-9 * np.abs(expected).max()
        assert (np.abs(out[row].astype(np.float64) - expected) <= bound).all()


TAIL = ALIGN = 32


def _rows_in_blocks(experts: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return row numbers by expert, padded to ALIGN, and the start, size and expert of each block."""
    rows, starts, counts, owners = list[np.ndarray](), [0], list[int](), list[int]()
    for expert in range(NUM_EXPERTS):
        mine = np.flatnonzero(experts == expert)
        mine = np.pad(mine, (0, -mine.size % ALIGN), constant_values=experts.size)
        count = max(1, -(-(mine.size - TAIL) // BLOCK_M))
        for part in np.split(mine, range(BLOCK_M, count * BLOCK_M, BLOCK_M)):
            rows.append(part)
            starts.append(starts[-1] + part.size)
            counts.append(int(np.count_nonzero(part < experts.size)))
            owners.append(expert)
    # A launch may have more blocks than there are.
    lists = {"start_ptr": starts, "count_ptr": [*counts, 0], "expert_ptr": [*owners, 0]}
    return np.concatenate(rows).astype(np.int32), {
        name: np.array(numbers, np.int32) for name, numbers in lists.items()
    }


@pytest.mark.parametrize("num_tokens", [1, 37, 67])
@pytest.mark.parametrize("first", [False, True])
def test_rows_of_an_expert_are_columns_of_a_tile(num_tokens: int, first: bool) -> None:
    columns, depth, width = 72, 80, 64 if first else 128
    signature = {
        "a": "*bf16:16" if first else f"tensordesc<bf16[{BLOCK_M},64]>",
        "b": f"tensordesc<bf16[{'1,8,2,8,64' if first else '1,128,64'}]>",
        "out": f"tensordesc<bf16[{ALIGN},{width}]>",
        **dict.fromkeys(("sorted_ptr", "start_ptr", "count_ptr", "expert_ptr"), "*i32:16"),
        "N": "i32",
        "K": "i32",
        "stride_am": "i32:8",
        "n_rows": "i32",
        "n_blocks": "i32",
    }
    if not first:
        signature |= {
            "more": f"tensordesc<bf16[{TAIL},64]>",
            "factors": f"tensordesc<fp32[{BLOCK_M}]>",
            "more_factors": f"tensordesc<fp32[{TAIL}]>",
        }
    constants = {"BLOCK_M": BLOCK_M, "TAIL": TAIL, "BLOCK_N": 128, "BLOCK_K": 64}
    constants |= {"EPILOGUE_M": ALIGN, "SWIGLU": first, "ROWS_PER_TOKEN": ROWS_PER_TOKEN}
    request = request_of(
        *(str(KERNELS / "fused_moe_columns.py"), "fused_moe_columns_kernel"),
        *(tuple(signature.items()), tuple(constants.items()), "sm_90a"),
        num_warps=8,
        num_stages=3,
    )
    rng = np.random.default_rng(num_tokens)
    parts, n_rows = 2 if first else 1, num_tokens * ROWS_PER_TOKEN
    b = (rng.normal(size=(NUM_EXPERTS, parts, columns, depth)) / 8).astype(ml_dtypes.bfloat16)
    halves = b.reshape(NUM_EXPERTS, 2, columns // 8, 8, depth).swapaxes(1, 2) if first else b[:, 0]
    weight = rng.normal(size=n_rows).astype(np.float32)
    # One expert has more than a block, one nothing.
    experts = rng.choice(NUM_EXPERTS, n_rows, p=(0.6, 0.4, 0.0))
    rows, blocks = _rows_in_blocks(experts)
    num_blocks = blocks["count_ptr"].size
    of_rows = np.minimum(rows, n_rows - 1)
    tokens = rng.normal(size=(num_tokens, depth)).astype(ml_dtypes.bfloat16)
    a = tokens if first else tokens[of_rows // ROWS_PER_TOKEN]
    out = np.full((rows.size, columns), np.nan, ml_dtypes.bfloat16)
    values = {
        "a": a, "b": halves, "out": out, "sorted_ptr": rows, **blocks, "N": columns, "K": depth,
        "stride_am": depth, "n_rows": n_rows, "n_blocks": num_blocks,
    }  # fmt: skip
    if not first:
        values |= dict.fromkeys(("factors", "more_factors"), weight[of_rows]) | {"more": a}
    grid = (num_blocks * -(-columns // width),)
    launch(compile_ptx(request), grid, values, seed=num_tokens)
    wide_a, wide_b = tokens.astype(np.float64), b.astype(np.float64)
    order = np.argsort(rows, kind="stable")  # padding comes last
    for row, expert in enumerate(experts):
        gate, *ups = wide_b[expert] @ wide_a[row // ROWS_PER_TOKEN]
        expected = gate / (1 + np.exp(-gate)) * ups[0] if first else gate * weight[row]
        bound = 2.0**-7 * np.abs(expected) + 2.0**-9 * np.abs(expected).max()
        assert (np.abs(out[order[row]].astype(np.float64) - expected) <= bound).all()
