"""Average pooling of quantised rows: sums in 32 bits, one division with the sign of its operands."""

import triton
import triton.language as tl


@triton.jit
def average_pool_kernel(
    x_ptr, out_ptr, stride, n_rows, n_cols, zero_point, WINDOW: tl.constexpr, BLOCK: tl.constexpr
):
    """Store the average of the WINDOW elements around each of a row, int8 or uint8.

    Elements beyond the row are not counted. `zero_point` stands for zero, in `x` and `out`.
    Averages are rounded to nearest, halves away from zero, as inference in integers defines them.
    """
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    x_ptr += row * stride
    out_ptr += row * stride
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for place in tl.static_range(WINDOW):
        at = cols + (place - WINDOW // 2)
        in_row = (at >= 0) & (at < n_cols)
        x = tl.load(x_ptr + at, mask=in_row, other=0).to(tl.int32)
        total += tl.where(in_row, x - zero_point, 0)
    first = tl.maximum(cols - WINDOW // 2, 0)
    count = tl.maximum(tl.minimum(cols - WINDOW // 2 + WINDOW, n_cols) - first, 1)
    # `//` of integers rounds towards zero.
    average = (total + tl.where(total < 0, -(count // 2), count // 2)) // count
    out = average + zero_point
    tl.store(out_ptr + cols, out.to(out_ptr.dtype.element_ty), mask=cols < n_cols)
