"""Gradients of scores that are stored, 2 bytes for each, and the gradients of queries by one dot of them."""

import triton
import triton.language as tl

STORED_BLOCK_M, STORED_BLOCK_N = tl.constexpr(64), tl.constexpr(128)
"""Queries and keys of the blocks in which gradients of scores are computed."""


@triton.jit
def first_query(start_n, offset, BLOCK_Q: tl.constexpr):
    """Return the first of the queries that see a key from `start_n` on, of a whole block of BLOCK_Q."""
    return tl.maximum(0, start_n - offset) // BLOCK_Q * BLOCK_Q


@triton.jit
def store_dscores(dscores_ptr, tile, kv_head, keys, start, heads_per_kv_head, n_queries, n_keys):
    """Store gradients of the scores of some keys and a block of queries, in columns from `start` on.

    They are stored as (KV heads, n_keys, heads_per_kv_head * n_queries rounded up to whole blocks). Of heads that
    share keys each has the columns from the first query on that sees a block of keys, one head after the other.
    Within 32 queries columns are in the order in which a thread holds them after a dot, so that it stores 8 side
    by side, and nothing moves between threads before.
    """
    block_m: tl.constexpr = tile.shape[1]
    row_elems = heads_per_kv_head * tl.cdiv(n_queries, block_m) * block_m
    parts = tile.reshape(tile.shape[0], block_m // 32, 4, 4, 2).permute(0, 1, 3, 2, 4)
    key_at = (kv_head * n_keys + keys).to(tl.int64) * row_elems
    at = key_at[:, None] + tl.arange(0, block_m)[None, :]
    held = parts.reshape(tile.shape[0], block_m)
    tl.store(dscores_ptr + start + at, held, mask=(keys < n_keys)[:, None])


@triton.jit
def attention_backward_stored_kernel(
    dscores,
    k,
    dq,
    scale,
    heads_per_kv_head,
    n_queries,
    n_keys,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    TOGETHER: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):
    """Store dQ of BLOCK_M queries of a head by stored gradients of scores; the same bits in every run.

    `dscores` is what kernels for dK and dV stored with BLOCK_Q = BLOCK_M. Blocks of TOGETHER heads take
    turns. With PDL it waits for the grid before it, and lets the next one start. The grid has a program for
    each head and BLOCK_M queries.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    n_blocks = tl.cdiv(n_queries, BLOCK_M)
    program = tl.program_id(0)
    first_head = program // (n_blocks * TOGETHER) * TOGETHER
    together = tl.minimum(TOGETHER, dq.shape[0] - first_head)
    place = program % (n_blocks * TOGETHER)
    head, start_m = first_head + place % together, place // together * BLOCK_M
    kv_head, member = head // heads_per_kv_head, head % heads_per_kv_head
    last = n_keys
    if CAUSAL:
        # Blocks further down see more keys, and come first.
        start_m = (n_blocks - 1) * BLOCK_M - start_m
        last = tl.minimum(n_keys, start_m + BLOCK_M + (n_keys - n_queries))
    n_rows = tl.cdiv(n_queries, STORED_BLOCK_M) * STORED_BLOCK_M
    dqueries = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    for start_n in range(0, last, BLOCK_N):
        first = 0
        if CAUSAL:
            block = start_n // STORED_BLOCK_N * STORED_BLOCK_N
            first = first_query(block, n_keys - n_queries, BLOCK_M)
        column = member * (n_rows - first) + start_m
        dscores_of_keys = dscores.load([kv_head, start_n, column]).reshape(BLOCK_N, BLOCK_M)
        keys = k.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
        dqueries = tl.dot(dscores_of_keys.T, keys, dqueries)
    dqueries = (dqueries * scale).to(dq.dtype)
    # Rows are in the order in which columns were stored.
    parts = dqueries.reshape(BLOCK_M // 32, 4, 4, 2, HEAD_DIM).permute(0, 2, 1, 3, 4)
    dq.store([head, start_m, 0], parts.reshape(1, BLOCK_M, HEAD_DIM))
