"""The gradients of keys and of values, one by each CTA of a cluster of two, and of queries by what these leave."""

import triton
import triton.language as tl

from aotc.language import cluster_permute, cluster_rank

STORED_BLOCK_M, STORED_BLOCK_N = tl.constexpr(64), tl.constexpr(128)
"""Blocks of queries and keys in which gradients of scores are stored for the kernel for dQ."""


@triton.jit
def _as_held(tile):
    """Return a tile with its columns in the order in which a thread holds those of a dot, 8 side by side.

    What is stored so takes as few instructions as there are, and nothing moves between threads before.
    """
    parts = tile.reshape(tile.shape[0], tile.shape[1] // 32, 4, 4, 2).permute(0, 1, 3, 2, 4)
    return parts.reshape(tile.shape[0], tile.shape[1])


@triton.jit
def _first_query(start_n, offset, BLOCK_Q: tl.constexpr):
    """Return the first of the queries that see keys from `start_n` on, of a whole block of BLOCK_Q."""
    return tl.maximum(0, start_n - offset) // BLOCK_Q * BLOCK_Q


@triton.jit
def attention_backward_pair_kernel(
    q,
    k,
    v,
    dout,
    lse_log2,
    delta,
    dscores_ptr,
    dk,
    dv,
    scale,
    scale_log2,
    heads_per_kv_head,
    n_queries,
    n_keys,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr = 64,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):
    """Store dK and dV of BLOCK_N keys by a cluster of two CTAs; the same bits in every run.

    Arguments are those of `attention_backward_kernel`. Where both accumulators take too many registers for
    one CTA, as with heads of 256, the first CTA has the scores and dV, the second one the gradients of
    weights and dK, and is given the weights. With PDL it waits for the grid before it, and lets the next one
    start, before it loads anything. The grid has a cluster for each KV head and BLOCK_N keys.

    If there is `dscores_ptr`, the gradients of scores are stored there, in the type of Q, for
    `attention_backward_stored_kernel`, which has blocks of BLOCK_Q queries: (KV heads, n_keys,
    heads_per_kv_head * n_queries, rounded up to a multiple of BLOCK_M), 2 bytes for each score.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    n_blocks = tl.cdiv(n_keys, BLOCK_N)
    kv_head = tl.program_id(0) // n_blocks
    # Causal blocks further up are seen by more queries, and come first.
    start_n = tl.program_id(0) % n_blocks * BLOCK_N
    of_values = cluster_rank() == 0
    # Both CTAs do: x = block @ inner.T, and of what becomes of it: gradient += weights @ outer.
    block_of = k if of_values else v
    inner_of = q if of_values else dout
    outer_of = dout if of_values else q
    rows_of = lse_log2 if of_values else delta
    factor = 1.0
    if of_values:
        factor = scale_log2
    block = block_of.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
    columns = start_n + tl.arange(0, BLOCK_N)
    gradient = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    first = 0
    if CAUSAL:
        first = _first_query(start_n, n_keys - n_queries, BLOCK_Q)
    n_steps = tl.cdiv(n_queries - first, BLOCK_M)
    n_stored = heads_per_kv_head * tl.cdiv(n_queries, BLOCK_M) * BLOCK_M
    for step in range(heads_per_kv_head * n_steps):
        head = kv_head * heads_per_kv_head + step // n_steps
        # The last queries first: they see all blocks of keys, whose programs so load the same at a time.
        start = first + (n_steps - 1 - step % n_steps) * BLOCK_M
        inner = inner_of.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        row = rows_of.load([head, start]).reshape(BLOCK_M)
        x = tl.dot(block, inner.T) * factor
        if CAUSAL:
            seen = start + tl.arange(0, BLOCK_M) + (n_keys - n_queries)
            # Not -inf, which a weight of 0 would make a NaN.
            x = tl.where(columns[:, None] <= seen[None, :], x, -1.0e30)
        x -= row[None, :]
        weights = x
        if of_values:
            weights = tl.exp2(x)
        # The first CTA gives to the second, and is given nothing.
        given = cluster_permute(weights.to(q.dtype), (1, None))
        if not of_values:
            weights *= given.to(tl.float32)
        weights = weights.to(q.dtype)
        if dscores_ptr is not None:  # noqa: SIM102 - known when it is compiled
            if not of_values:
                # From the last column on, so that steps are known to store to different places.
                to = dscores_ptr + (n_stored - (step + 1) * BLOCK_M)
                key_at = (kv_head * n_keys + columns).to(tl.int64) * n_stored
                at = key_at[:, None] + tl.arange(0, BLOCK_M)[None, :]
                tl.store(to + at, _as_held(weights), mask=(columns < n_keys)[:, None])
        outer = outer_of.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        gradient = tl.dot(weights, outer, gradient)
    if of_values:
        dv.store([kv_head, start_n, 0], gradient.to(dv.dtype).reshape(1, BLOCK_N, HEAD_DIM))
    else:
        gradient *= scale
        dk.store([kv_head, start_n, 0], gradient.to(dk.dtype).reshape(1, BLOCK_N, HEAD_DIM))


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
    """Store dQ of BLOCK_M queries of a head by the gradients of scores that are stored; the same bits in every run.

    `dscores` is what `attention_backward_pair_kernel` stored with BLOCK_Q = BLOCK_M. Blocks of TOGETHER heads take
    turns. With PDL it waits for the grid before it, and lets the next one start. The grid has a program for each head and BLOCK_M queries.
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
            first = _first_query(block, n_keys - n_queries, BLOCK_M)
        # Heads that share keys are stored from the last one to the first, each from `first` on.
        column = (heads_per_kv_head - 1) * n_rows - member * (n_rows - first) + start_m
        dscores_of_keys = dscores.load([kv_head, start_n, column]).reshape(BLOCK_N, BLOCK_M)
        keys = k.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
        dqueries = tl.dot(dscores_of_keys.T, keys, dqueries)
    dqueries = (dqueries * scale).to(dq.dtype)
    # Rows are in the order in which columns were stored.
    parts = dqueries.reshape(BLOCK_M // 32, 4, 4, 2, HEAD_DIM).permute(0, 2, 1, 3, 4)
    dq.store([head, start_m, 0], parts.reshape(1, BLOCK_M, HEAD_DIM))
