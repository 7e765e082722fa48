"""Kernels as a Triton user writes them, with grids of configs: the subject of tuning."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Compute c (M, N) = a (M, K) @ b (N, K)^T, rows of a program group sharing columns of b."""
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP_M * tiles_n) * GROUP_M
    group = min(tiles_m - first, GROUP_M)
    tile_m = first + pid % (GROUP_M * tiles_n) % group
    tile_n = pid % (GROUP_M * tiles_n) // group
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :]
    b_ptrs = b_ptr + cols[None, :] * stride_bn + ks[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < K - k), other=0.0)
        b = tl.load(b_ptrs, mask=(cols[None, :] < N) & (ks[:, None] < K - k), other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    c_ptrs = c_ptr + rows[:, None] * stride_cm + cols[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, num_heads, seq_len, scale,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute softmax(q k^T * scale) v for one head and BLOCK_M queries, tensors (heads, seq_len, HEAD)."""
    start_m = tl.program_id(0) * BLOCK_M
    base = tl.program_id(1).to(tl.int64) * seq_len * HEAD
    q_desc = tl.make_tensor_descriptor(q_ptr + base, [seq_len, HEAD], [HEAD, 1], [BLOCK_M, HEAD])
    k_desc = tl.make_tensor_descriptor(k_ptr + base, [seq_len, HEAD], [HEAD, 1], [BLOCK_N, HEAD])
    v_desc = tl.make_tensor_descriptor(v_ptr + base, [seq_len, HEAD], [HEAD, 1], [BLOCK_N, HEAD])
    o_desc = tl.make_tensor_descriptor(out_ptr + base, [seq_len, HEAD], [HEAD, 1], [BLOCK_M, HEAD])
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    row_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD), tl.float32)
    q = q_desc.load([start_m, 0])
    log2_scale = scale * 1.4426950408889634
    end = min(start_m + BLOCK_M, seq_len) if CAUSAL else seq_len
    for start_n in range(0, end, BLOCK_N):
        k = k_desc.load([start_n, 0])
        scores = tl.dot(q, k.T) * log2_scale
        allowed = start_n + cols[None, :] < seq_len
        if CAUSAL:
            allowed = allowed & (start_n + cols[None, :] <= rows[:, None])
        scores = tl.where(allowed, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        factor = tl.exp2(row_max - new_max)
        row_sum = row_sum * factor + tl.sum(p, 1)
        v = v_desc.load([start_n, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None])
        row_max = new_max
    o_desc.store([start_m, 0], (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty))


@triton.jit
def decode(
    q_ptr, k_ptr, v_ptr, part_ptr, lse_ptr, num_heads, seq_len, scale,
    HEAD: tl.constexpr, GROUP: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute a part of the attention of GROUP queries with shared keys (heads, seq_len, HEAD)."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    lanes = tl.arange(0, HEAD)
    queries = tl.arange(0, GROUP)
    q = tl.load(q_ptr + (head * GROUP + queries[:, None]) * HEAD + lanes[None, :])
    per_split = tl.cdiv(tl.cdiv(seq_len, NUM_SPLITS), BLOCK_N) * BLOCK_N
    start = split * per_split
    end = min(start + per_split, seq_len)
    row_max = tl.full((GROUP,), -1.0e30, tl.float32)
    row_sum = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, HEAD), tl.float32)
    log2_scale = scale * 1.4426950408889634
    for n in range(start, end, BLOCK_N):
        cols = n + tl.arange(0, BLOCK_N)
        offsets = (head * seq_len + cols[:, None]) * HEAD + lanes[None, :]
        k = tl.load(k_ptr + offsets, mask=cols[:, None] < end, other=0.0)
        scores = tl.dot(q, k.T) * log2_scale
        scores = tl.where(cols[None, :] < end, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        factor = tl.exp2(row_max - new_max)
        row_sum = row_sum * factor + tl.sum(p, 1)
        v = tl.load(v_ptr + offsets, mask=cols[:, None] < end, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None])
        row_max = new_max
    out = (head * NUM_SPLITS + split) * GROUP + queries
    tl.store(part_ptr + out[:, None] * HEAD + lanes[None, :], acc)
    tl.store(lse_ptr + out, row_max + tl.log2(tl.maximum(row_sum, 1.0e-30)))


@triton.jit
def expert_matmul(
    x_ptr, w_ptr, out_ptr, count_ptr, num_experts, rows_per_expert, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute out (E, rows, N) = x (E, rows, K) @ w (E, N, K)^T for each expert's rows."""
    expert = tl.program_id(2).to(tl.int64)
    count = tl.load(count_ptr + expert)
    start_m = tl.program_id(1) * BLOCK_M
    if start_m >= count:
        return
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (expert * rows_per_expert + rows[:, None]) * K + ks[None, :]
    w_ptrs = w_ptr + (expert * N + cols[None, :]) * K + ks[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs + k, mask=(rows[:, None] < count) & (ks[None, :] < K - k), other=0.0)
        w = tl.load(w_ptrs + k, mask=(cols[None, :] < N) & (ks[:, None] < K - k), other=0.0)
        acc = tl.dot(x, w, acc)
    out_ptrs = out_ptr + (expert * rows_per_expert + rows[:, None]) * N + cols[None, :]
    mask = (rows[:, None] < count) & (cols[None, :] < N)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax(x_ptr, out_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """Compute the softmax of a row in two passes over it."""
    row = tl.program_id(0).to(tl.int64) * n_cols
    peak = float("-inf")
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
        new_peak = tl.maximum(peak, tl.max(x, 0))
        total = total * tl.exp(peak - new_peak) + tl.sum(tl.exp(x - new_peak), 0)
        peak = new_peak
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        out = tl.exp(x - peak) / total
        tl.store(out_ptr + row + cols, out.to(out_ptr.dtype.element_ty), mask=cols < n_cols)


@triton.jit
def rms_norm(x_ptr, w_ptr, out_ptr, n_rows, n_cols, eps, BLOCK: tl.constexpr):
    """Divide a row by the root of its mean square and multiply by the weights."""
    row = tl.program_id(0).to(tl.int64) * n_cols
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        squares += x * x
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        out = x * scale * w
        tl.store(out_ptr + row + cols, out.to(out_ptr.dtype.element_ty), mask=cols < n_cols)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, out_ptr, n_rows, n_cols, eps, BLOCK: tl.constexpr):
    """Normalise a row to mean 0 and variance 1, then scale and shift it."""
    row = tl.program_id(0).to(tl.int64) * n_cols
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / n_cols
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        x = tl.where(cols < n_cols, x - mean, 0.0)
        squares += x * x
    scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row + cols, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        out = (x - mean) * scale * w + b
        tl.store(out_ptr + row + cols, out.to(out_ptr.dtype.element_ty), mask=mask)
