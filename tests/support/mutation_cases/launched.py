"""Kernels with computed launch arguments."""

import triton
import triton.language as tl


@triton.jit
def negate_rows(x_ptr, out_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store rows negated."""
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + i, mask=i < n_cols)
    tl.store(out_ptr + row * n_cols + i, -x, mask=i < n_cols)


@triton.jit
def add_corners(x, y, out_ptr, BLOCK: tl.constexpr):
    """Add the first block of y to each block of x, and the extents of both."""
    i, j = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    rows, columns = i + tl.arange(0, BLOCK)[:, None], j + tl.arange(0, BLOCK)[None, :]
    sums = x.load([i, j]) + y.load([0, 0]) + x.shape[0] * 3 + y.shape[0] * 5 + y.shape[1] * 7
    inside = (rows < x.shape[0]) & (columns < x.shape[1])
    tl.store(out_ptr + rows * x.shape[1] + columns, sums, mask=inside)
