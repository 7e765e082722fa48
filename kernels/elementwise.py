"""Elementwise kernels: bound by memory, so one pass and wide accesses are all there is to them."""

import triton
import triton.language as tl


@triton.jit
def vector_add_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    """Store x + y. One program adds BLOCK elements; `out` may be `x` or `y`."""
    # 64 bits: the last program may reach beyond 2**31 - 1 although n_elements does not.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store silu(gate) * up for the two halves of each row of x, (n_rows, 2 * n_cols).

    A gated MLP's activation: the first n_cols columns are the gate, the rest the other factor.
    Rows of x are `stride` elements apart, those of `out` follow each other. One program computes
    BLOCK columns of a row, in fp32, and rounds once.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    gate_ptr = x_ptr + row * stride
    gate = tl.load(gate_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * n_cols + cols, out.to(out_ptr.dtype.element_ty), mask=mask)
