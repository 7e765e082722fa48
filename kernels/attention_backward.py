"""The gradients of attention through descriptors: all in one pass, or a pass for each."""

import triton
import triton.language as tl
from attention_backward_stored import first_query, store_dscores


@triton.jit
def attention_delta_kernel(
    out_ptr,
    dout_ptr,
    delta_ptr,
    dq_ptr,
    n_rows,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):
    """Store the sum of dOut * Out of each row, and zeros to the fp32 sums of dQ, if there are any.

    Out, dOut and dQ are (n_rows, HEAD_DIM), rows of all heads. With PDL the next grid may start before.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    seen = rows < n_rows
    out = tl.load(out_ptr + at, mask=seen[:, None], other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + at, mask=seen[:, None], other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(out * dout, axis=1), mask=seen)
    if dq_ptr is not None:
        tl.store(dq_ptr + at, tl.zeros((BLOCK_M, HEAD_DIM), tl.float32), mask=seen[:, None])


@triton.jit
def _tile(n_heads, n_blocks, TOGETHER: tl.constexpr):
    """Return the head of this program, and its block: those of TOGETHER heads come one after the other.

    Causal blocks differ in length, and the longest of each head come first: one head at a time, those of the
    last head would begin when little else is left.
    """
    program = tl.program_id(0)
    first = program // (n_blocks * TOGETHER) * TOGETHER
    together = tl.minimum(TOGETHER, n_heads - first)
    place = program % (n_blocks * TOGETHER)
    return first + place % together, place // together


@triton.jit
def attention_backward_kernel(
    q,
    k,
    v,
    dout,
    lse_log2,
    delta,
    dq,
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
    NARROW: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_Q: tl.constexpr = 128,
):
    """Store dK and dV of BLOCK_N keys, and add their part of dQ / scale, or store the gradients of scores.

    Q, dOut and dQ (fp32) are (heads of all batches, n_queries, HEAD_DIM), K, V, dK and dV (heads /
    heads_per_kv_head, n_keys, HEAD_DIM). `lse_log2` and `delta` have a number for each query: the base-2
    logarithm of the sum of the powers of its scores, and the sum of dOut * Out. With CAUSAL the last
    query sees the last key. If NARROW, the weights of dS are rounded to the type of Q as those of dV are,
    and take half the registers. Blocks of TOGETHER heads take turns. The grid has a program for each KV head
    and BLOCK_N keys.

    If there is `dscores_ptr`, gradients of scores are stored there for `attention_backward_stored_kernel`, whose
    blocks have BLOCK_Q queries, and there is no `dq`.
    """
    n_blocks = tl.cdiv(n_keys, BLOCK_N)
    # Causal blocks further up are seen by more queries, and come first.
    kv_head, block = _tile(k.shape[0], n_blocks, TOGETHER)
    start_n = block * BLOCK_N
    keys = k.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
    values = v.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
    columns = start_n + tl.arange(0, BLOCK_N)
    dkeys = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    dvalues = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    first = 0
    if CAUSAL:
        block_q: tl.constexpr = BLOCK_M if dscores_ptr is None else BLOCK_Q
        first = first_query(start_n, n_keys - n_queries, block_q)
    n_steps = tl.cdiv(n_queries - first, BLOCK_M)
    for step in range(heads_per_kv_head * n_steps):
        head = kv_head * heads_per_kv_head + step // n_steps
        start = first + step % n_steps * BLOCK_M
        rows = start + tl.arange(0, BLOCK_M)
        queries = q.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        row_lse = lse_log2.load([head, start]).reshape(BLOCK_M)
        douts = dout.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        row_delta = delta.load([head, start]).reshape(BLOCK_M)
        scores = tl.dot(keys, queries.T) * scale_log2
        if CAUSAL:
            seen = rows + (n_keys - n_queries)
            scores = tl.where(columns[:, None] <= seen[None, :], scores, float("-inf"))
        power = tl.exp2(scores - row_lse[None, :])
        if NARROW:
            power = power.to(queries.dtype)
        dvalues = tl.dot(power.to(douts.dtype), douts, dvalues)
        dpower = tl.dot(values, douts.T)
        dscores = (power.to(tl.float32) * (dpower - row_delta[None, :])).to(queries.dtype)
        if dscores_ptr is not None:
            at = first + step * BLOCK_M
            store_dscores(
                dscores_ptr, dscores, kv_head, columns, at, heads_per_kv_head, n_queries, n_keys
            )
            dkeys = tl.dot(dscores, queries, dkeys)
        else:
            dqueries = tl.dot(dscores.T, keys)
            dkeys = tl.dot(dscores, queries, dkeys)
            dq.atomic_add([head, start, 0], dqueries.reshape(1, BLOCK_M, HEAD_DIM))
    dk.store([kv_head, start_n, 0], (dkeys * scale).to(dk.dtype).reshape(1, BLOCK_N, HEAD_DIM))
    dv.store([kv_head, start_n, 0], dvalues.to(dv.dtype).reshape(1, BLOCK_N, HEAD_DIM))


@triton.jit
def attention_backward_queries_kernel(
    q,
    k,
    v,
    dout,
    lse_log2,
    delta,
    dq,
    scale,
    scale_log2,
    heads_per_kv_head,
    n_queries,
    n_keys,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    TOGETHER: tl.constexpr,
    WAITS_LATE: tl.constexpr = False,  # noqa: FBT002 - a constant
):
    """Store dQ (bf16) of BLOCK_M queries of a head; the same bits in every run.

    Arguments are those of `attention_backward_kernel`. The grid has a program for each head of Q and
    BLOCK_M queries. If it WAITS_LATE, it waits for the grid before it, which by then has waited for `delta`
    and let it start, when dQ is stored: programs fill multiprocessors that the last ones of that grid leave idle.
    """
    n_blocks = tl.cdiv(n_queries, BLOCK_M)
    head, block = _tile(q.shape[0], n_blocks, TOGETHER)
    kv_head = head // heads_per_kv_head
    start_m = block * BLOCK_M
    if CAUSAL:
        # Blocks further down see more keys, and come first.
        start_m = (n_blocks - 1) * BLOCK_M - start_m
    queries = q.load([head, start_m, 0]).reshape(BLOCK_M, HEAD_DIM)
    douts = dout.load([head, start_m, 0]).reshape(BLOCK_M, HEAD_DIM)
    row_lse = lse_log2.load([head, start_m]).reshape(BLOCK_M)
    row_delta = delta.load([head, start_m]).reshape(BLOCK_M)
    seen = start_m + tl.arange(0, BLOCK_M) + (n_keys - n_queries)
    dqueries = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    last = n_keys
    if CAUSAL:
        last = tl.minimum(n_keys, start_m + BLOCK_M + (n_keys - n_queries))
    for start in range(0, last, BLOCK_N):
        keys = k.load([kv_head, start, 0]).reshape(BLOCK_N, HEAD_DIM)
        scores = tl.dot(queries, keys.T) * scale_log2
        if CAUSAL:
            columns = start + tl.arange(0, BLOCK_N)
            scores = tl.where(columns[None, :] <= seen[:, None], scores, float("-inf"))
        power = tl.exp2(scores - row_lse[:, None])
        values = v.load([kv_head, start, 0]).reshape(BLOCK_N, HEAD_DIM)
        dpower = tl.dot(douts, values.T)
        dscores = (power * (dpower - row_delta[:, None])).to(keys.dtype)
        dqueries = tl.dot(dscores, keys, dqueries)
    if WAITS_LATE:
        tl.extra.cuda.gdc_wait()
    dq.store([head, start_m, 0], (dqueries * scale).to(dq.dtype).reshape(1, BLOCK_M, HEAD_DIM))


@triton.jit
def attention_backward_keys_kernel(
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
    TOGETHER: tl.constexpr,
    OF_KEYS: tl.constexpr,
    OF_VALUES: tl.constexpr,
):
    """Store dK if OF_KEYS and dV if OF_VALUES of BLOCK_N keys; the same bits in every run.

    Arguments are those of `attention_backward_kernel`. Where both accumulators take too many registers, as
    with heads of 256, a launch for each is faster, although scores are computed again. The grid has a
    program for each KV head and BLOCK_N keys.
    """
    n_blocks = tl.cdiv(n_keys, BLOCK_N)
    # Causal blocks further up are seen by more queries, and come first.
    kv_head, block = _tile(k.shape[0], n_blocks, TOGETHER)
    start_n = block * BLOCK_N
    keys = k.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
    if OF_KEYS:
        values = v.load([kv_head, start_n, 0]).reshape(BLOCK_N, HEAD_DIM)
    columns = start_n + tl.arange(0, BLOCK_N)
    dkeys = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    dvalues = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    first = 0
    if CAUSAL:
        first = tl.maximum(0, start_n - (n_keys - n_queries)) // BLOCK_M * BLOCK_M
    n_steps = tl.cdiv(n_queries - first, BLOCK_M)
    for step in range(heads_per_kv_head * n_steps):
        head = kv_head * heads_per_kv_head + step // n_steps
        # The last queries first: they see all blocks of keys, whose programs so load the same at a time.
        start = first + (n_steps - 1 - step % n_steps) * BLOCK_M
        queries = q.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        scores = tl.dot(keys, queries.T) * scale_log2
        row_lse = lse_log2.load([head, start]).reshape(BLOCK_M)
        if CAUSAL:
            seen = start + tl.arange(0, BLOCK_M) + (n_keys - n_queries)
            scores = tl.where(columns[:, None] <= seen[None, :], scores, float("-inf"))
        power = tl.exp2(scores - row_lse[None, :])
        douts = dout.load([head, start, 0]).reshape(BLOCK_M, HEAD_DIM)
        if OF_VALUES:
            dvalues = tl.dot(power.to(douts.dtype), douts, dvalues)
        if OF_KEYS:
            dpower = tl.dot(values, douts.T)
            row_delta = delta.load([head, start]).reshape(BLOCK_M)
            dscores = (power * (dpower - row_delta[None, :])).to(queries.dtype)
            dkeys = tl.dot(dscores, queries, dkeys)
    if OF_KEYS:
        dk.store([kv_head, start_n, 0], (dkeys * scale).to(dk.dtype).reshape(1, BLOCK_N, HEAD_DIM))
    if OF_VALUES:
        dv.store([kv_head, start_n, 0], dvalues.to(dv.dtype).reshape(1, BLOCK_N, HEAD_DIM))


@triton.jit
def scale_rows_kernel(sums_ptr, out_ptr, scale, n_elems, BLOCK: tl.constexpr):
    """Store fp32 sums times a scale, as the type of the result."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    seen = at < n_elems
    sums = tl.load(sums_ptr + at, mask=seen, other=0.0)
    tl.store(out_ptr + at, (sums * scale).to(out_ptr.dtype.element_ty), mask=seen)
