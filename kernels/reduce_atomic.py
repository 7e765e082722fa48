"""Results that many programs add to: a histogram, and sums of rows too long for one program."""

import triton
import triton.language as tl


@triton.jit
def histogram_kernel(x_ptr, bins_ptr, n_elements, n_bins, BLOCK: tl.constexpr):
    """Add to `bins` how often each of 0 … n_bins - 1 occurs in x; other values count nowhere.

    `bins` is int32 and starts as the caller left it.
    """
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offsets, mask=offsets < n_elements, other=-1)
    counted = (value >= 0) & (value < n_bins)
    tl.atomic_add(bins_ptr + value, 1, mask=counted, sem="relaxed")


@triton.jit
def row_sums_kernel(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr, COLS: tl.constexpr):
    """Add to out[row] the sum of COLS columns of a row of x, as many as axis 1 of the grid says.

    `out` is fp32 and starts as the caller left it. The order in which programs add is not fixed,
    so neither is the last bit of a sum.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    x_ptr += row.to(tl.int64) * stride
    first = part * COLS
    cols = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, min(first + COLS, n_cols), BLOCK):
        x = tl.load(x_ptr + start + cols, mask=start + cols < n_cols, other=0.0)
        total += x.to(tl.float32)
    tl.atomic_add(out_ptr + row, tl.sum(total, axis=0), sem="relaxed")


@triton.jit
def accumulate_kernel(x_ptr, total_ptr, n_elements, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Add `x` to `total`, each of `n_elements`, by any number of programs.

    Several launches may add to one total at a time, as gradients of several batches. `x` is no part of it.
    """
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for start in tl.range(first, n_elements, step, num_stages=STAGES):
        index = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + index, mask=index < n_elements, other=0)
        x = x.to(total_ptr.dtype.element_ty)
        tl.atomic_add(total_ptr + index, x, mask=index < n_elements, sem="relaxed")
