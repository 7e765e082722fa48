"""A three-point stencil along rows whose ends have neighbours elsewhere, or none."""

import triton
import triton.language as tl


@triton.jit
def halo_stencil_kernel(
    x_ptr, left_ptr, right_ptr, out_ptr, stride, n_cols, before, centre, after,
    BLOCK: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Store before * x[i-1] + centre * x[i] + after * x[i+1] for every i of a row of x.

    The column left of the first is `left[row]`, the one right of the last `right[row]`: the halo
    that neighbours sent. Without HAS_LEFT or HAS_RIGHT it is zero. All three loads stand before the
    first use of any, so they are in flight together.
    """
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = cols < n_cols
    x_ptrs = x_ptr + row * stride + cols
    left_mask, right_mask = in_row & (cols > 0), cols < n_cols - 1
    left = tl.load(x_ptrs - 1, mask=left_mask, other=0.0)
    middle = tl.load(x_ptrs, mask=in_row, other=0.0)
    right = tl.load(x_ptrs + 1, mask=right_mask, other=0.0)
    if HAS_LEFT:
        left = tl.where(cols == 0, tl.load(left_ptr + row), left)
    if HAS_RIGHT:
        right = tl.where(cols == n_cols - 1, tl.load(right_ptr + row), right)
    out = before * left.to(tl.float32) + centre * middle.to(tl.float32)
    out += after * right.to(tl.float32)
    tl.store(out_ptr + row * stride + cols, out.to(out_ptr.dtype.element_ty), mask=in_row)


@triton.jit
def bordered_stencil_kernel(
    x_ptr, out_ptr, stride, n_rows, n_cols, before, centre, after, BLOCK: tl.constexpr
):
    """Store the stencil down the columns of x, (n_rows, n_cols), in one program a row.

    Rows outside of x do not exist: whether there is one above or below is a branch of the whole
    program, and the loads of all branches are in flight together.
    """
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    x_ptrs = x_ptr + row.to(tl.int64) * stride + cols
    above = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    below = tl.zeros([BLOCK], x_ptr.dtype.element_ty)
    if row > 0:
        above = tl.load(x_ptrs - stride, mask=mask, other=0.0)
    middle = tl.load(x_ptrs, mask=mask, other=0.0)
    if row < n_rows - 1:
        below = tl.load(x_ptrs + stride, mask=mask, other=0.0)
    out = before * above.to(tl.float32) + centre * middle.to(tl.float32)
    out += after * below.to(tl.float32)
    out_ptrs = out_ptr + row.to(tl.int64) * stride + cols
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)
