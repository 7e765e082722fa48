"""Attention over a whole sequence through descriptors: a plain loop over the keys.

Where queries and keys have more features than values, as in MLA's 192 and 128, they come in parts: tiles
have powers of two.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(n_heads, n_blocks, TOGETHER: tl.constexpr, CAUSAL: tl.constexpr):
    """Return the head and the block of rows of this program.

    The keys of TOGETHER heads are to fit the L2 cache: their blocks come one after the other. Causal
    blocks further down see more keys, and come first.
    """
    program = tl.program_id(0)
    first = program // (n_blocks * TOGETHER) * TOGETHER
    together = tl.minimum(TOGETHER, n_heads - first)
    place = program % (n_blocks * TOGETHER)
    block = place // together
    if CAUSAL:
        block = n_blocks - 1 - block
    return first + place % together, block


@triton.jit
def attention_descriptor_kernel(
    q,
    k,
    v,
    out,
    scale_log2,
    n_heads,
    heads_per_kv_head,
    n_queries,
    n_keys,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Store softmax(Q @ K.T * scale) @ V, `scale_log2` being the scale times log2(e).

    Q is (batch * n_heads, n_queries, HEAD_DIM), K (batch * n_heads / heads_per_kv_head, n_keys,
    HEAD_DIM); V and `out` may have fewer features, as many as their boxes. Boxes of Q and K have all
    or a part of them. With CAUSAL the last query sees the last key. The grid has a program for each
    head and BLOCK_M queries.
    """
    PART: tl.constexpr = q.block_shape[2]
    VALUE_DIM: tl.constexpr = v.block_shape[2]
    head, block = _tile(q.shape[0], tl.cdiv(n_queries, BLOCK_M), TOGETHER, CAUSAL)
    start = block * BLOCK_M
    queries = ()
    for i in tl.static_range(HEAD_DIM // PART):
        queries += (q.load([head, start, i * PART]).reshape(BLOCK_M, PART),)
    kv_head = head // n_heads * (n_heads // heads_per_kv_head) + head % n_heads // heads_per_kv_head
    rows = start + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    row_max = tl.full((BLOCK_M,), -3.0e38, dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, VALUE_DIM), dtype=tl.float32)
    last = n_keys
    if CAUSAL:
        last = tl.minimum(n_keys, start + BLOCK_M + n_keys - n_queries)
    for first in range(0, last, BLOCK_N):
        keys = ()
        for i in tl.static_range(HEAD_DIM // PART):
            keys += (k.load([kv_head, first, i * PART]).reshape(BLOCK_N, PART),)
        scores = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for i in tl.static_range(HEAD_DIM // PART):
            scores = tl.dot(queries[i], keys[i].T, scores)
        scores *= scale_log2
        if CAUSAL:
            seen = tl.minimum(n_keys, rows + 1 + n_keys - n_queries)
            scores = tl.where((first + columns)[None, :] < seen[:, None], scores, float("-inf"))
        else:
            scores = tl.where((first + columns)[None, :] < n_keys, scores, float("-inf"))
        # A whole number, so that rescaling is by powers of two, which is exact.
        new_max = tl.maximum(row_max, tl.ceil(tl.max(scores, axis=1)))
        power = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(power, axis=1)
        acc = acc * rescale[:, None]
        values = v.load([kv_head, first, 0]).reshape(BLOCK_N, VALUE_DIM)
        acc = tl.dot(power.to(values.dtype), values, acc)
        row_max = new_max
    acc = acc * (1.0 / row_sum)[:, None]
    out.store([head, start, 0], acc.to(out.dtype).reshape(1, BLOCK_M, VALUE_DIM))
