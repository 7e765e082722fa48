"""Row-wise arg-max, cumulative sum and int8 quantisation, for rows of any length."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _larger(value_a, index_a, value_b, index_b):
    """Keep the larger value with its index; of equal ones the lower index."""
    take_a = (value_a > value_b) | ((value_a == value_b) & (index_a < index_b))
    return tl.where(take_a, value_a, value_b), tl.where(take_a, index_a, index_b)


@triton.jit
def argmax_rows_kernel(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the column of the largest element of every row of x, (n_rows, n_cols), as int64.

    The first of equal elements wins; NaN counts as +inf. Each lane keeps the best of what it has
    seen, and lanes are compared once, at the end. Requires n_cols > 0.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_col = cols
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=mask, other=float("-inf")).to(tl.float32)
        x = tl.where(x != x, float("inf"), x)  # noqa: PLR0124 - true of NaN alone
        is_better = x > best
        best = tl.where(is_better, x, best)
        best_col = tl.where(is_better, start + cols, best_col)
    _, column = tl.reduce((best, best_col), 0, _larger)
    tl.store(out_ptr + row, column.to(tl.int64))


@triton.jit
def cumsum_rows_kernel(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the running sum of every row of x, (n_rows, n_cols), summed in fp32.

    Rows are `stride` elements apart, in `out` too, which may be `x`. Blocks of a row follow each
    other, and what was summed so far is carried along.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    out_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    carry = 0.0
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        sums = carry + tl.cumsum(x, axis=0)
        tl.store(out_ptr + start + cols, sums.to(out_ptr.dtype.element_ty), mask=mask)
        carry += tl.sum(x, axis=0)


@triton.jit
def _quantize(x, inverse_scale):
    """Round to nearest, ties to even, and keep within -127 and 127."""
    scaled = libdevice.rint(x * inverse_scale)
    return tl.clamp(scaled, -127.0, 127.0).to(tl.int8)


@triton.jit
def quantize_int8_rows_kernel(
    x_ptr, out_ptr, scale_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr
):
    """Store every row of x as int8 and one fp32 scale a row, so that x is near out * scale.

    scale = max(|row|, 1e-10) / 127, and elements are rounded to the nearest multiple of it, ties
    to even. Rows of x are `stride` elements apart, those of `out` follow each other. A row of at
    most BLOCK columns is read once; a longer one twice.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    out_ptr += row * n_cols
    cols = tl.arange(0, BLOCK)
    if n_cols <= BLOCK:
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-10)
        tl.store(out_ptr + cols, _quantize(x, 127.0 / largest), mask=mask)
        tl.store(scale_ptr + row, largest / 127.0)
    else:
        lane_largest = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            lane_largest = tl.maximum(lane_largest, tl.abs(x))
        largest = tl.maximum(tl.max(lane_largest, axis=0), 1e-10)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + start + cols, _quantize(x, 127.0 / largest), mask=mask)
        tl.store(scale_ptr + row, largest / 127.0)
