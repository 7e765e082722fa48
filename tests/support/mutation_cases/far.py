"""Kernels over distant rows, with 64-bit offsets."""

import triton
import triton.language as tl


@triton.jit
def far_rows_in_turn(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the rows of x negated, some rows a program, for any distance between rows."""
    i = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row.to(tl.int64) * stride + i, mask=i < n_cols)
        tl.store(out_ptr + row * n_cols + i, -x, mask=i < n_cols)


@triton.jit
def far_blocks(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store blocks of x negated, for any distance between rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, BLOCK)
    mask = (row < n_rows)[:, None] & (i < n_cols)[None, :]
    x = tl.load(x_ptr + row.to(tl.int64)[:, None] * stride + i[None, :], mask=mask)
    tl.store(out_ptr + row[:, None] * n_cols + i[None, :], -x, mask=mask)


@triton.jit
def count_far_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Add the rows of x to the rows of out, for any stride of out."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + i, mask=i < n_cols)
    tl.atomic_add(out_ptr + row.to(tl.int64) * stride + i, x, mask=i < n_cols)


@triton.jit
def add_far_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the sum of the rows of x, one after the other, for any distance between them."""
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    total = tl.zeros((BLOCK,), tl.int32)
    for _ in range(n_rows):
        total += tl.load(x_ptr + i, mask=mask, other=0)
        x_ptr += stride
    tl.store(out_ptr + i, total, mask=mask)


@triton.jit
def negate_long(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store x negated, for a 64-bit length."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, -tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def add_far_groups(x_ptr, rows_ptr, out_ptr, stride, num_groups, BLOCK: tl.constexpr):
    """Add up the first block of each group of rows, at any distance between these."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.int32)
    for group in range(num_groups):
        first, rows = x_ptr + group * BLOCK, tl.load(rows_ptr + group)
        tensor = tl.make_tensor_descriptor(first, [rows, BLOCK], [stride, 1], [BLOCK, BLOCK])
        total += tensor.load([0, 0])
    tl.store(out_ptr + i[:, None] * BLOCK + i[None, :], total)
