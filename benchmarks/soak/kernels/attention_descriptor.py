"""Attention through descriptors: one dot on a block of K, a softmax, one dot on a block of V."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def attention_descriptor_kernel(
    q, k, v, out,
    scale, n_queries, n_keys,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Store softmax(Q @ K.T * scale) @ V of one head; with CAUSAL query i sees keys up to i."""
    start_m = tl.program_id(0) * BLOCK_M
    m, n = start_m + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    query = q.load([start_m, 0])
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    last = min(n_keys, start_m + BLOCK_M) if CAUSAL else n_keys
    for start in range(0, last, BLOCK_N):
        scores = tl.dot(query, k.load([start, 0]).T) * (scale * LOG2_E)
        seen = (start + n < n_keys)[None, :]
        if CAUSAL:
            seen = seen & (start + n[None, :] <= m[:, None])
        scores = tl.where(seen, scores, LOWEST)
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        power = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(power, axis=1)
        acc = acc * rescale[:, None]
        acc = tl.dot(power.to(v.dtype), v.load([start, 0]), acc)
        row_max = new_max
    out.store([start_m, 0], (acc / row_sum[:, None]).to(out.dtype))
