"""Routing of tokens to experts: the best few of each row, how many tokens each expert gets, medians."""

import triton
import triton.language as tl


@triton.jit
def _ordered(x):
    """Return integers that order as the floats do."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def route_kernel(
    logits_ptr, weights_ptr, experts_ptr, stride, n_tokens,
    N_EXPERTS: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store, for every token, the TOP_K experts with the greatest logits and their softmax.

    Logits are (n_tokens, N_EXPERTS), weights fp32 and experts int32 (n_tokens, TOP_K), the greatest
    first; of equal ones the lower number. Logit and number go through `topk` in one 64-bit word.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    experts = tl.arange(0, N_EXPERTS)
    mask = (rows < n_tokens)[:, None]
    place = rows.to(tl.int64)[:, None] * stride + experts[None, :]
    logits = tl.load(logits_ptr + place, mask=mask, other=0.0).to(tl.float32)
    packed = (_ordered(logits).to(tl.int64) << 32) | (N_EXPERTS - 1 - experts)[None, :]
    best = tl.topk(packed, TOP_K)
    chosen = N_EXPERTS - 1 - (best & 0xFFFFFFFF).to(tl.int32)
    greatest = tl.gather(logits, chosen, 1)
    power = tl.exp(greatest - tl.max(greatest, axis=1)[:, None])
    weights = power / tl.sum(power, axis=1)[:, None]
    out = rows.to(tl.int64)[:, None] * TOP_K + tl.arange(0, TOP_K)[None, :]
    tl.store(weights_ptr + out, weights, mask=mask)
    tl.store(experts_ptr + out, chosen, mask=mask)


@triton.jit
def count_kernel(experts_ptr, counts_ptr, n, N_EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up how often each expert is among the `n` that are chosen; counts are int32, zero before."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(experts_ptr + i, mask=i < n, other=0)
    counts = tl.histogram(chosen, N_EXPERTS, mask=i < n)
    tl.atomic_add(counts_ptr + tl.arange(0, N_EXPERTS), counts, sem="relaxed")


@triton.jit
def median_kernel(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store the lower median of every row; n_cols is from 1 to BLOCK."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols, other=float("inf")).to(tl.float32)
    middle = tl.sort(x)
    median = tl.sum(tl.where(i == (n_cols - 1) // 2, middle, 0.0), axis=0)
    tl.store(out_ptr + row, median)
