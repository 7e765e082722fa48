"""Matrix transpose, tile by tile."""

import triton
import triton.language as tl


@triton.jit
def transpose2d_kernel(
    x_ptr,
    out_ptr,
    x_stride,
    out_stride,
    n_rows,
    n_cols,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Store the transpose of x, (n_rows, n_cols), in out, (n_cols, n_rows).

    Rows of `x` and `out` are `x_stride` and `out_stride` elements apart. Reads run along the rows
    of `x` and writes along the rows of `out`, so the tile is turned on chip, and tiles that lie
    inside the matrix are moved without a mask, in the widest accesses the strides allow.
    """
    first_row = tl.program_id(0) * BLOCK_M
    first_col = tl.program_id(1) * BLOCK_N
    rows = first_row + tl.arange(0, BLOCK_M)
    cols = first_col + tl.arange(0, BLOCK_N)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride + cols[None, :]
    out_ptrs = out_ptr + cols.to(tl.int64)[:, None] * out_stride + rows[None, :]
    if (first_row + BLOCK_M <= n_rows) & (first_col + BLOCK_N <= n_cols):
        tl.store(out_ptrs, tl.trans(tl.load(x_ptrs)))
    else:
        row_mask = rows < n_rows
        col_mask = cols < n_cols
        x = tl.load(x_ptrs, mask=row_mask[:, None] & col_mask[None, :])
        tl.store(out_ptrs, tl.trans(x), mask=col_mask[:, None] & row_mask[None, :])
