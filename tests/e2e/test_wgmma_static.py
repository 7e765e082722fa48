"""wgmma in the machine code of plain tile source: none waits for another.

ptxas may serialize wgmma to keep accumulators in registers, with a warning or without. So the tests
count the instructions themselves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from aotc.compiler import CompiledKernel, CompileRequest, compile_kernel
from aotc.config import Config

KERNELS = Path(__file__).parents[2] / "kernels"
MATMUL = {
    **dict.fromkeys(("a_ptr", "b_ptr", "bias_ptr", "residual_ptr", "out_ptr"), "*{}:16"),
    **dict.fromkeys(("M", "N", "K", "stride_am"), "i32:16"),
    "stride_ak": "i32=1",
    "stride_bk": "i32:16",
    "stride_bn": "i32=1",
    "stride_om": "i32:16",
    "stride_on": "i32=1",
}
PLAIN = {"BIAS": False, "RESIDUAL": False, "ACTIVATION": "none", "EVEN_K": False}
ATTENTION = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*{}:16"),
    "lse_ptr": "*fp32:16",
    "scale": "fp32",
    **dict.fromkeys(("n_heads", "heads_per_kv_head", "n_queries", "n_keys"), "i32"),
    **{
        f"stride_{tensor}{axis}": "i32:16"
        for tensor, axes in (("q", "bhm"), ("k", "bhn"), ("v", "bhn"), ("o", "bhm"))
        for axis in axes
    },
}


@lru_cache(maxsize=32)
def compiled(
    source: str,
    kernel: str,
    dtype: str,
    constants: tuple[tuple[str, Any], ...],
    warps: int,
    stages: int,
) -> CompiledKernel:
    types = MATMUL if kernel == "matmul_kernel" else ATTENTION
    signature = tuple((name, text.format(dtype)) for name, text in types.items())
    path = str(KERNELS / source)
    return compile_kernel(
        CompileRequest(path, kernel, signature, constants, "sm_90a", Config(warps, stages))
    )


def matmul(
    block: tuple[int, int, int], warps: int, stages: int, dtype: str = "bf16"
) -> CompiledKernel:
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    constants = tuple({**sizes, "GROUP_M": 8, **PLAIN}.items())
    return compiled("matmul.py", "matmul_kernel", dtype, constants, warps, stages)


def products(kernel: CompiledKernel) -> list[str]:
    """Return the products and the waits for them, in the order of the code."""
    pattern = r"\b(HGMMA|IGMMA|QGMMA|WARPGROUP\.DEPBAR\.LE gsb0, 0x\d)"
    return re.findall(pattern, kernel.asm["sass"])


@pytest.mark.parametrize(
    ("block", "warps", "stages"),
    [
        ((128, 128, 64), 4, 3),
        ((128, 128, 64), 4, 4),
        ((128, 128, 64), 8, 3),
        ((128, 128, 64), 8, 4),
        ((128, 256, 64), 8, 3),
        ((128, 256, 64), 8, 4),
        ((256, 128, 64), 8, 3),
        ((64, 256, 64), 4, 4),
    ],
)
def test_products_of_a_matmul_follow_each_other(
    block: tuple[int, int, int], warps: int, stages: int
) -> None:
    kernel = matmul(block, warps, stages)
    assert kernel.metadata.ptxas_warnings == ()
    assert kernel.metadata.spill_bytes == kernel.metadata.stack_bytes == 0
    count = block[2] // 16 * max(1, block[0] // 64 * 4 // warps)
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x"
    assert products(kernel) == [*["HGMMA"] * count, f"{wait}1", f"{wait}0"]


def test_products_of_tf32() -> None:
    kernel = matmul((128, 128, 32), 8, 3, "fp32")
    assert kernel.metadata.ptxas_warnings == ()
    assert products(kernel).count("HGMMA") == 4


@pytest.mark.parametrize(
    ("head_dim", "block_m", "block_n", "warps"), [(64, 128, 128, 8), (128, 128, 64, 8)]
)
def test_attention_waits_for_scores_and_for_sums(
    head_dim: int, block_m: int, block_n: int, warps: int
) -> None:
    """Two products in each of two loops; probabilities go from registers to the second."""
    sizes = {"HEAD_DIM": head_dim, "BLOCK_M": block_m, "BLOCK_N": block_n, "CAUSAL": False}
    kernel = compiled("attention.py", "attention_kernel", "bf16", tuple(sizes.items()), warps, 2)
    assert kernel.metadata.ptxas_warnings == ()
    assert kernel.metadata.spill_bytes == kernel.metadata.stack_bytes == 0
    mnemonics = products(kernel)
    assert mnemonics.count("HGMMA") == 2 * (head_dim + block_n) // 16
    assert len(mnemonics) - mnemonics.count("HGMMA") == 4
