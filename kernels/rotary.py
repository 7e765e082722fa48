"""Rotary position embedding, in place."""

import triton
import triton.language as tl


@triton.jit
def rotary_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    token_stride,
    head_stride,
    n_tokens,
    n_heads,
    half_dim,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Rotate the first 2 * half_dim features of every head of x, (n_tokens, n_heads, head_dim).

    Feature i is paired with feature i + half_dim, as GPT-NeoX and Llama have it; what lies beyond
    stays as it is. `cos` and `sin` are (n_positions, half_dim) in fp32 and `positions` names the
    row of each token. Requires half_dim <= BLOCK_HALF. One program rotates BLOCK_HEADS heads of a
    token, so the angles are read once for all of them.
    """
    token = tl.program_id(0).to(tl.int64)
    tl.assume(token < n_tokens)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    cols = tl.arange(0, BLOCK_HALF)
    col_mask = cols < half_dim
    position = tl.load(positions_ptr + token)
    cos = tl.load(cos_ptr + position * half_dim + cols, mask=col_mask, other=1.0)[None, :]
    sin = tl.load(sin_ptr + position * half_dim + cols, mask=col_mask, other=0.0)[None, :]

    first_ptr = x_ptr + token * token_stride + heads[:, None] * head_stride + cols[None, :]
    second_ptr = first_ptr + half_dim
    mask = (heads < n_heads)[:, None] & col_mask[None, :]
    first = tl.load(first_ptr, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(second_ptr, mask=mask, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    tl.store(first_ptr, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(second_ptr, (second * cos + first * sin).to(dtype), mask=mask)
