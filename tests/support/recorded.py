"""A recorded program, with a stand-in for Triton."""

from __future__ import annotations

from pathlib import Path

STAND_IN = Path(__file__).parent / "triton_stand_in"
KERNELS = """
import sys
import triton
import triton.language as tl

@triton.autotune(
    [triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)],
    key=["n"],
)
@triton.jit
def add(x, y, bias, n, stride, BLOCK: tl.constexpr, ACT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at * stride, mask=at < n)
    if bias is not None:
        v += tl.load(bias)
    tl.store(y + at, v, mask=at < n)

def run(n, bias=None):
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    add[grid]("*fp16", "*fp16", bias, n, 1, ACT="silu")
"""
