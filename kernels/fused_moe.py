"""Linear layers of a mixture of experts: each row of a batch goes through the weights of its experts.

Whoever calls has sorted the rows by expert: `sorted` holds row numbers of the output, one for each
expert that a token goes to, BLOCK_M of them for one block of programs and all for one expert,
`experts[block]`. Numbers from `n_rows` on fill blocks up. So products of all experts are one launch,
whose programs gather their rows of A.
"""

import triton
import triton.language as tl
from matmul import activate, tile_of_program


@triton.jit
def fused_moe_kernel(
    a_ptr, b_ptr, out_ptr, weight_ptr, sorted_ptr, expert_ptr, padded_ptr,
    N, K, n_rows, rows_per_token,
    stride_am, stride_be, stride_bn, stride_om, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WEIGHTED: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """Store out[r] = A[r // rows_per_token] @ B[expert of r]^T, times weight[r] if WEIGHTED.

    A is (tokens, K), B (experts, N, K), rows dense, out (n_rows, N). With SWIGLU B is (experts, 2 N,
    K), gate above up, and out is silu(gate) * up. `padded` holds how many row numbers there are, of
    n_blocks * BLOCK_M at most: programs for more have nothing to do.
    """
    num_n = tl.cdiv(N, BLOCK_N)
    num_rows = tl.load(padded_ptr)
    num_m = tl.cdiv(num_rows, BLOCK_M)
    block, tile_n = tile_of_program(tl.program_id(0), num_m, num_n, GROUP_M)
    if block * BLOCK_M >= num_rows:
        return
    rows = tl.load(sorted_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    expert = tl.load(expert_ptr + block).to(tl.int64)
    in_m = rows < n_rows
    n, k = tile_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows // rows_per_token).to(tl.int64)[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + expert * stride_be + k[:, None] + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
        if SWIGLU:
            b = tl.load(b_ptrs + N * stride_bn, mask=in_k[:, None] & (n < N)[None, :], other=0.0)
            up = tl.dot(a, b, up)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    if SWIGLU:
        acc = activate(acc, "silu") * up
    if WEIGHTED:
        acc *= tl.load(weight_ptr + rows, mask=in_m, other=0.0)[:, None]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_om + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_m[:, None] & (n < N)[None, :])
