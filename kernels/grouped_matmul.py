"""Products of rows with the matrix each was sorted to: the experts of a mixture."""

import triton
import triton.language as tl
from matmul import tile_of_program


@triton.jit
def grouped_matmul_kernel(
    a_ptr, b_ptr, row_ptr, expert_ptr, weight_ptr, out_ptr,
    n_rows, n_blocks, rows_per_token, N, K,
    stride_am, stride_be, stride_bk, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Store out[r] = A[r // rows_per_token] @ B[expert] for the rows r that were sorted to each.

    `rows` holds n_blocks * BLOCK_M row numbers of `out`, (n_rows, N), every BLOCK_M of which go to
    one expert, `expert[block]`; n_rows and more fill up a block. A is (tokens, K), B (experts, K,
    N). With WEIGHTED each row is scaled by `weight[r]`, fp32. Columns are dense.
    """
    block, tile_n = tile_of_program(tl.program_id(0), n_blocks, tl.cdiv(N, BLOCK_N), GROUP_M)
    rows = tl.load(row_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    expert = tl.load(expert_ptr + block).to(tl.int64)
    in_m = rows < n_rows
    n, k = tile_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    in_n = n < N
    token = (rows // rows_per_token).to(tl.int64)
    a_ptrs = a_ptr + token[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + expert * stride_be + k[:, None] * stride_bk + n[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    if WEIGHTED:
        acc *= tl.load(weight_ptr + rows, mask=in_m, other=0.0)[:, None]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_om + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)
