"""Matrix products of groups that differ in M, N, K and strides, in one launch.

A grid of programs goes through the tiles of all groups, one group after the other. What a group is, its
sizes, addresses and strides, is in memory; each program makes the tensor maps of a group when it comes to
it, in the style of Triton's tutorial on grouped GEMM.

Groups come in the order that `order_groups_kernel` gives them, the largest K first. Then the programs that
run at one time are at tiles that take about as long, so they stay in step: what they read of a group is in
the L2 cache for all of them, and the last tiles are the shortest. It is a launch of its own, of some
microseconds; who knows the order already passes that.
"""

import triton
import triton.language as tl
from persistent_matmul import columns_of_parts


@triton.jit
def order_groups_kernel(sizes_ptr, order_ptr, n_groups, BLOCK: tl.constexpr):
    """Store the numbers of the groups to `order_ptr`, those of the largest K first.

    `sizes` are as for `grouped_gemm_kernel`. Each program finds the places of BLOCK groups, those of
    the same K in the order in which they are given.
    """
    mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine_k = tl.load(sizes_ptr + mine * 3 + 2, mask=mine < n_groups, other=0)
    place = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n_groups, BLOCK):
        other = start + tl.arange(0, BLOCK)
        k = tl.load(sizes_ptr + other * 3 + 2, mask=other < n_groups, other=-1)
        is_larger = k[:, None] > mine_k[None, :]
        is_earlier = (k[:, None] == mine_k[None, :]) & (other[:, None] < mine[None, :])
        place += tl.sum((is_larger | is_earlier).to(tl.int32), 0)
    tl.store(order_ptr + place, mine, mask=mine < n_groups)


@triton.jit
def _place_in_round(number, n_programs):
    """Return which tile of a round is this program's: programs take turns there and back."""
    program = tl.program_id(0)
    return program + number % 2 * (n_programs - 1 - 2 * program)


@triton.jit
def grouped_gemm_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, strides_ptr, order_ptr, n_groups, n_programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EPILOGUE_N: tl.constexpr,
    DTYPE: tl.constexpr = tl.bfloat16,
):  # fmt: skip
    """Store C = A @ B^T for each group: A (M, K), B (N, K), C (M, N).

    `a_ptrs`, `b_ptrs` and `c_ptrs` hold the addresses, multiples of 16; `sizes` M, N and K of each
    group; `strides` how many elements a row is from the next in A, B and C, multiples of 16 bytes.
    A row of C is whole pieces of 16 bytes, too: that is what the hardware stores.
    `order` holds the numbers of the groups in the order in which they are computed.
    `n_programs` is the extent of the grid. A tile is stored EPILOGUE_N columns at a time.
    """
    first, end = 0, 0
    for place in range(n_groups):
        group = tl.load(order_ptr + place)
        m = tl.load(sizes_ptr + group * 3)
        n = tl.load(sizes_ptr + group * 3 + 1)
        k = tl.load(sizes_ptr + group * 3 + 2)
        num_n = tl.cdiv(n, BLOCK_N)
        start, end = end, end + tl.cdiv(m, BLOCK_M) * num_n
        # A round is a tile for each program; those before `last` begin for this one before `end`.
        last = end // n_programs
        last += (_place_in_round(last, n_programs) < end % n_programs).to(tl.int32)
        if first < last:
            stride_a = tl.load(strides_ptr + group * 3)
            stride_b = tl.load(strides_ptr + group * 3 + 1)
            stride_c = tl.load(strides_ptr + group * 3 + 2)
            a_ptr = tl.load(a_ptrs + group).to(tl.pointer_type(DTYPE))
            b_ptr = tl.load(b_ptrs + group).to(tl.pointer_type(DTYPE))
            c_ptr = tl.load(c_ptrs + group).to(tl.pointer_type(DTYPE))
            a = tl.make_tensor_descriptor(a_ptr, [m, k], [stride_a, 1], [BLOCK_M, BLOCK_K])
            b = tl.make_tensor_descriptor(b_ptr, [n, k], [stride_b, 1], [BLOCK_N, BLOCK_K])
            c = tl.make_tensor_descriptor(c_ptr, [m, n], [stride_c, 1], [BLOCK_M, EPILOGUE_N])
            for number in range(first, last):
                index = number * n_programs + _place_in_round(number, n_programs) - start
                row = index // num_n * BLOCK_M
                column = index % num_n * BLOCK_N
                acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
                for step in range(0, k, BLOCK_K):
                    acc = tl.dot(a.load([row, step]), b.load([column, step]).T, acc)
                parts = columns_of_parts(acc.to(DTYPE), EPILOGUE_N)
                for part in tl.static_range(BLOCK_N // EPILOGUE_N):
                    c.store([row, column + part * EPILOGUE_N], parts[part])
            first = last
