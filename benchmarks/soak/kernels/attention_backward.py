"""The gradients of attention through pointers: of keys and values, of queries, or all in one pass."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_backward_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    scale, n_queries, n_keys, stride_q, stride_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr, ADDS_DQ: tl.constexpr,
):  # fmt: skip
    """Store the gradients of BLOCK_N keys and values, and with ADDS_DQ add their part of dQ.

    Rows of Q, dOut and dQ (fp32) are `stride_q` apart, the others' `stride_k`. `lse` is the
    log-sum-exp of the scores, `delta` the sum of dOut * Out, of each query.
    """
    start_n = tl.program_id(0) * BLOCK_N
    n, d = start_n + tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    in_n = (n < n_keys)[:, None]
    at_n = n.to(tl.int64)[:, None] * stride_k + d[None, :]
    k = tl.load(k_ptr + at_n, mask=in_n, other=0.0)
    v = tl.load(v_ptr + at_n, mask=in_n, other=0.0)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    first = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    for start in range(first, n_queries, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        in_m = m < n_queries
        at_m = m[:, None] * stride_q + d[None, :]
        q = tl.load(q_ptr + at_m, mask=in_m[:, None], other=0.0)
        dout = tl.load(dout_ptr + at_m, mask=in_m[:, None], other=0.0)
        lse = tl.load(lse_ptr + m, mask=in_m, other=0.0)
        delta = tl.load(delta_ptr + m, mask=in_m, other=0.0)
        scores = tl.dot(k, q.T) * (scale * LOG2_E) - lse[None, :] * LOG2_E
        seen = in_m[None, :] & in_n
        if CAUSAL:
            seen = seen & (n[:, None] <= m[None, :])
        power = tl.where(seen, tl.exp2(scores), 0.0)
        dv = tl.dot(power.to(dout.dtype), dout, dv)
        dpower = tl.dot(v, dout.T)
        dscores = (power * (dpower - delta[None, :])).to(q.dtype)
        dk = tl.dot(dscores, q, dk)
        if ADDS_DQ:
            dq = tl.dot(dscores.T, k) * scale
            tl.atomic_add(dq_ptr + at_m, dq, mask=in_m[:, None], sem="relaxed")
    tl.store(dk_ptr + at_n, (dk * scale).to(dk_ptr.dtype.element_ty), mask=in_n)
    tl.store(dv_ptr + at_n, dv.to(dv_ptr.dtype.element_ty), mask=in_n)


@triton.jit
def attention_backward_queries_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    scale, n_queries, n_keys, stride_q, stride_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Store the gradients of BLOCK_M queries; arguments as of `attention_backward_kernel`."""
    start_m = tl.program_id(0) * BLOCK_M
    m, d = start_m + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    in_m = m < n_queries
    at_m = m.to(tl.int64)[:, None] * stride_q + d[None, :]
    q = tl.load(q_ptr + at_m, mask=in_m[:, None], other=0.0)
    dout = tl.load(dout_ptr + at_m, mask=in_m[:, None], other=0.0)
    lse = tl.load(lse_ptr + m, mask=in_m, other=0.0)
    delta = tl.load(delta_ptr + m, mask=in_m, other=0.0)
    dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    last = min(n_keys, start_m + BLOCK_M) if CAUSAL else n_keys
    for start in range(0, last, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        in_n = (n < n_keys)[:, None]
        at_n = n[:, None] * stride_k + d[None, :]
        k = tl.load(k_ptr + at_n, mask=in_n, other=0.0)
        v = tl.load(v_ptr + at_n, mask=in_n, other=0.0)
        scores = tl.dot(q, k.T) * (scale * LOG2_E) - lse[:, None] * LOG2_E
        seen = in_m[:, None] & (n < n_keys)[None, :]
        if CAUSAL:
            seen = seen & (n[None, :] <= m[:, None])
        power = tl.where(seen, tl.exp2(scores), 0.0)
        dpower = tl.dot(dout, v.T)
        dscores = power * (dpower - delta[:, None])
        dq = tl.dot(dscores.to(k.dtype), k, dq)
    tl.store(dq_ptr + at_m, (dq * scale).to(dq_ptr.dtype.element_ty), mask=in_m[:, None])
