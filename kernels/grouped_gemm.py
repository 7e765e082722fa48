"""Matrix products of groups that differ in M, N, K and strides, in one launch.

A grid of programs goes through the tiles of all groups, one group after the other. What a group is, its
sizes, addresses and strides, is in memory; each program makes the tensor maps of a group when it comes to
it, in the style of Triton's tutorial on grouped GEMM.
"""

import triton
import triton.language as tl
from persistent_matmul import columns_of_parts


@triton.jit
def grouped_gemm_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, strides_ptr, n_groups, n_programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr,
    DTYPE: tl.constexpr = tl.bfloat16,
):  # fmt: skip
    """Store C = A @ B^T for each group: A (M, K), B (N, K), C (M, N).

    `a_ptrs`, `b_ptrs` and `c_ptrs` hold the addresses, multiples of 16; `sizes` M, N and K of each
    group; `strides` how many elements a row is from the next in A, B and C, multiples of 16 bytes.
    A row of C is whole pieces of 16 bytes, too: that is what the hardware stores.
    `n_programs` is the extent of the grid. A tile is stored EPILOGUE_N columns at a time.
    """
    tile = tl.program_id(0)
    end = 0
    for group in range(n_groups):
        m = tl.load(sizes_ptr + group * 3)
        n = tl.load(sizes_ptr + group * 3 + 1)
        k = tl.load(sizes_ptr + group * 3 + 2)
        num_n = tl.cdiv(n, BLOCK_N)
        start, end = end, end + tl.cdiv(m, BLOCK_M) * num_n
        if tile < end:
            stride_a = tl.load(strides_ptr + group * 3)
            stride_b = tl.load(strides_ptr + group * 3 + 1)
            stride_c = tl.load(strides_ptr + group * 3 + 2)
            a_ptr = tl.load(a_ptrs + group).to(tl.pointer_type(DTYPE))
            b_ptr = tl.load(b_ptrs + group).to(tl.pointer_type(DTYPE))
            c_ptr = tl.load(c_ptrs + group).to(tl.pointer_type(DTYPE))
            a = tl.make_tensor_descriptor(a_ptr, [m, k], [stride_a, 1], [BLOCK_M, BLOCK_K])
            b = tl.make_tensor_descriptor(b_ptr, [n, k], [stride_b, 1], [BLOCK_N, BLOCK_K])
            c = tl.make_tensor_descriptor(c_ptr, [m, n], [stride_c, 1], [BLOCK_M, EPILOGUE_N])
            for index in range(tile, end, n_programs):
                row = (index - start) // num_n * BLOCK_M
                column = (index - start) % num_n * BLOCK_N
                acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for step in range(0, k, BLOCK_K):
                    acc = tl.dot(a.load([row, step]), b.load([column, step]).T, acc)
                parts = columns_of_parts(acc.to(DTYPE), EPILOGUE_N)
                for part in tl.static_range(BLOCK_N // EPILOGUE_N):
                    c.store([row, column + part * EPILOGUE_N], parts[part])
            tile += tl.cdiv(end - tile, n_programs) * n_programs
