"""Rows of experts, masked and contiguous: computed rows, and untouched rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_ptx
from tests.support.descriptors import launch
from tests.support.requests import request_of

KERNELS = Path(__file__).parents[2] / "kernels"
BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 64
ROWS, COLUMNS, DEPTH, GROUPS = 136, 72, 104, 4


def _compiled(name: str, numbers: str, constants: dict[str, int], axes_of_rows: int) -> PtxKernel:
    lead = "1," * (axes_of_rows - 2)
    signature = {
        "a": f"tensordesc<bf16[{lead}{BLOCK_M},{BLOCK_K}]>",
        "b": f"tensordesc<bf16[1,{BLOCK_N},{BLOCK_K}]>",
        "c": f"tensordesc<bf16[{lead}{BLOCK_M},{BLOCK_N}]>",
    }
    table, *scalars = numbers.split()
    signature |= {table: "*i32", **dict.fromkeys(scalars, "i32")}
    blocks = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, **constants}
    source = str(KERNELS / "grouped_experts.py")
    request = request_of(
        *(source, name, tuple(signature.items()), tuple(blocks.items()), "sm_90a"),
        num_warps=4,
        num_stages=3,
    )
    return compile_ptx(request)


def _operands(shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(len(shape))
    a = rng.integers(-3, 4, (*shape, DEPTH)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (GROUPS, COLUMNS, DEPTH)).astype(ml_dtypes.bfloat16)
    c = np.full((*shape, COLUMNS), -77, ml_dtypes.bfloat16)
    return {"a": a, "b": b, "c": c, "N": COLUMNS, "K": DEPTH}


@pytest.mark.emulated
def test_rows_beyond_a_count_are_not_computed() -> None:
    numbers = "counts_ptr n_groups N K n_programs"
    constants = {"EPILOGUE_N": BLOCK_N}
    kernel = _compiled("masked_grouped_gemm_kernel", numbers, constants, 3)
    values = _operands((GROUPS, ROWS))
    counts = np.array([65, 0, ROWS, 64], np.int32)
    launch(kernel, (3,), {**values, "counts_ptr": counts, "n_groups": GROUPS, "n_programs": 3})
    a, b, c = (values[name].astype(np.float32) for name in "abc")
    for group, count in enumerate(counts):
        product = a[group, :count] @ b[group].T
        np.testing.assert_array_equal(c[group, :count], product.astype(ml_dtypes.bfloat16))
        assert (c[group, -(-count // BLOCK_M) * BLOCK_M :] == -77).all()


@pytest.mark.emulated
def test_each_block_of_rows_is_of_one_group_or_of_none() -> None:
    kernel = _compiled("contiguous_grouped_gemm_kernel", "group_ptr M N K", {"GROUP_M": 2}, 2)
    groups = np.array([2, -1, 0, 2, 3], np.int32)
    values = _operands((groups.size * BLOCK_M,))
    tiles = groups.size * -(-COLUMNS // BLOCK_N)
    table = np.repeat(groups, BLOCK_M)
    launch(kernel, (tiles,), {**values, "group_ptr": table, "M": table.size})
    a, b, c = (values[name].astype(np.float32) for name in "abc")
    for block, group in enumerate(groups):
        rows = slice(block * BLOCK_M, (block + 1) * BLOCK_M)
        if group < 0:
            assert (c[rows] == -77).all()
        else:
            product = a[rows] @ b[group].T
            np.testing.assert_array_equal(c[rows], product.astype(ml_dtypes.bfloat16))
