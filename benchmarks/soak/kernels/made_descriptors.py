"""Kernels making tensor descriptors from pointers."""

import triton
import triton.language as tl


@triton.jit
def made_load_kernel(
    x_ptr, out_ptr, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """Copy X, (M, N), by blocks, through a descriptor one way; TURNED, its transpose."""
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    block = x.load([row, column])
    m, n = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    if TURNED:
        offsets = n.to(tl.int64)[:, None] * M + m[None, :]
        tl.store(out_ptr + offsets, block.T, mask=(n < N)[:, None] & (m < M)[None, :])
    else:
        offsets = m.to(tl.int64)[:, None] * N + n[None, :]
        tl.store(out_ptr + offsets, block, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def made_rows_kernel(
    x_ptr, out_ptr, rows, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add 1 to `rows` rows, (rows, N), by blocks, each program with a tensor of its own."""
    offset = tl.program_id(0).to(tl.int64) * rows * N
    x = tl.make_tensor_descriptor(x_ptr + offset, [rows, N], [N, 1], [BLOCK_M, BLOCK_N])
    out = tl.make_tensor_descriptor(out_ptr + offset, [rows, N], [N, 1], [BLOCK_M, BLOCK_N])
    for row in range(0, rows, BLOCK_M):
        for column in range(0, N, BLOCK_N):
            out.store([row, column], x.load([row, column]) + 1)
