"""Rows of tokens in the order of the experts that they go to, for layers that read them by tensor copies."""

import triton
import triton.language as tl


@triton.jit
def rows_in_order_kernel(
    a_ptr, out_ptr, sorted_ptr,
    K, n_rows, num_out, stride_am, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr,
    scale_ptr=None, out_scale_ptr=None, stride_sm=0, stride_sk=0, num_scales=0, SCALES: tl.constexpr = 1,
):  # fmt: skip
    """Store out[i] = A[sorted[i] // ROWS_PER_TOKEN] for num_out of them, a multiple of BLOCK_M.

    Numbers from `n_rows` on fill up, with any row. With `scale`, (tokens, num_scales), the scales of a row go to a
    column of `out_scale`, (num_scales, rows), its rows `stride_sk` apart; SCALES is num_scales or more.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    token = tl.minimum(tl.load(sorted_ptr + row), n_rows - 1) // ROWS_PER_TOKEN
    from_ptrs = a_ptr + token.to(tl.int64)[:, None] * stride_am
    to_ptrs = out_ptr + row.to(tl.int64)[:, None] * stride_om
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        tl.store(to_ptrs + k, tl.load(from_ptrs + k, mask=k < K), mask=k < K)
    if scale_ptr is not None:
        block = tl.arange(0, SCALES)[None, :]
        there = block < num_scales
        scale = tl.load(scale_ptr + token[:, None] * stride_sm + block, mask=there)
        tl.store(out_scale_ptr + block * stride_sk + row[:, None], scale, mask=there)


@triton.jit
def scattered_rows_kernel(
    a_ptr, out_ptr, place_ptr,
    K, n_tokens, stride_am, stride_om,
    BLOCK_K: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr,
    scale_ptr=None, out_scale_ptr=None, stride_sm=0, stride_sk=0, num_scales=0, SCALES: tl.constexpr = 1,
):  # fmt: skip
    """Store out[place[i]] = A[i // ROWS_PER_TOKEN] for the rows i of n_tokens, each token by a program of its own.

    A token is read once for all its rows, and these are stored at once: nothing is loaded between stores, which might
    have to wait for them. Rows that no `place` names, which fill up, stay as they are. Scales are as for
    `rows_in_order_kernel`.
    """
    token = tl.minimum(tl.program_id(0), n_tokens - 1)
    row = tl.load(place_ptr + token * ROWS_PER_TOKEN + tl.arange(0, ROWS_PER_TOKEN))
    if scale_ptr is not None:
        block = tl.arange(0, SCALES)
        there = block < num_scales
        scale = tl.load(scale_ptr + token * stride_sm + block, mask=there)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(a_ptr + token.to(tl.int64) * stride_am + k, mask=k < K)
        to_ptrs = out_ptr + row.to(tl.int64)[:, None] * stride_om + k[None, :]
        tl.store(to_ptrs, tl.broadcast_to(x[None, :], (ROWS_PER_TOKEN, BLOCK_K)), mask=(k < K)[None, :])
    if scale_ptr is not None:
        to_ptrs = out_scale_ptr + block[None, :] * stride_sk + row[:, None]
        scales = tl.broadcast_to(scale[None, :], (ROWS_PER_TOKEN, SCALES))
        tl.store(to_ptrs, scales, mask=there[None, :])
