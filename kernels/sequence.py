"""Kernels along a sequence: a gated linear recurrence, a cyclic shift, and values put for NaN."""

import triton
import triton.language as tl


@triton.jit
def _then(decay, state, next_decay, next_state):
    """Compose two steps h -> decay * h + state; the later one is the second."""
    return decay * next_decay, state * next_decay + next_state


@triton.jit
def linear_recurrence_kernel(
    decay_ptr, x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr
):
    """Store h[t] = decay[t] * h[t-1] + x[t] of every row, from h[-1] = 0: a state-space layer.

    Rows are `stride` elements apart and of any length: blocks of a row follow each other, and the
    last state is carried along.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    decay_ptr += row * stride
    x_ptr += row * stride
    out_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    carry = 0.0
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        decay = tl.load(decay_ptr + start + cols, mask=mask, other=1.0).to(tl.float32)
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        decays, states = tl.associative_scan((decay, x), 0, _then)
        states += decays * carry
        tl.store(out_ptr + start + cols, states.to(out_ptr.dtype.element_ty), mask=mask)
        carry = tl.sum(tl.where(cols == BLOCK - 1, states, 0.0), axis=0)


@triton.jit
def roll_rows_kernel(x_ptr, out_ptr, stride, n_rows, n_cols, shift, BLOCK: tl.constexpr):
    """Store every row of x moved `shift` columns to the right, to the left where it is negative.

    What leaves a row on one side comes back on the other, as in windowed attention.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    source = (cols - shift) % n_cols  # with the sign of what was divided
    source = tl.where(source < 0, source + n_cols, source)
    x = tl.load(x_ptr + row * stride + source, mask=mask)
    tl.store(out_ptr + row * stride + cols, x, mask=mask)


@triton.jit
def replace_nan_kernel(x_ptr, out_ptr, n, value, BLOCK: tl.constexpr):
    """Store x with `value` for every NaN."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    x = tl.where(x == x, x, value)  # noqa: PLR0124 - false of NaN alone
    tl.store(out_ptr + i, x.to(out_ptr.dtype.element_ty), mask=i < n)
