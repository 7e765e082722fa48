"""Dots reusing accumulator registers: selection, and enough registers in ptxas."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aotc

SOURCE = Path(__file__).parents[3] / "kernels" / "blockwise_matmul.py"


def _compiled(parts: int, block_n: int) -> aotc.CompiledKernel:
    constants = {"BLOCK_M": 128, "BLOCK_N": block_n, "BLOCK_K": 128, "PARTS": parts, "GROUP_M": 8}
    operands = {
        "a": "fp8e4nv[128,128]",
        "b": f"fp8e4nv[{block_n},128]",
        "c": f"bf16[128,{block_n}]",
        "scale_a": "fp32[1,128]",
    }
    scalars = dict.fromkeys(("M", "N", "K", "stride_sb"), "i32")
    signature = {name: f"tensordesc<{kind}>" for name, kind in operands.items()}
    signature |= {"scale_b_ptr": "*fp32"}
    return aotc.compile(
        f"{SOURCE}:blockwise_matmul_kernel",
        signature={**signature, **scalars},
        constants={**constants, "NUM_SMS": 132, "WARP_SPECIALIZE": True},
        target="sm_90a",
        num_warps=8,
        num_stages=3,
    )


def test_a_dot_begins_in_the_registers_of_the_result_before() -> None:
    """The sums of two parts and the products of both would be 256 registers of a thread."""
    compiled_kernel = _compiled(2, 128)
    first, second = re.findall(r"gpu\.wgmma\((.*)\) :", compiled_kernel.asm["gpu"])
    (waited, *_) = re.findall(r"(\S+) = gpu\.wgmma_wait", compiled_kernel.asm["gpu"])
    assert first.split(", ")[2] != waited
    assert second.split(", ")[2] == waited
    assert second.split(", ")[3] == first.split(", ")[3]  # neither adds to anything
    assert compiled_kernel.metadata.spill_bytes == 0
    assert compiled_kernel.metadata.ptxas_warnings == ()


@pytest.mark.parametrize(("parts", "block_n"), [(1, 128), (2, 64)])
def test_results_that_fit_beside_each_other_stay_there(parts: int, block_n: int) -> None:
    text = _compiled(parts, block_n).asm["gpu"]
    acc = {operands.split(", ")[2] for operands in re.findall(r"gpu\.wgmma\((.*)\) :", text)}
    assert len(acc) == 1
