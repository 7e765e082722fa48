"""A grouped GEMM kernel with tensor maps in memory."""

from __future__ import annotations

# Of each group, the maps of A and B stand one after the other.
GROUPED = """import triton
import triton.language as tl

@triton.jit
def k(maps, results, depths, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    group = tl.program_id(2)
    first = maps + group * 2 * 128
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    a = tl.reinterpret_tensor_descriptor(first, [BM, BK], tl.bfloat16)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.load(depths + group), BK):
        b = tl._experimental_descriptor_load(first + 128, [n, k], [BN, BK], tl.bfloat16)
        acc = tl.dot(a.load([m, k]), b.T, acc)
    tl._experimental_descriptor_store(results + group * 128, acc, [m, n])
"""
