"""A persistent matrix product through descriptors that the kernel makes itself, of pointers.

C = activation(A @ B^T + bias) + residual, A (M, K), B (N, K), bias (N), residual and C (M, N), all
without gaps. As many programs as fit the GPU go through the blocks of C in groups of rows, so that
those at work at one time share what they read.
"""

import triton
import triton.language as tl
from matmul import activate, tile_of_program


@triton.jit
def matmul_descriptor_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    residual_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    for index in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        row, column = tile_of_program(index, num_m, num_n, GROUP_M)
        row *= BLOCK_M
        column *= BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
        if HAS_BIAS:
            bias = tl.make_tensor_descriptor(bias_ptr, [N], [1], [BLOCK_N])
            total += bias.load([column]).to(tl.float32)[None, :]
        total = activate(total, ACTIVATION)
        if HAS_RESIDUAL:
            residual = tl.make_tensor_descriptor(residual_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
            total += residual.load([row, column]).to(tl.float32)
        c.store([row, column], total.to(c.dtype))
