"""The kernel of benchmarks/bulk_rows.py: scale rows in a loop."""

import triton
import triton.language as tl


@triton.jit
def scale_rows_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    stride,
    n_rows,
    n_cols,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Write each row of `x` (n_rows, n_cols) times its scale (n_rows) to `out`.

    Each of at most `PROGRAMS` programs takes every `PROGRAMS`-th row.
    """
    for row in tl.range(tl.program_id(0), n_rows, PROGRAMS, num_stages=STAGES):
        scale = tl.load(scale_ptr + row)
        start_of_row = row.to(tl.int64) * stride
        for start in tl.range(0, n_cols, BLOCK, num_stages=STAGES):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + start_of_row + column, mask=column < n_cols, other=0.0)
            scaled = (x.to(tl.float32) * scale).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + start_of_row + column, scaled, mask=column < n_cols)
