"""Attention of one new token a sequence over a paged cache, in one launch, split among the CTAs of a cluster.

Cache, block table and lengths are those of paged_decode.py. Each CTA takes as many pages of the sequence as the others,
and gives its part of the result to them through distributed shared memory: every CTA gets some features of all
parts, weighs them and stores them. So a sequence has up to 16 splits, `num_ctas` of the configuration; parts need no
memory, and nothing is counted. Choose `num_ctas` so that the clusters of all sequences fill half of the GPU or more.
Shares are of the sequence's own pages, or with BY_TABLE of a row of the block table: then a CTA finds its pages without
waiting for the length, but has none where the sequence is short.

HEADS query heads of a key head are rows of a tile of BLOCK_H, all or half of it. With GROUPS, one for each warp, every
part of a page has maxima and sums of its own, and warps wait for each other only at the end.

With PDL a launch starts while the one before it still runs, and waits for that before it loads queries, keys or values.
PREFETCH tokens of each CTA are brought to the L2 cache before. With GROUPS, the next launch may start when AHEAD tokens
are left, so that what it brings does not delay what this one waits for.
"""

import triton
import triton.language as tl
from paged_decode import LOWEST, _heads, _pages, _prefetch, attend

from aotc.language import cluster_rank, cluster_size, cluster_transpose


