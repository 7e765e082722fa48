"""Matrix products of every pair of types and precision, through pointers."""

import triton
import triton.language as tl


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr = "tf32", IMPRECISE: tl.constexpr = 0,
    TRANSPOSED: tl.constexpr = True,  # noqa: FBT002 - a constant
):  # fmt: skip
    """Store A @ B: A is (M, K), B (N, K) if TRANSPOSED, else (K, N), summed in ACC."""
    start_m, start_n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    m, n = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        in_a = (m < M)[:, None] & (k < K)[None, :]
        a = tl.load(a_ptr + m[:, None] * stride_a + k[None, :], mask=in_a, other=0.0)
        if TRANSPOSED:
            in_b = (n < N)[:, None] & (k < K)[None, :]
            b = tl.load(b_ptr + n[:, None] * stride_b + k[None, :], mask=in_b, other=0.0).T
        else:
            in_b = (k < K)[:, None] & (n < N)[None, :]
            b = tl.load(b_ptr + k[:, None] * stride_b + n[None, :], mask=in_b, other=0.0)
        if IMPRECISE > 0:
            acc = tl.dot(a, b, acc, max_num_imprecise_acc=IMPRECISE)
        else:
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=ACC)
    out = c_ptr + m.to(tl.int64)[:, None] * stride_c + n[None, :]
    tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])
