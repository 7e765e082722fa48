"""Gathers and histograms through shared memory, alone and among other work."""

import triton
import triton.language as tl


@triton.jit
def pick(
    x_ptr,
    index_ptr,
    out_ptr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    WANTED: tl.constexpr,
    AXIS: tl.constexpr,
):
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    if AXIS == 0:
        outputs = tl.arange(0, WANTED)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    else:
        outputs = tl.arange(0, ROWS)[:, None] * WANTED + tl.arange(0, WANTED)[None, :]
    x, index = tl.load(x_ptr + offsets), tl.load(index_ptr + outputs)
    tl.store(out_ptr + outputs, tl.gather(x, index, AXIS))


@triton.jit
def reverse(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # No load of an index: it is computed wherever it is wanted.
    lane = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * BLOCK + lane
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    mirrored = tl.gather(x, BLOCK - 1 - lane, 0)
    tl.store(out_ptr + offsets, mirrored + tl.sum(x), mask=offsets < n)


@triton.jit
def rounds(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    # A buffer is read while the next iteration wants to write it.
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    for turn in range(count):
        x = tl.gather(x, lane * 5 + turn, 0) + x
    tl.store(out_ptr + lane, x)


@triton.jit
def count_all(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    bins = tl.zeros((BINS,), tl.int32)
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < n
        bins += tl.histogram(tl.load(x_ptr + offsets, mask=mask), BINS, mask)
    tl.store(out_ptr + tl.arange(0, BINS), bins)


@triton.jit
def count_block(x_ptr, out_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    bins = tl.histogram(x & (2 * BINS - 1), BINS)
    tl.store(out_ptr + tl.arange(0, BINS), tl.cumsum(bins, 0))
