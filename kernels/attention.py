"""Attention over a whole sequence without a matrix of scores in memory."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
# Where a running maximum starts. Not -inf: the difference of two of those is NaN.
LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def _attend(
    q, k_ptrs, v_ptrs, row_max, row_sum, acc, scale_log2, keys, first, last, n_keys,
    stride_kn, stride_vn, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Take the keys from `first` to `last` into the running maximum, sum and output of each row.

    `keys` is the number of keys that each query sees. The pointers are those of key 0.
    """
    n = tl.arange(0, BLOCK_N)
    k_ptrs += first.to(tl.int64) * stride_kn
    v_ptrs += first.to(tl.int64) * stride_vn
    for start in range(first, last, BLOCK_N):
        if MASKED:
            in_n = start + n < n_keys
            k = tl.load(k_ptrs, mask=in_n[None, :], other=0.0)
            scores = tl.dot(q, k) * scale_log2
            scores = tl.where((start + n)[None, :] < keys[:, None], scores, float("-inf"))
        else:
            k = tl.load(k_ptrs)
            scores = tl.dot(q, k) * scale_log2
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        power = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(power, axis=1)
        acc = acc * rescale[:, None]
        if MASKED:
            v = tl.load(v_ptrs, mask=(start + n < n_keys)[:, None], other=0.0)
        else:
            v = tl.load(v_ptrs)
        acc = tl.dot(power.to(v.dtype), v, acc)
        row_max = new_max
        k_ptrs += BLOCK_N * stride_kn
        v_ptrs += BLOCK_N * stride_vn
    return row_max, row_sum, acc


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    scale, n_heads, heads_per_kv_head, n_queries, n_keys,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_om,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Store softmax(Q @ K.T * scale) @ V and, in fp32, the log-sum-exp of each row of scores.

    Q and `out` are (batch, n_heads, n_queries, HEAD_DIM), K and V (batch, n_heads /
    heads_per_kv_head, n_keys, HEAD_DIM), features dense; `lse` is dense. With CAUSAL the last
    query sees all keys, and each query before it one fewer; a query that sees none gets zeros and
    a log-sum-exp of -inf. Axis 1 of the grid goes over batch * n_heads.
    """
    # Causal rows further down see more keys: start with those.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // n_heads).to(tl.int64), (row % n_heads).to(tl.int64)
    kv_head = head // heads_per_kv_head
    start_m = block * BLOCK_M
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    in_m = start_m + m < n_queries
    q_ptrs = q_ptr + batch * stride_qb + head * stride_qh + start_m.to(tl.int64) * stride_qm
    q_ptrs += m[:, None] * stride_qm + d[None, :]
    k_ptrs = k_ptr + batch * stride_kb + kv_head * stride_kh + n[None, :] * stride_kn + d[:, None]
    v_ptrs = v_ptr + batch * stride_vb + kv_head * stride_vh + n[:, None] * stride_vn + d[None, :]
    q = tl.load(q_ptrs, mask=in_m[:, None], other=0.0)

    # Blocks of keys that all queries of this block see whole, then those that some do not.
    if CAUSAL:
        keys = start_m + m + 1 + (n_keys - n_queries)
        all_see = min(n_keys, max(0, start_m + 1 + n_keys - n_queries))
        any_sees = min(n_keys, max(0, start_m + BLOCK_M + n_keys - n_queries))
    else:
        keys = tl.zeros([BLOCK_M], tl.int32) + n_keys
        all_see = n_keys
        any_sees = n_keys
    whole = all_see // BLOCK_N * BLOCK_N
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    row_max, row_sum, acc = _attend(
        q, k_ptrs, v_ptrs, row_max, row_sum, acc, scale * LOG2_E, keys, whole * 0, whole, n_keys,
        stride_kn, stride_vn, MASKED=False, BLOCK_N=BLOCK_N,
    )  # fmt: skip
    row_max, row_sum, acc = _attend(
        q, k_ptrs, v_ptrs, row_max, row_sum, acc, scale * LOG2_E, keys, whole, any_sees, n_keys,
        stride_kn, stride_vn, MASKED=True, BLOCK_N=BLOCK_N,
    )  # fmt: skip

    sees_any = row_sum > 0.0
    out = acc / tl.where(sees_any, row_sum, 1.0)[:, None]
    out_ptrs = out_ptr + batch * stride_ob + head * stride_oh + start_m.to(tl.int64) * stride_om
    out_ptrs += m[:, None] * stride_om + d[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_m[:, None])
    lse = tl.where(sees_any, (row_max + tl.log2(row_sum)) * LN_2, float("-inf"))
    tl.store(lse_ptr + row.to(tl.int64) * n_queries + start_m + m, lse, mask=in_m)
