"""Matrix products of rows that are already with their experts: groups of one N and K, maps from the launch.

Two layouts of rows, as mixtures of experts have them. *Masked*: each expert has room for so many rows, and how
many there are is in memory, as in a decode step whose shapes a graph has fixed. *Contiguous*: rows of all experts
follow each other, each expert's a whole number of blocks, as after a sort in a prefill.
"""

import triton
import triton.language as tl
from matmul import tile_of_program
from persistent_matmul import columns_of_parts


@triton.jit
def masked_grouped_gemm_kernel(
    a, b, c, counts_ptr, n_groups, N, K, n_programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr,
):  # fmt: skip
    """Store C[g] = A[g] @ B[g]^T for the first `counts[g]` rows of each group.

    A is (groups, rows, K), B (groups, N, K), C (groups, rows, N), through descriptors of blocks
    (1, BLOCK_M, BLOCK_K), (1, BLOCK_N, BLOCK_K) and (1, BLOCK_M, EPILOGUE_N). Blocks of rows of which a
    group has none are not computed; of the last block, C holds anything beyond the group's rows.
    `n_programs` is the extent of the grid.
    """
    num_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    end = 0
    for group in range(n_groups):
        start, end = end, end + tl.cdiv(tl.load(counts_ptr + group), BLOCK_M) * num_n
        if tile < end:
            for index in range(tile, end, n_programs):
                row = (index - start) // num_n * BLOCK_M
                column = (index - start) % num_n * BLOCK_N
                acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for k in range(0, K, BLOCK_K):
                    left = a.load([group, row, k]).reshape(BLOCK_M, BLOCK_K)
                    right = b.load([group, column, k]).reshape(BLOCK_N, BLOCK_K)
                    acc = tl.dot(left, right.T, acc)
                parts = columns_of_parts(acc.to(c.dtype), EPILOGUE_N)
                for part in tl.static_range(BLOCK_N // EPILOGUE_N):
                    block = parts[part].reshape(1, BLOCK_M, EPILOGUE_N)
                    c.store([group, row, column + part * EPILOGUE_N], block)
            tile += tl.cdiv(end - tile, n_programs) * n_programs


@triton.jit
def contiguous_grouped_gemm_kernel(
    a, b, c, group_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Store C = A @ B[g]^T, where `groups[r]` is the group g of row r: one for each BLOCK_M rows.

    A is (M, K), B (groups, N, K), C (M, N), through descriptors of blocks (BLOCK_M, BLOCK_K),
    (1, BLOCK_N, BLOCK_K) and (BLOCK_M, BLOCK_N). Blocks of group -1 are left as they are. The grid has a
    program for each tile of C.
    """
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tile_of_program(tl.program_id(0), num_m, num_n, GROUP_M)
    row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
    group = tl.load(group_ptr + row)
    if group >= 0:
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            right = b.load([group, column, k]).reshape(BLOCK_N, BLOCK_K)
            acc = tl.dot(a.load([row, k]), right.T, acc)
        c.store([row, column], acc.to(c.dtype))
