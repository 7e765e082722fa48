"""The gradients of keys and of values, one by each CTA of a cluster of two."""

import triton
import triton.language as tl

from aotc.language import cluster_permute, cluster_rank


@triton.jit
def attention_backward_pair_kernel(
    q,
    k,
    v,
    dout,
    lse_log2,
    delta,
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
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):
    """Store dK and dV of BLOCK_N keys by a cluster of two CTAs; the same bits in every run.

    Arguments are those of `attention_backward_kernel`. Where both accumulators take too many registers for
    one CTA, as with heads of 256, the first CTA has K, Q, the weights and dK, the second one V, dOut, the
    gradients of weights and dV. They exchange weights and gradients of weights, and each reads one tile of
    each block of queries. With PDL it waits for the grid before it, and lets the next one start, before it
    loads anything. The grid has a cluster for each KV head and BLOCK_N keys.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    n_blocks = tl.cdiv(n_keys, BLOCK_N)
    # Causal blocks further up are seen by more queries, and come first.
    kv_head = tl.program_id(0) // n_blocks
    start_n = tl.program_id(0) % n_blocks * BLOCK_N
    of_keys = cluster_rank() == 0
    # Both CTAs do: x = block @ tile.T, and of what becomes of it: gradient += weights @ tile.
    block_of = k if of_keys else v
    tile_of = q if of_keys else dout
    rows_of = lse_log2 if of_keys else delta
    factor = 1.0
    if of_keys:
        factor = scale_log2
    block = block_of.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
    columns = start_n + tl.arange(0, BLOCK_N)
    gradient = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    first = 0
    if CAUSAL:
        first = tl.maximum(0, start_n - (n_keys - n_queries)) // BLOCK_M * BLOCK_M
    n_steps = tl.cdiv(n_queries - first, BLOCK_M)
    # The last queries first: they see all blocks of keys, whose programs so load the same at a time.
    head, last = kv_head * heads_per_kv_head, first + (n_steps - 1) * BLOCK_M
    start = last
    for _ in range(heads_per_kv_head * n_steps):
        tile = tile_of.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        row = rows_of.load([head, start]).reshape(BLOCK_M)
        x = tl.dot(block, tile.T) * factor - row[None, :]
        if CAUSAL:
            seen = start + tl.arange(0, BLOCK_M) + (n_keys - n_queries)
            # A weight of 0; -inf would make a NaN of it in the other CTA.
            x = tl.where(columns[:, None] <= seen[None, :], x, -3.0e4)
        if of_keys:
            x = tl.exp2(x)
        own = x.to(q.dtype)
        given = cluster_permute(own, (1, 0))
        if not of_keys:
            own = tl.full((BLOCK_N, BLOCK_M), 1.0, q.dtype)
        gradient = tl.dot(given * own, tile, gradient)
        is_last = start == first
        start = tl.where(is_last, last, start - BLOCK_M)
        head = tl.where(is_last, head + 1, head)
    if of_keys:
        gradient *= scale
        dk.store([kv_head, start_n, 0], gradient.to(dk.dtype).reshape(1, BLOCK_N, HEAD_DIM))
    else:
        dv.store([kv_head, start_n, 0], gradient.to(dv.dtype).reshape(1, BLOCK_N, HEAD_DIM))
