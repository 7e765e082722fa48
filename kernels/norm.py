"""RMSNorm and LayerNorm over rows, statistics in fp32."""

import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    stride,
    n_rows,
    n_cols,
    eps,
    BLOCK: tl.constexpr,
    LOOP: tl.constexpr,
):
    """Store x / sqrt(mean(x**2) + eps) * w for every row of x, (n_rows, n_cols).

    Rows are `stride` elements apart, in `out` too, which may be `x`. Without LOOP, BLOCK is at
    least n_cols, and a row is read once and stays in registers. With it any row is read twice,
    BLOCK columns at a time.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    out_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    dtype = out_ptr.dtype.element_ty
    if not LOOP:
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + cols, (x * rstd * w).to(dtype), mask=mask)
    else:
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n_cols, BLOCK):
            x = tl.load(x_ptr + start + cols, mask=start + cols < n_cols, other=0.0)
            squares += x.to(tl.float32) * x.to(tl.float32)
        rstd = tl.rsqrt(tl.sum(squares, axis=0) / n_cols + eps)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            w = tl.load(w_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + start + cols, (x * rstd * w).to(dtype), mask=mask)


@triton.jit
def layernorm_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    out_ptr,
    mean_ptr,
    rstd_ptr,
    stride,
    n_rows,
    n_cols,
    eps,
    BLOCK: tl.constexpr,
    LOOP: tl.constexpr,
):
    """Store (x - mean) / sqrt(var + eps) * w + b for every row of x, and mean and 1/sqrt(...).

    x is (n_rows, n_cols), rows `stride` elements apart, as in `out`, which may be `x`; `mean` and
    `rstd` are fp32, one a row, as the backward pass wants them. The variance is that of deviations
    from the mean, never a difference of squares. Without LOOP, BLOCK is at least n_cols, and a row
    is read once. With it any row is read twice, BLOCK columns at a time, with a running mean and
    variance for each lane that are merged at the end.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    out_ptr += row * stride
    cols = tl.arange(0, BLOCK)
    dtype = out_ptr.dtype.element_ty
    if not LOOP:
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(x, axis=0) / n_cols
        centred = tl.where(mask, x - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + cols, (centred * rstd * w + b).to(dtype), mask=mask)
        tl.store(mean_ptr + row, mean)
        tl.store(rstd_ptr + row, rstd)
    else:
        count = tl.zeros([BLOCK], tl.float32)
        lane_mean = tl.zeros([BLOCK], tl.float32)
        lane_m2 = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            count += tl.where(mask, 1.0, 0.0)
            delta = tl.where(mask, x - lane_mean, 0.0)
            lane_mean += delta / tl.maximum(count, 1.0)  # lanes beyond a short row hold nothing
            lane_m2 += delta * (x - lane_mean)
        mean = tl.sum(lane_mean * count, axis=0) / n_cols
        shift = lane_mean - mean
        variance = tl.sum(lane_m2 + count * shift * shift, axis=0) / n_cols
        rstd = tl.rsqrt(variance + eps)
        for start in range(0, n_cols, BLOCK):
            mask = start + cols < n_cols
            x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            w = tl.load(w_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            b = tl.load(b_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + start + cols, ((x - mean) * rstd * w + b).to(dtype), mask=mask)
        tl.store(mean_ptr + row, mean)
        tl.store(rstd_ptr + row, rstd)
