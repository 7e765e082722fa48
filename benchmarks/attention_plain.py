"""Flash attention as a Triton user writes it: forward through descriptors, backward through pointers."""

import triton
import triton.language as tl


@triton.jit
def _attend(
    q, k, v, acc, row_max, row_sum, base, rows, lo, hi, scale_log2,
    MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take the keys from `lo` to `hi` into the running maximum, sum and output of each row."""
    cols = tl.arange(0, BLOCK_N)
    for start in tl.range(lo, hi, BLOCK_N):
        keys = k.load([base + start, 0])
        scores = tl.dot(q, keys.T) * scale_log2
        if MASKED:
            scores = tl.where(rows[:, None] >= start + cols[None, :], scores, -1.0e6)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.math.exp2(scores - new_max[:, None])
        alpha = tl.math.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        values = v.load([base + start, 0])
        acc = tl.dot(p.to(values.dtype), values, acc * alpha[:, None])
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def forward_kernel(
    q, k, v, out, lse_ptr, scale, n_ctx,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute attention of one head and BLOCK_M queries, and the log-sum-exp of its rows of scores.

    Tensors are (heads * n_ctx, HEAD_DIM), n_ctx a multiple of both blocks.
    """
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    base = head * n_ctx
    rows = start_m + tl.arange(0, BLOCK_M)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    scale_log2 = scale * 1.4426950408889634
    queries = q.load([base + start_m, 0])
    whole = start_m if CAUSAL else n_ctx
    acc, row_max, row_sum = _attend(
        queries,
        k,
        v,
        acc,
        row_max,
        row_sum,
        base,
        rows,
        0,
        whole,
        scale_log2,
        MASKED=False,
        BLOCK_N=BLOCK_N,
    )
    if CAUSAL:
        acc, row_max, row_sum = _attend(
            queries, k, v, acc, row_max, row_sum, base, rows, start_m, start_m + BLOCK_M,
            scale_log2, MASKED=True, BLOCK_N=BLOCK_N,
        )  # fmt: skip
    tl.store(lse_ptr + base + rows, (row_max + tl.math.log2(row_sum)) * 0.6931471805599453)
    out.store([base + start_m, 0], (acc / row_sum[:, None]).to(out.dtype))


@triton.jit
def delta_kernel(
    out_ptr, dout_ptr, delta_ptr, n_rows, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr
):
    """Store the sum of dOut * Out of each row."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = rows.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    mask = rows[:, None] < n_rows
    out = tl.load(out_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(out * dout, 1), mask=rows < n_rows)


@triton.jit
def backward_keys_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, n_ctx,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of one head and BLOCK_N keys; n_ctx is a multiple of both blocks."""
    start_n = tl.program_id(0) * BLOCK_N
    base = tl.program_id(1).to(tl.int64) * n_ctx
    features = tl.arange(0, HEAD_DIM)
    cols = start_n + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    at_n = (base + cols)[:, None] * HEAD_DIM + features[None, :]
    k = tl.load(k_ptr + at_n)
    v = tl.load(v_ptr + at_n)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    scale_log2 = scale * 1.4426950408889634
    first = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    for start in range(first, n_ctx, BLOCK_M):
        at_m = (base + start + m)[:, None] * HEAD_DIM + features[None, :]
        q = tl.load(q_ptr + at_m)
        dout = tl.load(dout_ptr + at_m)
        lse = tl.load(lse_ptr + base + start + m)
        delta = tl.load(delta_ptr + base + start + m)
        p = tl.math.exp2(tl.dot(k, q.T) * scale_log2 - (lse * 1.4426950408889634)[None, :])
        if CAUSAL:
            p = tl.where((start + m)[None, :] >= cols[:, None], p, 0.0)
        dv += tl.dot(p.to(dout.dtype), dout)
        ds = p * (tl.dot(v, dout.T) - delta[None, :])
        dk += tl.dot(ds.to(q.dtype), q)
    tl.store(dk_ptr + at_n, (dk * scale).to(dk_ptr.dtype.element_ty))
    tl.store(dv_ptr + at_n, dv.to(dv_ptr.dtype.element_ty))


@triton.jit
def backward_queries_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, scale, n_ctx,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute dQ of one head and BLOCK_M queries; n_ctx is a multiple of both blocks."""
    start_m = tl.program_id(0) * BLOCK_M
    base = tl.program_id(1).to(tl.int64) * n_ctx
    features = tl.arange(0, HEAD_DIM)
    rows = start_m + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    at_m = (base + rows)[:, None] * HEAD_DIM + features[None, :]
    q = tl.load(q_ptr + at_m)
    dout = tl.load(dout_ptr + at_m)
    lse = tl.load(lse_ptr + base + rows) * 1.4426950408889634
    delta = tl.load(delta_ptr + base + rows)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    scale_log2 = scale * 1.4426950408889634
    last = start_m + BLOCK_M if CAUSAL else n_ctx
    for start in range(0, last, BLOCK_N):
        at_n = (base + start + n)[:, None] * HEAD_DIM + features[None, :]
        k = tl.load(k_ptr + at_n)
        v = tl.load(v_ptr + at_n)
        p = tl.math.exp2(tl.dot(q, k.T) * scale_log2 - lse[:, None])
        if CAUSAL:
            p = tl.where(rows[:, None] >= (start + n)[None, :], p, 0.0)
        ds = p * (tl.dot(dout, v.T) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    tl.store(dq_ptr + at_m, (dq * scale).to(dq_ptr.dtype.element_ty))
