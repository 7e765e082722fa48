"""The gradients of keys and of values, one by each CTA of a cluster of two."""

import triton
import triton.language as tl
from attention_backward_stored import first_query, store_dscores

from aotc.language import cluster_permute, cluster_rank


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
    BLOCK_Q: tl.constexpr = 128,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):
    """Store dK and dV of BLOCK_N keys by a cluster of two CTAs; the same bits in every run.

    Arguments are those of `attention_backward_kernel`. Where both accumulators take too many registers for
    one CTA, as with heads of 256, the first CTA has the scores and dV, the second one the gradients of
    weights and dK, and is given the weights. With PDL it waits for the grid before it, and lets the next one
    start, before it loads anything. The grid has a cluster for each KV head and BLOCK_N keys.

    If there is `dscores_ptr`, gradients of scores are stored there for `attention_backward_stored_kernel`, whose
    blocks have BLOCK_Q queries.
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
        block_q: tl.constexpr = BLOCK_M if dscores_ptr is None else BLOCK_Q
        first = first_query(start_n, n_keys - n_queries, block_q)
    n_steps = tl.cdiv(n_queries - first, BLOCK_M)
    last_step = heads_per_kv_head * n_steps - 1
    for step in range(heads_per_kv_head * n_steps):
        # The last queries first: they see all blocks of keys, whose programs so load the same at a time.
        back = last_step - step
        head = kv_head * heads_per_kv_head + back // n_steps
        start = first + back % n_steps * BLOCK_M
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
                at = first + back * BLOCK_M
                store_dscores(
                    dscores_ptr, weights, kv_head, columns, at, heads_per_kv_head, n_queries, n_keys
                )
        outer = outer_of.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        gradient = tl.dot(weights, outer, gradient)
    if of_values:
        dv.store([kv_head, start_n, 0], gradient.to(dv.dtype).reshape(1, BLOCK_N, HEAD_DIM))
    else:
        gradient *= scale
        dk.store([kv_head, start_n, 0], gradient.to(dk.dtype).reshape(1, BLOCK_N, HEAD_DIM))
