"""Gradients of RMSNorm and LayerNorm: rows that persistent programs share, and sums over all of them.

A program takes every `n_programs`-th row, so the gradients of weights and biases are sums over its rows that
stay in registers; `partial_sums_kernel` adds up what the programs have stored.
"""

import triton
import triton.language as tl


@triton.jit
def _add_pairs(a, b, c, d):
    """Add two values at once: one exchange between warps for both."""
    return a + c, b + d


@triton.jit
def rmsnorm_backward_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    rstd_ptr,
    dx_ptr,
    dw_ptr,
    stride,
    n_rows,
    n_cols,
    n_programs,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Store the gradient of every row of x, (n_rows, n_cols), and sums over rows of that of w.

    The forward pass is y = x * rstd * w, rstd one fp32 a row. Rows of `x`, `dy` and `dx` are `stride`
    elements apart. `dw` is fp32, (n_programs, n_cols), a row for each program. BLOCK is at least n_cols.
    """
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    dw = tl.zeros([BLOCK], tl.float32)
    for row in tl.range(program, n_rows, n_programs, num_stages=STAGES):
        start = row.to(tl.int64) * stride
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        x_hat = x * rstd
        wdy = dy * w.to(tl.float32)
        dw += dy * x_hat
        mean = tl.sum(wdy * x_hat, axis=0) / n_cols
        dx = (wdy - x_hat * mean) * rstd
        tl.store(dx_ptr + start + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(dw_ptr + program.to(tl.int64) * n_cols + cols, dw, mask=mask)


@triton.jit
def layernorm_backward_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dw_ptr,
    db_ptr,
    stride,
    n_rows,
    n_cols,
    n_programs,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Store the gradient of every row of x, (n_rows, n_cols), and sums over rows of those of w and b.

    The forward pass is y = (x - mean) * rstd * w + b, mean and rstd one fp32 a row each. Rows of `x`, `dy`
    and `dx` are `stride` elements apart. `dw` and `db` are fp32, (n_programs, n_cols), a row for each
    program. BLOCK is at least n_cols.
    """
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for row in tl.range(program, n_rows, n_programs, num_stages=STAGES):
        start = row.to(tl.int64) * stride
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        # Beyond the end of a row dy is 0, and with it all that this is multiplied by.
        x_hat = (x - mean) * rstd
        wdy = dy * w.to(tl.float32)
        dw += dy * x_hat
        db += dy
        total, total_hat = tl.reduce((wdy, wdy * x_hat), 0, _add_pairs)
        dx = (wdy - total / n_cols - x_hat * (total_hat / n_cols)) * rstd
        tl.store(dx_ptr + start + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(dw_ptr + program.to(tl.int64) * n_cols + cols, dw, mask=mask)
    tl.store(db_ptr + program.to(tl.int64) * n_cols + cols, db, mask=mask)


@triton.jit
def partial_sums_kernel(
    partial_ptr, out_ptr, n_partials, n_cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Store the sum over rows of `partial`, fp32, (n_partials, n_cols), in `out`, (n_cols,)."""
    rows = tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, n_partials, BLOCK_M):
        mask = (start + rows < n_partials)[:, None] & (cols < n_cols)[None, :]
        places = (start + rows).to(tl.int64)[:, None] * n_cols + cols[None, :]
        total += tl.load(partial_ptr + places, mask=mask, other=0.0)
    out = tl.sum(total, axis=0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + cols, out, mask=cols < n_cols)
