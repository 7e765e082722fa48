"""Decode of multi-head latent attention: every head attends to one latent vector a token.

The cache is (pages, PAGE, LATENT + ROPE): a latent vector, which is key and value of all heads, and
a rotated part, which is only key. Queries have absorbed the up-projection of keys, and what comes out
is (batch, heads, LATENT), for that of values to be applied to. Pages, splits and the kernel that
combines them are those of paged_decode.py; part and result are of LATENT features, and a split begins
at each multiple of `pages_per_split`. The latent tile of an iteration is loaded once, for both dots.
"""

import triton
import triton.language as tl
from paged_decode import LOWEST


@triton.jit
def mla_decode_kernel(
    q_latent, q_rope, latent, rope, table_ptr, lengths_ptr, part_ptr, lse_ptr,
    scale_log2,
    n_sequences,
    n_heads, max_pages, pages_per_split,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):  # fmt: skip
    """Store the parts of each split, `part` being (batch, n_heads, splits, LATENT), `lse` likewise.

    The descriptors are of the two parts of queries, (batch, n_heads, …), and of the cache, (pages,
    PAGE, …). An iteration takes BLOCK_N tokens of one page.
    """
    tl.static_assert(PAGE % BLOCK_N == 0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    first_head, sequence = tl.program_id(0) * BLOCK_H, tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    first = split * pages_per_split * PAGE
    last = min(first + pages_per_split * PAGE, length)
    if first < last:
        queries = q_latent.load([sequence, first_head, 0]).reshape(BLOCK_H, LATENT)
        rotated = q_rope.load([sequence, first_head, 0]).reshape(BLOCK_H, ROPE)
        row_max = tl.full((BLOCK_H,), LOWEST, tl.float32)
        row_sum = tl.zeros((BLOCK_H,), tl.float32)
        acc = tl.zeros((BLOCK_H, LATENT), tl.float32)
        pages = table_ptr + sequence.to(tl.int64) * max_pages
        for start in range(first, last, BLOCK_N):
            page = tl.load(pages + start // PAGE)
            tile = latent.load([page, start % PAGE, 0]).reshape(BLOCK_N, LATENT)
            keys = rope.load([page, start % PAGE, 0]).reshape(BLOCK_N, ROPE)
            scores = tl.dot(queries, tile.T)
            scores = tl.dot(rotated, keys.T, scores) * scale_log2
            token = start + tl.arange(0, BLOCK_N)
            scores = tl.where(token[None, :] < last, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, axis=1))
            power = tl.exp2(scores - new_max[:, None])
            rescale = tl.exp2(row_max - new_max)
            row_sum = row_sum * rescale + tl.sum(power, axis=1)
            acc = tl.dot(power.to(tile.dtype), tile, acc * rescale[:, None])
            row_max = new_max
        h = first_head + tl.arange(0, BLOCK_H)
        real = h < n_heads
        rows = (sequence * n_heads + h).to(tl.int64) * tl.cdiv(max_pages, pages_per_split) + split
        part_ptrs = part_ptr + rows[:, None] * LATENT + tl.arange(0, LATENT)[None, :]
        tl.store(part_ptrs, acc / row_sum[:, None], mask=real[:, None])
        tl.store(lse_ptr + rows, row_max + tl.log2(row_sum), mask=real)
