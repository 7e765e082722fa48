"""RMSNorm of rows, a row for each program."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(
    x_ptr,
    weight_ptr,
    out_ptr,
    n_rows,  # noqa: ARG001 - the grid is made of it
    n_cols,
    eps,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n_cols
    x = tl.load(x_ptr + row * n_cols + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / n_cols + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * n_cols + columns, x * scale * weight, mask=inside)
