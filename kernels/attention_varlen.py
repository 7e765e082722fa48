"""Attention forward over sequences of many lengths, with what models ask of masks and scores.

Sequences lie one after another without padding: Q is (heads, tokens, HEAD_DIM), K and V are (kv heads,
tokens, HEAD_DIM), of any strides, and sequence b has the tokens from `cu_q[b]` to `cu_q[b + 1]` of Q, and
likewise of K and V. Where it has more keys than queries, as in chunks of a prompt, queries are its last
tokens. A tile that reaches into the next sequence is masked; after the last token there are zeros.

A query at position p of its sequence sees the keys that all of these let it see:

- CAUSAL: those up to p, and with `prefix_ptr` the first `prefix[b]` in any case, as a prefix-LM does;
- WINDOW, if not 0: the last WINDOW up to p, p itself included; needs CAUSAL and no prefix;
- `tree_ptr`, in place of CAUSAL: of the sequence's own queries, 64 at most, those whose bit is set in the
  int64 of this query, and all keys before them: a tree of drafts that is verified in one pass.

Tiles that nobody sees are not loaded. SOFT_CAP, if not 0, makes c * tanh(x / c) of a score x. A sink,
one score for each head from `sink_ptr`, takes part in the softmax with a value of zero. Fp8 keys and
values have a scale for each key head; where queries are fp8, scores are computed in fp8.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
# Where a running maximum starts. Not -inf: the difference of two of those is NaN.
LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def _tanh(x):
    """Return the hyperbolic tangent; its error is absolute."""
    return 1.0 - 2.0 / (1.0 + tl.exp2((2.0 * LOG2_E) * x))


@triton.jit
def _range_of_keys(
    start, n_queries, n_keys, prefix, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the first and the end of the keys that some query from `start` on may see."""
    first = 0
    end = n_keys
    if CAUSAL:
        position = start + n_keys - n_queries
        end = min(n_keys, max(prefix, position + BLOCK_M))
        if WINDOW:
            first = max(0, position - WINDOW + 1) // BLOCK_N * BLOCK_N
    return first, end


@triton.jit
def attention_varlen_kernel(
    q, k, v, out_ptr, cu_q_ptr, cu_k_ptr,
    scale,
    max_queries,
    n_sequences,
    n_heads, n_kv_heads,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr = 0, SOFT_CAP: tl.constexpr = 0.0,
    lse_ptr=None, sink_ptr=None, prefix_ptr=None, tree_ptr=None,
    q_scale_ptr=None, k_scale_ptr=None, v_scale_ptr=None,
):  # fmt: skip
    """Store softmax(Q @ K.T * scale) @ V as (tokens, n_heads, HEAD_DIM), dense.

    `lse`, (n_heads, tokens of Q), gets the log-sum-exp of scores, sinks included. A query that sees
    nothing gets zeros and -inf. The grid is (blocks of the longest sequence, n_heads, n_sequences).
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    kv_head = head // (n_heads // n_kv_heads)
    first_q, first_k = tl.load(cu_q_ptr + sequence), tl.load(cu_k_ptr + sequence)
    n_queries = tl.load(cu_q_ptr + sequence + 1) - first_q
    n_keys = tl.load(cu_k_ptr + sequence + 1) - first_k
    n_blocks = tl.cdiv(n_queries, BLOCK_M)
    if tl.program_id(0) < n_blocks:
        # Causal blocks further down see more keys, and come first.
        block = n_blocks - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
        start = block * BLOCK_M
        prefix = 0
        if prefix_ptr is not None:
            prefix = tl.load(prefix_ptr + sequence)
        if q_scale_ptr is not None:
            scale *= tl.load(q_scale_ptr + head)
        if k_scale_ptr is not None:
            scale *= tl.load(k_scale_ptr + kv_head)
        row, column = start + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
        position = row + n_keys - n_queries
        row_max = tl.full((BLOCK_M,), LOWEST, tl.float32)
        row_sum = tl.zeros((BLOCK_M,), tl.float32)
        if sink_ptr is not None:
            row_max = tl.zeros((BLOCK_M,), tl.float32) + tl.load(sink_ptr + head) * LOG2_E
            row_sum += 1.0
        if tree_ptr is not None:
            in_q = row < n_queries
            bits = tl.load(tree_ptr + first_q.to(tl.int64) + row, mask=in_q, other=0)
        acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
        queries = q.load([head, first_q + start, 0]).reshape(BLOCK_M, HEAD_DIM)
        first, end = _range_of_keys(
            start, n_queries, n_keys, prefix, CAUSAL, WINDOW, BLOCK_M, BLOCK_N
        )
        for at in range(first, end, BLOCK_N):
            keys = k.load([kv_head, first_k + at, 0]).reshape(BLOCK_N, HEAD_DIM)
            scores = tl.dot(queries, keys.to(queries.dtype).T)
            if SOFT_CAP > 0.0:
                scores = _tanh(scores * (scale / SOFT_CAP)) * (SOFT_CAP * LOG2_E)
            else:
                scores = scores * (scale * LOG2_E)
            key = at + column
            if CAUSAL:
                seen_end = tl.minimum(n_keys, tl.maximum(prefix, position + 1))
                seen = key[None, :] < seen_end[:, None]
                if WINDOW:
                    seen &= key[None, :] > (position - WINDOW)[:, None]
            else:
                seen = key[None, :] < n_keys
            if tree_ptr is not None:
                draft = key - (n_keys - n_queries)
                bit = (bits[:, None] >> (draft & 63)[None, :].to(tl.int64)) & 1
                seen &= (draft < 0)[None, :] | (bit != 0)
            scores = tl.where(seen, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, axis=1))
            power = tl.exp2(scores - new_max[:, None])
            rescale = tl.exp2(row_max - new_max)
            row_sum = row_sum * rescale + tl.sum(power, axis=1)
            acc = acc * rescale[:, None]
            values = v.load([kv_head, first_k + at, 0]).reshape(BLOCK_N, HEAD_DIM)
            values = values.to(out_ptr.dtype.element_ty)
            acc = tl.dot(power.to(values.dtype), values, acc)
            row_max = new_max

        in_q = row < n_queries
        sees_any = row_sum > 0.0
        factor = 1.0 / tl.where(sees_any, row_sum, 1.0)
        if v_scale_ptr is not None:
            factor *= tl.load(v_scale_ptr + kv_head)
        token = (first_q + row).to(tl.int64)
        out_ptrs = out_ptr + (token * n_heads + head)[:, None] * HEAD_DIM
        out_ptrs += tl.arange(0, HEAD_DIM)[None, :]
        out = (acc * factor[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptrs, out, mask=in_q[:, None])
        if lse_ptr is not None:
            lse = tl.where(sees_any, (row_max + tl.log2(row_sum)) * LN_2, float("-inf"))
            tl.store(lse_ptr + head.to(tl.int64) * q.shape[1] + token, lse, mask=in_q)
