"""Linear layers of a mixture of experts in fp8, for rows that are there in the order of their experts.

So rows, their scales and the weights all come by tensor copies, as those of `blockwise_matmul_kernel` do, and
results leave by them.
"""

import triton
import triton.language as tl
from matmul import activate, tile_of_program


@triton.jit
def fused_moe_blockwise_kernel(
    a, b, out, scale_a, scale_b_ptr, expert_ptr, padded_ptr,
    N, K, stride_sbe, stride_sbn, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SWIGLU: tl.constexpr, factors=None,
):  # fmt: skip
    """Store A @ B[expert]^T in bf16, with an fp32 scale for 1 x 128 of A and 128 x 128 of B, times `factors` if any.

    Rows of each expert fill whole blocks of BLOCK_M, `expert[block]` is that of a block, and `padded` holds how
    many rows there are: programs for more have nothing to do. A is (rows, K) in blocks of (BLOCK_M, 128), B (experts,
    N, K) in blocks of (1, BLOCK_N, 128), `out` (rows, N) in blocks of (BLOCK_M, BLOCK_N), `factors` (rows) of fp32 in
    blocks of BLOCK_M. `scale_a` is (cdiv(K, 128), rows) in blocks of (1, BLOCK_M); `scale_b` (experts, blocks of rows
    of B, cdiv(K, 128)), experts `stride_sbe` and rows `stride_sbn` apart. Each 128 of K are summed apart.

    A program has 2 * BLOCK_N of the rows of B, which multiply the same rows of A. With SWIGLU B is (experts, 2 N, K),
    gate above up, these are BLOCK_N of both, the result is silu(gate) * up, and N is a multiple of 128.
    """
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    COLUMNS: tl.constexpr = BLOCK_N if SWIGLU else 2 * BLOCK_N
    num_rows = tl.load(padded_ptr)
    num_m, num_n = tl.minimum(tl.cdiv(num_rows, BLOCK_M), n_blocks), tl.cdiv(N, COLUMNS)
    block_m, tile_n = tile_of_program(tl.program_id(0), num_m, num_n, GROUP_M)
    row, column = block_m * BLOCK_M, tile_n * COLUMNS
    if row >= num_rows:
        return
    expert = tl.load(expert_ptr + block_m)
    beside = column + (N if SWIGLU else BLOCK_N)
    scales_ptr = scale_b_ptr + expert.to(tl.int64) * stride_sbe
    scale_ptrs, beside_ptrs = (
        scales_ptr + column // 128 * stride_sbn,
        scales_ptr + beside // 128 * stride_sbn,
    )
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    other = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(tl.cdiv(K, BLOCK_K)):
        k = block * BLOCK_K
        rows, scales = a.load([row, k]), scale_a.load([block, row]).reshape(BLOCK_M)
        weights = b.load([expert, column, k]).reshape(BLOCK_N, BLOCK_K)
        more = b.load([expert, beside, k]).reshape(BLOCK_N, BLOCK_K)
        of_weights, of_more = tl.load(scale_ptrs + block), tl.load(beside_ptrs + block)
        acc += tl.dot(rows, weights.T) * (scales * of_weights)[:, None]
        other += tl.dot(rows, more.T) * (scales * of_more)[:, None]
    if SWIGLU:
        acc = activate(acc, "silu") * other
    if factors is not None:
        of_rows = factors.load([row])[:, None]
        acc *= of_rows
        other *= of_rows
    out.store([row, column], acc.to(out.dtype))
    if not SWIGLU:
        out.store([row, beside], other.to(out.dtype))
