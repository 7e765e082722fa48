"""The kernels of `products.py`."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr, b_ptr, out_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACC: tl.constexpr,
    WAY: tl.constexpr,
):  # fmt: skip
    """Store A @ B.

    WAY is "plain"; "scaled", where A is computed and so comes from registers; "two_sums", two sums
    of one loop; "scaled_two_sums", both; "chained", where A is a product itself; "precise", where the sum is kept apart.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    other = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for start in range(0, K, BLOCK_K):
        in_k = k < K - start
        a = tl.load(a_ptrs, mask=(m < M)[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & (n < N)[None, :], other=0.0)
        if WAY.startswith("scaled"):
            a = (a + a).to(b.dtype)
        if WAY == "chained":
            a = tl.dot(a, (k[:, None] == k[None, :]).to(a.dtype)).to(b.dtype)
        if WAY == "precise":
            acc = tl.dot(a, b, acc, max_num_imprecise_acc=32, out_dtype=ACC)
        else:
            acc = tl.dot(a, b, acc, out_dtype=ACC)
        if WAY.endswith("two_sums"):
            other = tl.dot(a, b, other, out_dtype=ACC)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if WAY.startswith("scaled"):
        acc = acc / 2
        other = other / 2
    mask = (m < M)[:, None] & (n < N)[None, :]
    out_ptrs = out_ptr + m[:, None] * N + n[None, :]
    tl.store(out_ptrs, (acc + other) / 2 if WAY.endswith("two_sums") else acc, mask=mask)


@triton.jit
def persistent(
    a_ptr, b_ptr, out_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACC: tl.constexpr,
    WAY: tl.constexpr,
):  # fmt: skip
    """Store A @ B, each program one block of it after the other."""
    blocks_n = tl.cdiv(N, BLOCK_N)
    for block in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * blocks_n, tl.num_programs(0)):
        m = block // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
        n = block % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for start in range(0, K, BLOCK_K):
            in_k = k < K - start
            a_ptrs = a_ptr + m[:, None] * stride_am + (start + k)[None, :] * stride_ak
            b_ptrs = b_ptr + (start + k)[:, None] * stride_bk + n[None, :] * stride_bn
            a = tl.load(a_ptrs, mask=(m < M)[:, None] & in_k[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=in_k[:, None] & (n < N)[None, :], other=0.0)
            acc = tl.dot(a, b, acc, out_dtype=ACC)
        mask = (m < M)[:, None] & (n < N)[None, :]
        tl.store(out_ptr + m[:, None] * N + n[None, :], acc, mask=mask)
