"""Small kernels to choose inputs for and to verify: one for each thing that can be told of one."""

import triton
import triton.language as tl


@triton.jit
def scale_rows(x_ptr, out_ptr, stride, n_rows, n_cols, factor, BLOCK: tl.constexpr):
    """Store x * factor for rows of any length, each product rounded once."""
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * stride + cols, mask=mask)
        tl.store(out_ptr + row * stride + cols, x * factor, mask=mask)


@triton.jit
def sum_rows(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store the sum of every row."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32), axis=0))


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, n, stride_x, BLOCK: tl.constexpr):
    """Store the first two elements of the rows that are named."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    row = tl.load(index_ptr + i, mask=mask, other=0)
    first = tl.load(x_ptr + row * stride_x, mask=mask)
    second = tl.load(x_ptr + row * stride_x + 1, mask=mask)
    tl.store(out_ptr + i * 2, first, mask=mask)
    tl.store(out_ptr + i * 2 + 1, second, mask=mask)


@triton.jit
def leaky(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store what masked-off lanes hold: nobody knows what that is."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n - 1)
    tl.store(out_ptr + i, x, mask=i < n)


@triton.jit
def crowd(out_ptr, n, BLOCK: tl.constexpr):
    """Store to the same place from every program."""
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, i + tl.program_id(0), mask=i < n)


@triton.jit
def count(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Add up all elements, in any order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))


@triton.jit
def last_adds(x_ptr, parts_ptr, counter_ptr, out_ptr, BLOCK: tl.constexpr):
    """Leave a sum, and let whoever comes last add up those of all programs."""
    i = tl.arange(0, BLOCK)
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    tl.store(parts_ptr + program, tl.sum(tl.load(x_ptr + program * BLOCK + i), axis=0))
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == num_programs - 1:
        parts = tl.load(parts_ptr + i, mask=i < num_programs, other=0)
        tl.store(out_ptr, tl.sum(parts, axis=0))
        tl.store(counter_ptr, 0)


@triton.jit
def grouped(a_ptr, out_ptr, M, N, stride_am, stride_an, stride_om, stride_on,
            BLOCK: tl.constexpr):  # fmt: skip
    """Store a / 2 in tiles, for any strides of both axes."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (m < M)[:, None] & (n < N)[None, :]
    a = tl.load(a_ptr + m[:, None] * stride_am + n[None, :] * stride_an, mask=mask)
    tl.store(out_ptr + m[:, None] * stride_om + n[None, :] * stride_on, a * 0.5, mask=mask)


@triton.jit
def halves(x_ptr, n_rows, stride, n, BLOCK: tl.constexpr):
    """Swap, in place, the two halves of every row of 2 * n."""
    row = tl.arange(0, BLOCK)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    mask = (row < n_rows) & (i < n)
    first = tl.load(x_ptr + row * stride + i, mask=mask)
    second = tl.load(x_ptr + row * stride + n + i, mask=mask)
    tl.store(x_ptr + row * stride + i, second, mask=mask)
    tl.store(x_ptr + row * stride + n + i, first, mask=mask)


@triton.jit
def twice(x_ptr, n, BLOCK: tl.constexpr):
    """Store zeros, and then ones over them."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 0.0, mask=i < n)
    tl.store(x_ptr + i, 1.0, mask=i < n)


@triton.jit
def doubled(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x + x: pointers alone tell launches apart."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x + x)


@triton.jit
def turned(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x backwards in out, by way of out: threads read what others wrote."""
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i))
    tl.debug_barrier()
    x = tl.load(out_ptr + BLOCK - 1 - i)
    tl.debug_barrier()
    tl.store(out_ptr + i, x)
