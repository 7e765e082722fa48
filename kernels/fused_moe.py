"""Linear layers of a mixture of experts: each row of a batch goes through the weights of its experts.

Whoever calls has sorted the rows by expert: `sorted` holds row numbers of the output, one for each
expert that a token goes to, BLOCK_M of them for one block of programs and all for one expert,
`experts[block]`. Numbers from `n_rows` on fill blocks up. So products of all experts are one launch,
whose programs gather their rows of A.
"""

import triton
import triton.language as tl
from matmul import activate, tile_of_program
from weight_only_matmul import unpacked_int4


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
    num_m = tl.minimum(tl.cdiv(num_rows, BLOCK_M), n_blocks)
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


@triton.jit
def fused_moe_fp8_kernel(
    a_ptr, b_ptr, out_ptr, scale_a_ptr, scale_b_ptr, weight_ptr, sorted_ptr, expert_ptr, padded_ptr,
    N, K, n_rows, rows_per_token,
    stride_am, stride_be, stride_bn, stride_om, stride_sa, stride_sbe, stride_sbn, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr,
    GROUP_M: tl.constexpr, WEIGHTED: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """Store the same of fp8, with an fp32 scale for 1 x 128 of A and 128 x 128 of B.

    `scale_a` is (tokens, cdiv(K, 128)), its rows `stride_sa` apart; `scale_b` (experts, blocks of rows of
    B, cdiv(K, 128)), experts `stride_sbe` and rows `stride_sbn` apart. Each 128 of K are summed apart.
    A program has COLUMNS of the results, BLOCK_N or twice as many: then both halves multiply the same
    rows of A. With SWIGLU the halves are gate and up, COLUMNS is BLOCK_N, and N a multiple of 128.
    """
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    PAIR: tl.constexpr = SWIGLU or COLUMNS > BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    num_rows = tl.load(padded_ptr)
    num_m = tl.minimum(tl.cdiv(num_rows, BLOCK_M), n_blocks)
    block, tile_n = tile_of_program(tl.program_id(0), num_m, num_n, GROUP_M)
    if block * BLOCK_M >= num_rows:
        return
    rows = tl.load(sorted_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    expert = tl.load(expert_ptr + block).to(tl.int64)
    in_m, token = rows < n_rows, (rows // rows_per_token).to(tl.int64)
    first = tile_n * COLUMNS
    n, k = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    beside = N if SWIGLU else BLOCK_N
    end = 2 * N if SWIGLU else N
    a_ptrs = a_ptr + token[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + expert * stride_be + k[:, None] + n[None, :] * stride_bn
    scale_a_ptrs = scale_a_ptr + token * stride_sa
    scale_b_ptrs = scale_b_ptr + expert * stride_sbe + first // 128 * stride_sbn
    other_scale_ptrs = scale_b_ptr + expert * stride_sbe + (first + beside) // 128 * stride_sbn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    other = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & (n < N)[None, :], other=0.0)
        scale_a = tl.load(scale_a_ptrs + start_k // BLOCK_K, mask=in_m, other=0.0)
        scale_b = tl.load(scale_b_ptrs + start_k // BLOCK_K)
        acc += tl.dot(a, b) * (scale_a * scale_b)[:, None]
        if PAIR:
            in_n = n + beside < end
            b = tl.load(b_ptrs + beside * stride_bn, mask=in_k[:, None] & in_n[None, :], other=0.0)
            scale_b = tl.load(other_scale_ptrs + start_k // BLOCK_K)
            other += tl.dot(a, b) * (scale_a * scale_b)[:, None]
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    if SWIGLU:
        acc = activate(acc, "silu") * other
    if WEIGHTED:
        weight = tl.load(weight_ptr + rows, mask=in_m, other=0.0)[:, None]
        acc *= weight
        other *= weight
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_om + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_m[:, None] & (n < N)[None, :])
    if PAIR and not SWIGLU:
        in_out = in_m[:, None] & (n + BLOCK_N < N)[None, :]
        tl.store(out_ptrs + BLOCK_N, other.to(out_ptr.dtype.element_ty), mask=in_out)


@triton.jit
def fused_moe_int4_kernel(
    a_ptr, b_ptr, out_ptr, scale_ptr, weight_ptr, sorted_ptr, expert_ptr, padded_ptr,
    N, K, n_rows, rows_per_token,
    stride_am, stride_be, stride_bn, stride_om, stride_se, stride_sk, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    GROUP_K: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Store the same of weights of 4 bits, (B - 8) * scale: A is (tokens, K) of 16-bit floats.

    Eight weights are a word of B, (experts, N, K / 8), see `unpacked_int4`; its strides count words.
    GROUP_K of K share a scale: `scale` is (experts, cdiv(K, GROUP_K), N).
    """
    tl.static_assert(GROUP_K % BLOCK_K == 0, "a block of K must lie in one group")
    num_n = tl.cdiv(N, BLOCK_N)
    num_rows = tl.load(padded_ptr)
    num_m = tl.minimum(tl.cdiv(num_rows, BLOCK_M), n_blocks)
    block, tile_n = tile_of_program(tl.program_id(0), num_m, num_n, GROUP_M)
    if block * BLOCK_M >= num_rows:
        return
    rows = tl.load(sorted_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    expert = tl.load(expert_ptr + block).to(tl.int64)
    in_m = rows < n_rows
    n, k = tile_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_K // 8)
    a_ptrs = a_ptr + (rows // rows_per_token).to(tl.int64)[:, None] * stride_am + k[None, :]
    b_ptrs = b_ptr + expert * stride_be + n[:, None] * stride_bn + word[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_a = in_m[:, None] & (k < K - start_k)[None, :]
        in_b = (n < N)[:, None] & (word < K // 8 - start_k // 8)[None, :]
        a = tl.load(a_ptrs, mask=in_a, other=0.0)
        words = tl.load(b_ptrs, mask=in_b, other=0)
        scale_ptrs = scale_ptr + expert * stride_se + start_k // GROUP_K * stride_sk + n
        scale = tl.load(scale_ptrs, mask=n < N, other=0.0)
        weights = (unpacked_int4(words) - 8).to(a.dtype) * scale.to(a.dtype)[:, None]
        acc = tl.dot(weights.to(a.dtype), a.T, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K // 8
    acc = acc.T
    if WEIGHTED:
        acc *= tl.load(weight_ptr + rows, mask=in_m, other=0.0)[:, None]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_om + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_m[:, None] & (n < N)[None, :])