@triton.jit
def _attend_by_groups(
    queries, k, v, table_ptr, pages, kv_head, start, end, max_pages, scale_log2,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, HEADS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Return what `attend` does, of the first HEADS rows.

    Each of GROUPS parts of a box of tokens has a maximum and sums of its own. Where each is a warp's, warps wait for
    each other only at the end.
    """
    ROWS: tl.constexpr = k.block_shape[2]
    BLOCK_H: tl.constexpr = queries.shape[0]
    HEAD_DIM: tl.constexpr = queries.shape[1]
    SHARE: tl.constexpr = ROWS // GROUPS
    queries = queries[None, :, :].broadcast_to(GROUPS, BLOCK_H, HEAD_DIM)
    maxima = tl.full((GROUPS, BLOCK_H), LOWEST, tl.float32)
    sums = tl.zeros((GROUPS, BLOCK_H), tl.float32)
    acc = tl.zeros((GROUPS, BLOCK_H, HEAD_DIM), tl.float32)
    places = tl.arange(0, GROUPS)[:, None] * SHARE + tl.arange(0, SHARE)[None, :]
    for token in range(start, end, BLOCK_N):
        if AHEAD > 0:  # noqa: SIM102 - a constant
            if token + AHEAD >= end:
                tl.extra.cuda.gdc_launch_dependents()
        following = _pages(
            table_ptr, token + BLOCK_N, end, max_pages, PAGE, ROWS, BLOCK_N // ROWS
        )  # fmt: skip
        for i in tl.static_range(BLOCK_N // ROWS):
            at = [pages[i], kv_head, (token + i * ROWS) % PAGE, 0]
            keys = k.load(at).reshape(GROUPS, SHARE, HEAD_DIM).to(queries.dtype)
            scores = tl.dot(queries, keys.permute(0, 2, 1)) * scale_log2
            seen = (token + i * ROWS + places < end)[:, None, :]
            scores = tl.where(seen, scores, float("-inf"))
            new_maxima = tl.maximum(maxima, tl.max(scores, axis=2))
            rescale = tl.exp2(maxima - new_maxima)
            power = tl.exp2(scores - new_maxima[:, :, None])
            sums = sums * rescale + tl.sum(power, axis=2)
            values = v.load(at).reshape(GROUPS, SHARE, HEAD_DIM).to(queries.dtype)
            acc = tl.dot(power.to(queries.dtype), values, acc * rescale[:, :, None])
            maxima = new_maxima
        pages = following
    if HEADS < BLOCK_H:
        maxima, sums = _half(maxima), _half(sums)
        acc, _ = tl.split(acc.reshape(GROUPS, 2, HEADS, HEAD_DIM).permute(0, 2, 3, 1))
    row_max = tl.max(maxima, axis=0)
    factor = tl.exp2(maxima - row_max[None, :])
    return row_max, tl.sum(sums * factor, axis=0), tl.sum(acc * factor[:, :, None], axis=0)


@triton.jit
def _half(x):
    """Return the first half of each row."""
    kept, _ = tl.split(x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1))
    return kept


@triton.jit
def paged_decode_cluster_kernel(
    q, k, v, table_ptr, lengths_ptr, out_ptr,
    scale_log2,
    n_sequences,
    n_heads, n_kv_heads, max_pages,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
    k_scale_ptr=None, v_scale_ptr=None,
    PREFETCH: tl.constexpr = 0, GROUPS: tl.constexpr = 1, HEADS: tl.constexpr = 16,
    BY_TABLE: tl.constexpr = False,  # noqa: FBT002 - a constant
    AHEAD: tl.constexpr = 0,
):  # fmt: skip
    """Store the result, (batch, n_heads, HEAD_DIM), of tokens that are copied page by page.

    Q is (batch * n_kv_heads, n_heads / n_kv_heads, HEAD_DIM): beyond the heads there are zeros. The grid counts
    clusters, one for each HEADS heads of a key head and each sequence. A sequence of no tokens gets zeros.
    `scale_log2` is the scale of scores times log2(e).
    """
    ROWS: tl.constexpr = k.block_shape[2]
    SIZE: tl.constexpr = cluster_size()
    COLUMNS: tl.constexpr = HEAD_DIM // SIZE
    rank = cluster_rank()
    kv_head, first_head = _heads(n_heads, n_kv_heads, HEADS)
    sequence = tl.program_id(1)
    length = tl.load(lengths_ptr + sequence)
    share = tl.cdiv(max_pages if BY_TABLE else tl.cdiv(length, PAGE), SIZE) * PAGE
    first = rank * share
    last = min(first + share, length)
    table_ptr += sequence.to(tl.int64) * max_pages
    pages = _pages(table_ptr, first, last, max_pages, PAGE, ROWS, BLOCK_N // ROWS)
    if PREFETCH > 0:
        _prefetch(k, v, table_ptr, kv_head, first, last, max_pages, PAGE, PREFETCH)
    if PDL:
        tl.extra.cuda.gdc_wait()
        if AHEAD == 0:
            tl.extra.cuda.gdc_launch_dependents()
    if k_scale_ptr is not None:
        scale_log2 *= tl.load(k_scale_ptr + kv_head)
    queries = q.load([sequence * n_kv_heads + kv_head, first_head, 0])
    queries = queries.reshape(BLOCK_H, HEAD_DIM)
    if GROUPS > 1:
        row_max, row_sum, acc = _attend_by_groups(
            queries, k, v, table_ptr, pages, kv_head, first, last, max_pages, scale_log2,
            PAGE, BLOCK_N, GROUPS, HEADS, AHEAD if PDL else 0,
        )  # fmt: skip
    else:
        row_max, row_sum, acc = attend(
            queries, k, v, table_ptr, pages, kv_head, first, last, max_pages, scale_log2,
            PAGE, BLOCK_N,
        )  # fmt: skip
    maxima = row_max[None, :].broadcast_to(SIZE, HEADS)
    sums = row_sum[None, :].broadcast_to(SIZE, HEADS)
    parts = acc.reshape(HEADS, SIZE, COLUMNS).permute(1, 0, 2)
    maxima = cluster_transpose(maxima)
    sums = cluster_transpose(sums)
    parts = cluster_transpose(parts)
    weight = tl.exp2(maxima - tl.max(maxima, axis=0)[None, :])
    total = tl.sum(sums * weight, axis=0)
    factor = 1.0 / tl.where(total > 0.0, total, 1.0)
    if v_scale_ptr is not None:
        factor *= tl.load(v_scale_ptr + kv_head)
    out = tl.sum(parts * weight[:, :, None], axis=0) * factor[:, None]
    h, d = first_head + tl.arange(0, HEADS), rank * COLUMNS + tl.arange(0, COLUMNS)
    head = sequence * n_heads + kv_head * (n_heads // n_kv_heads) + h
    out_ptrs = out_ptr + head.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
    real = h < n_heads // n_kv_heads
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=real[:, None])
