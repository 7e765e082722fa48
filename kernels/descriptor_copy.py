"""Copies of a tensor block by block, through descriptors, or row by row, through pointers.

A block that lies over the edge is cut there by the descriptor itself, so nothing is masked. The
tensors are row-major; on a GPU without tensor copies the same source becomes masked accesses.
"""

import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x, out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write the transpose of `x` (M, N) to `out` (N, M)."""
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    block = x.load([row, column])
    out.store([column, row], block.T)


@triton.jit
def transpose_chunks_kernel(x, out, ROWS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Write the transpose of `x`, (M, N) chunks of CHUNK elements each, to `out`."""
    row = tl.program_id(0) * ROWS
    column = tl.program_id(1) * CHUNKS
    block = tl.reshape(x.load([row, column * CHUNK]), (ROWS, CHUNKS, CHUNK))
    turned = tl.reshape(tl.permute(block, (1, 0, 2)), (CHUNKS, ROWS * CHUNK))
    out.store([column, row * CHUNK], turned)


@triton.jit
def scale_rows_kernel(x, scales, out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write each row of `x` (M, N) times its scale (M) to `out`."""
    row = tl.program_id(0) * BLOCK_M
    factors = scales.load([row])
    for column in range(0, x.shape[1], BLOCK_N):
        block = x.load([row, column]).to(tl.float32) * factors[:, None]
        out.store([row, column], block.to(out.dtype))


@triton.jit
def accumulate_kernel(x, total, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Add every block of `x` (M, N) to the one block `total` (BLOCK_M, BLOCK_N)."""
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    total.atomic_add([0, 0], x.load([row, column]))


@triton.jit
def scale_long_rows_kernel(x_ptr, out_ptr, scale_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Write each row of `x` (n_rows, n_cols) times its scale (n_rows) to `out`.

    Rows are `stride` elements apart. A GPU that copies runs of memory itself does so both ways, some
    blocks ahead and one behind; `out` is not `x` then.
    """
    row = tl.program_id(0)
    tl.assume(row < n_rows)
    scale = tl.load(scale_ptr + row)
    start_of_row = row.to(tl.int64) * stride
    for start in tl.range(0, n_cols, BLOCK, num_stages=4, warp_specialize=True):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start_of_row + column, mask=column < n_cols, other=0.0)
        scaled = (x.to(tl.float32) * scale).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + start_of_row + column, scaled, mask=column < n_cols)
