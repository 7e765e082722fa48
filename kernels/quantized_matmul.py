"""Matrix products with weights of 8 or 4 bits, taken apart in registers on their way to the dot."""

import triton
import triton.language as tl
from matmul import tile_of_program


@triton.jit
def int8_matmul_kernel(
    a_ptr, b_ptr, scale_ptr, out_ptr,
    M, N, K,
    stride_am, stride_bk, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Store (A @ B) * scale: A is (M, K) of 16-bit floats, B (K, N) of int8, one scale a column.

    Rows are dense. Integers of 8 bits are exact in 16-bit floats, so scaling waits for the end.
    """
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    start_m, start_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    in_m, in_n = start_m + m < M, start_n + n < N
    a_ptrs = a_ptr + start_m.to(tl.int64) * stride_am + m[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + start_n + k[:, None] * stride_bk + n[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n[None, :], other=0)
        acc = tl.dot(a, b.to(a.dtype), acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    scale = tl.load(scale_ptr + start_n + n, mask=in_n, other=0.0)
    out = acc * scale.to(tl.float32)[None, :]
    out_ptrs = out_ptr + start_m.to(tl.int64) * stride_om + start_n
    out_ptrs += m[:, None] * stride_om + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def int4_matmul_kernel(
    a_ptr, b_ptr, scale_ptr, out_ptr,
    M, N, K,
    stride_am, stride_bk, stride_sk, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, GROUP_K: tl.constexpr,
):  # fmt: skip
    """Store A @ ((B - 8) * scale): A is (M, K) of 16-bit floats, B (K, N) of 4 bits.

    Row k of B is in the low halves of the bytes of row k // 2 if k is even, else in the high ones.
    GROUP_K rows share a row of `scale`, (cdiv(K, GROUP_K), N). Rows are dense.
    """
    tl.static_assert(GROUP_K % BLOCK_K == 0, "a block of K must lie in one group")
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    start_m, start_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    in_m, in_n = start_m + m < M, start_n + n < N
    a_ptrs = a_ptr + start_m.to(tl.int64) * stride_am + m[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + start_n + (k // 2)[:, None] * stride_bk + n[None, :]
    shift = (k % 2 * 4)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        packed = tl.load(b_ptrs, mask=in_k[:, None] & in_n[None, :], other=0)
        scale_ptrs = scale_ptr + start_k // GROUP_K * stride_sk + start_n + n
        scale = tl.load(scale_ptrs, mask=in_n, other=0.0)
        b = ((packed >> shift.to(packed.dtype)) & 15).to(tl.int8) - 8
        acc = tl.dot(a, b.to(a.dtype) * scale.to(a.dtype)[None, :], acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K // 2 * stride_bk
    out_ptrs = out_ptr + start_m.to(tl.int64) * stride_om + start_n
    out_ptrs += m[:, None] * stride_om + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)
