"""Gathers and scatters of rows through host and device descriptors."""

import triton
import triton.language as tl


@triton.jit
def move(src, dst, rows_ptr, n, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = tl.load(rows_ptr + at, mask=at < n, other=-1)
    for column in range(0, src.shape[1], COLS):
        dst.scatter(src.gather(rows, column) + 1, at, column)


@triton.jit
def moved_back(src_ptr, out_ptr, rows_ptr, count, width, ROWS: tl.constexpr, COLS: tl.constexpr):
    src = tl.make_tensor_descriptor(src_ptr, [count, width], [width, 1], [1, COLS])
    out = tl.make_tensor_descriptor(out_ptr, [count, width], [width, 1], [1, COLS])
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLS
    out.scatter(src.gather(at, column), tl.load(rows_ptr + at, mask=at < count, other=-1), column)
