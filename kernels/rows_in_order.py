"""Rows of tokens in the order of the experts that they go to, for layers that read them by tensor copies."""

import triton
import triton.language as tl


@triton.jit
def store_scales(
    scale_ptr, out_scale_ptr, token, row, stride_sm, stride_sk, num_scales, SCALES: tl.constexpr
):
    """Store the scales of tokens to columns of the result, each to that of its row."""
    block = tl.arange(0, SCALES)[None, :]
    there = block < num_scales
    scale = tl.load(scale_ptr + token[:, None] * stride_sm + block, mask=there)
    tl.store(out_scale_ptr + block * stride_sk + row[:, None], scale, mask=there)


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
        store_scales(scale_ptr, out_scale_ptr, token, row, stride_sm, stride_sk, num_scales, SCALES)


@triton.jit
def order_scales(
    sorted_ptr, scale_ptr, out_scale_ptr, first, n_rows, stride_sm, stride_sk, num_scales,
    ROWS: tl.constexpr, SCALES: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr,
):  # fmt: skip
    """Store the scales of ROWS rows of the result from `first` on, unless all of them fill up."""
    row = first + tl.arange(0, ROWS)
    number = tl.load(sorted_ptr + row)
    if tl.min(number) < n_rows:
        token = tl.minimum(number, n_rows - 1) // ROWS_PER_TOKEN
        store_scales(scale_ptr, out_scale_ptr, token, row, stride_sm, stride_sk, num_scales, SCALES)


@triton.jit
def scatter_token(
    a_ptr, out_ptr, place_ptr, token, K, stride_am, stride_om,
    BLOCK_K: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr,
):  # fmt: skip
    """Store a token wherever its rows are to stand, all of them at once."""
    row = tl.load(place_ptr + token * ROWS_PER_TOKEN + tl.arange(0, ROWS_PER_TOKEN))
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(a_ptr + token.to(tl.int64) * stride_am + k, mask=k < K)
        to_ptrs = out_ptr + row.to(tl.int64)[:, None] * stride_om + k[None, :]
        tl.store(
            to_ptrs, tl.broadcast_to(x[None, :], (ROWS_PER_TOKEN, BLOCK_K)), mask=(k < K)[None, :]
        )


@triton.jit
def scattered_rows_kernel(
    a_ptr, out_ptr, place_ptr,
    K, n_tokens, stride_am, stride_om,
    BLOCK_K: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr,
    sorted_ptr=None, scale_ptr=None, out_scale_ptr=None, stride_sm=0, stride_sk=0, num_scales=0, n_rows=0, num_out=0,
    SCALES: tl.constexpr = 1, SCALES_M: tl.constexpr = 32,
):  # fmt: skip
    """Store out[place[i]] = A[i // ROWS_PER_TOKEN] for the rows i of n_tokens, each token by a program of its own.

    A token is read once for all its rows. Rows that no `place` names, which fill up, stay as they are.

    With `scale`, its scales go to columns of `out_scale`, as those of `rows_in_order_kernel` do. Those of one token lie
    4 bytes each, anywhere; so the first num_out / SCALES_M programs store them instead, of SCALES_M rows of the result
    that `sorted` names each. num_out is a multiple of SCALES_M.
    """
    if scale_ptr is None:
        token = tl.minimum(tl.program_id(0), n_tokens - 1)
        scatter_token(
            a_ptr, out_ptr, place_ptr, token, K, stride_am, stride_om, BLOCK_K, ROWS_PER_TOKEN
        )
    else:
        index = tl.program_id(0) - num_out // SCALES_M
        if index < 0:
            order_scales(
                sorted_ptr, scale_ptr, out_scale_ptr, tl.program_id(0) * SCALES_M,
                n_rows, stride_sm, stride_sk, num_scales, SCALES_M, SCALES, ROWS_PER_TOKEN,
            )  # fmt: skip
        else:
            token = tl.minimum(index, n_tokens - 1)
            scatter_token(
                a_ptr, out_ptr, place_ptr, token, K, stride_am, stride_om, BLOCK_K, ROWS_PER_TOKEN
            )
