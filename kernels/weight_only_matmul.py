"""Matrix products with weights of fewer bits than the rows they multiply, through tensor descriptors.

A tile of the result is computed transposed, so that weights are the left operand of the dot. Hopper's
tensor cores take that one from registers, which is where weights are converted to the type of the
rows.
"""

import triton
import triton.language as tl
from matmul import tile_of_program


@triton.jit
def persistent_weight_only_kernel(
    x, w, c, scale_ptr,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_N: tl.constexpr, NUM_SMS: tl.constexpr,
    FLATTEN: tl.constexpr = True,  # noqa: FBT002 - a constant
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002
):  # fmt: skip
    """Store (X @ W^T) * scale to C (M, N): X is (M, K), W (N, K), one fp32 scale a row of W.

    Weights are numbers of 8 bits, which X's type holds exactly: int8 or fp8 for bf16 and fp16. Blocks
    of the descriptors are (BLOCK_M, BLOCK_K), (BLOCK_N, BLOCK_K) and (BLOCK_M, BLOCK_N).
    """
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for index in tl.range(
        tl.program_id(0), num_m * num_n, NUM_SMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE
    ):
        tile_n, tile_m = tile_of_program(index, num_n, num_m, GROUP_N)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for k in range(0, K, BLOCK_K):
            weights = w.load([column, k])
            rows = x.load([row, k])
            acc = tl.dot(weights.to(rows.dtype), rows.T, acc)
        n = column + tl.arange(0, BLOCK_N)
        scale = tl.load(scale_ptr + n, mask=n < N, other=0.0)
        c.store([row, column], (acc * scale[:, None]).T.to(c.dtype))
