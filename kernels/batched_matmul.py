"""Many matrix products of one shape: one tile a program, or several small products at once."""

import triton
import triton.language as tl
from matmul import tile_of_program


@triton.jit
def batched_matmul_kernel(
    a_ptr, b_ptr, out_ptr,
    M, N, K,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    stride_ob, stride_om, stride_on,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Store A[i] @ B[i] for every i of axis 1 of the grid: A is (batch, M, K), B (batch, K, N).

    A batch stride of 0 uses one matrix for all.
    """
    tile_m, tile_n = tile_of_program(
        tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M
    )
    batch = tl.program_id(1).to(tl.int64)
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    start_m, start_n = tile_m * BLOCK_M, tile_n * BLOCK_N
    in_m, in_n = (start_m + m < M)[:, None], (start_n + n < N)[None, :]
    a_ptrs = a_ptr + batch * stride_ab + start_m.to(tl.int64) * stride_am
    a_ptrs += m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + batch * stride_bb + start_n.to(tl.int64) * stride_bn
    b_ptrs += k[:, None] * stride_bk + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        in_k = k < K - start_k
        a = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    out_ptr += batch * stride_ob + start_m.to(tl.int64) * stride_om
    out_ptrs = out_ptr + start_n.to(tl.int64) * stride_on
    out_ptrs += m[:, None] * stride_om + n[None, :] * stride_on
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def small_matmuls_kernel(
    a_ptr, b_ptr, out_ptr,
    n_batches, M, N, K,
    BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Store A[i] @ B[i] of dense matrices no larger than a block, BLOCK_B of them a program."""
    batch = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    start = batch.to(tl.int64)[:, None, None]
    in_batch = (batch < n_batches)[:, None, None]
    in_m, in_n, in_k = m < M, n < N, k < K
    a = tl.load(
        a_ptr + start * M * K + (m[:, None] * K + k[None, :])[None, :, :],
        mask=in_batch & (in_m[:, None] & in_k[None, :])[None, :, :],
        other=0.0,
    )
    b = tl.load(
        b_ptr + start * K * N + (k[:, None] * N + n[None, :])[None, :, :],
        mask=in_batch & (in_k[:, None] & in_n[None, :])[None, :, :],
        other=0.0,
    )
    out = tl.dot(a, b)
    tl.store(
        out_ptr + start * M * N + (m[:, None] * N + n[None, :])[None, :, :],
        out.to(out_ptr.dtype.element_ty),
        mask=in_batch & (in_m[:, None] & in_n[None, :])[None, :, :],
    )


@triton.jit
def batched_matmul_descriptor_kernel(
    a, b, c,
    batches, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    TRANSPOSED: tl.constexpr = True,  # noqa: FBT002 - a constant
    FLATTEN: tl.constexpr = True,  # noqa: FBT002
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store A[i] @ B[i] to C[i]: A is (batches, M, K), B (batches, N, K) if TRANSPOSED, else (.., K, N).

    NUM_SMS programs go through the tiles of all products. Blocks of descriptors are a matrix deep.
    """
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    per_batch = num_m * num_n
    for index in tl.range(
        tl.program_id(0), batches * per_batch, NUM_SMS,
        flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE,
    ):  # fmt: skip
        batch = index // per_batch
        tile_m, tile_n = tile_of_program(index % per_batch, num_m, num_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            left = a.load([batch, row, k]).reshape(BLOCK_M, BLOCK_K)
            if TRANSPOSED:
                right = b.load([batch, column, k]).reshape(BLOCK_N, BLOCK_K).T
            else:
                right = b.load([batch, k, column]).reshape(BLOCK_K, BLOCK_N)
            acc = tl.dot(left, right, acc)
        c.store([batch, row, column], acc.to(c.dtype).reshape(1, BLOCK_M, BLOCK_N))
