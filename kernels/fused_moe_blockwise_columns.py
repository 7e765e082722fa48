"""Linear layers of a mixture of experts in fp8 with scales of blocks, computed transposed.

Rows of an expert are the columns of a tile, as in `fused_moe_columns`, so up to MOST of them are one tile, of as many
columns as there are rows or a few more. Their scales are there one for each column. Each 128 of K are summed apart, in
three parts of as many columns, so that registers hold all sums beside the product that is being added.
"""

import triton
import triton.language as tl
from fused_moe_columns import finished, first_columns, store_columns


@triton.jit
def scales_of_weights(scale_ptr, beside_ptr, BLOCK_N: tl.constexpr, SWIGLU: tl.constexpr):
    """Return the scale of a tile of weights, or one for each row: 8 of gate and 8 of up, in turn, or 128 and 128."""
    RUN: tl.constexpr = 8 if SWIGLU else 128
    scale = tl.load(scale_ptr)
    if BLOCK_N > RUN:
        scale = tl.where(tl.arange(0, BLOCK_N) // RUN % 2 == 0, scale, tl.load(beside_ptr))[:, None]
    return scale


@triton.jit
def results_of_width(
    a, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, count, K, out_dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, SWIGLU: tl.constexpr,
    WIDTH: tl.constexpr, STEP: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Return the results of `count` columns or some more in three tiles: WIDTH, less STEP as often as it will do."""
    if WIDTH == LEAST:
        parts = results(
            a, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, K, out_dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, PART, SWIGLU, WIDTH,
        )  # fmt: skip
    elif count > WIDTH - STEP:
        parts = results(
            a, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, K, out_dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, PART, SWIGLU, WIDTH,
        )  # fmt: skip
    else:
        parts = results_of_width(
            a, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, count, K, out_dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, PART, SWIGLU, WIDTH - STEP, STEP, LEAST,
        )  # fmt: skip
    return parts


@triton.jit
def results(
    a, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, K, out_dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, SWIGLU: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the results of WIDTH columns in three tiles, PART in each, the rest in the last one."""
    REST: tl.constexpr = WIDTH - 2 * PART
    left = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    middle = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    right = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    second, third = first + PART, first + 2 * PART
    for block in range(tl.cdiv(K, BLOCK_K)):
        k = block * BLOCK_K
        # Loads that stand together come and go together.
        if SWIGLU:
            weights = b.load([expert, column // 8, 0, 0, k]).reshape(BLOCK_N, BLOCK_K)
        else:
            weights = b.load([expert, column, k]).reshape(BLOCK_N, BLOCK_K)
        x, y, z = a.load([first, k]), a.load([second, k]), a.load([third, k])
        of_x, of_y, of_z = scale_a.load([block, first]), scale_a.load([block, second]), scale_a.load([block, third])
        scale = scales_of_weights(scale_ptr + block, beside_ptr + block, BLOCK_N, SWIGLU)
        left += tl.dot(weights, x.T) * (of_x.reshape(BLOCK_M)[None, :] * scale)
        middle += tl.dot(weights, y.T) * (of_y.reshape(BLOCK_M)[None, :] * scale)
        right += tl.dot(weights, z.T) * (of_z.reshape(BLOCK_M)[None, :] * scale)
    left = finished(first_columns(left, PART), factors, first, out_dtype, SWIGLU)
    middle = finished(first_columns(middle, PART), factors, second, out_dtype, SWIGLU)
    right = finished(first_columns(right, REST), factors, third, out_dtype, SWIGLU)
    return left, middle, right


@triton.jit
def fused_moe_blockwise_columns_kernel(
    a, b, out, scale_a, scale_b_ptr, start_ptr, count_ptr, expert_ptr,
    N, K, stride_sbe, stride_sbn, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, MOST: tl.constexpr,
    STEP: tl.constexpr, LEAST: tl.constexpr, EPILOGUE_M: tl.constexpr, SWIGLU: tl.constexpr, factors=None,
):  # fmt: skip
    """Store A @ B[expert]^T in bf16, with an fp32 scale for 1 x 128 of A and 128 x 128 of B, times `factors` if any.

    Block *i* has `count[i]` rows from `start[i]` on, MOST at most, all for one expert, `expert[i]`; it may have none.
    Starts are multiples of EPILOGUE_M. A is (rows, K) in blocks of (BLOCK_M, 128), `out` (rows, N) in blocks of
    (EPILOGUE_M, BLOCK_N), `factors` (rows) of fp32 in blocks of BLOCK_M, `scale_a` (cdiv(K, 128), rows) in blocks of
    (1, BLOCK_M). B is (experts, N, K) in blocks of (1, BLOCK_N, 128), `scale_b` (experts, blocks of rows of B,
    cdiv(K, 128)), experts `stride_sbe` and rows `stride_sbn` apart.

    With SWIGLU the result is silu(gate) * up, N is a multiple of 128, and B is (experts, N / 8, 2, 8, K), gate and up
    along the axis of 2, wherever these are in memory, in blocks of (1, BLOCK_N / 16, 2, 8, 128).
    """
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(256 % BLOCK_N == 0, "a tile lies under two scales of B")
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * COLUMNS
    first, count = tl.load(start_ptr + block), tl.load(count_ptr + block)
    # `first` is not negative: it stands here so that both numbers are loaded at once, none after the branch.
    if count + tl.minimum(first, 0) == 0:
        return
    expert = tl.load(expert_ptr + block)
    scale_ptr = scale_b_ptr + expert.to(tl.int64) * stride_sbe + column // 128 * stride_sbn
    beside_ptr = scale_ptr + (N // 128 if SWIGLU else 1) * stride_sbn
    left, middle, right = results_of_width(
        a, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, count, K, out.dtype,
        BLOCK_M, BLOCK_N, BLOCK_K, PART, SWIGLU, MOST, STEP, LEAST,
    )  # fmt: skip
    REST: tl.constexpr = MOST - 2 * PART
    store_columns(left, out, None, first, count, column, PART, EPILOGUE_M, SWIGLU=False)
    second, third = first + PART, first + 2 * PART
    store_columns(middle, out, None, second, count - PART, column, PART, EPILOGUE_M, SWIGLU=False)
    store_columns(right, out, None, third, count - 2 * PART, column, REST, EPILOGUE_M, SWIGLU=False)
