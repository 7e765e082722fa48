"""Products of fp8 with a scale for each block of K: 1 x 128 of A, 128 x 128 of B.

Each 128 of K are summed apart, scaled, and added in fp32: the sums that tensor cores make of fp8 have
fewer bits than fp32.
"""

import triton
import triton.language as tl
from matmul import tile_of_program


@triton.jit
def blockwise_matmul_kernel(
    a, b, c, scale_a, scale_b_ptr,
    M, N, K, stride_sb,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
    FLATTEN: tl.constexpr = True,  # noqa: FBT002 - a constant
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store A @ B^T to C (M, N): A is (M, K), B (N, K), both fp8, C bf16.

    A tile has PARTS, 1 or 2, times BLOCK_M rows, each part with a sum of its own: B is read once for
    both. Descriptors' blocks are (BLOCK_M, 128) of A, (BLOCK_N, 128) of B, (BLOCK_M, BLOCK_N) of C.
    `scale_a` is (cdiv(K, 128), M) in blocks of (1, BLOCK_M), transposed so that the scales of a tile are
    neighbours; `scale_b` is (cdiv(N, 128), cdiv(K, 128)), its rows `stride_sb` apart.
    """
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    TALL: tl.constexpr = PARTS * BLOCK_M
    num_m, num_n = tl.cdiv(M, TALL), tl.cdiv(N, BLOCK_N)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_m, tile_n = tile_of_program(index, num_m, num_n, GROUP_M)
        row, column = tile_m * TALL, tile_n * BLOCK_N
        below = row + BLOCK_M
        scale_b_ptrs = scale_b_ptr + column // 128 * stride_sb
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        acc_below = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for block in range(tl.cdiv(K, BLOCK_K)):
            k = block * BLOCK_K
            # Loads that stand together come and go together.
            right = b.load([column, k]).T
            left, scales = a.load([row, k]), scale_a.load([block, row])
            if PARTS == 2:
                left_below, scales_below = a.load([below, k]), scale_a.load([block, below])
            of_block = tl.load(scale_b_ptrs + block)
            acc += tl.dot(left, right) * (scales.reshape(BLOCK_M) * of_block)[:, None]
            if PARTS == 2:
                of_rows = scales_below.reshape(BLOCK_M) * of_block
                acc_below += tl.dot(left_below, right) * of_rows[:, None]
        c.store([row, column], acc.to(c.dtype))
        if PARTS == 2:
            c.store([below, column], acc_below.to(c.dtype))
