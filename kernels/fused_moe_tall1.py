"""Linear layers of a mixture of experts in fp8 with scales of blocks: up to 288 rows of an expert are one tile.

256 rows are two parts of a tile, as in `blockwise_matmul_kernel`. What an expert has beyond is multiplied transposed, as
columns, of which tensor cores take any multiple of 8. So each weight leaves memory once, and few rows fill up.
"""

import triton
import triton.language as tl
from fused_moe_columns import first_columns
from matmul import activate
from persistent_matmul import columns_of_parts


@triton.jit
def activated(acc, ALONG: tl.constexpr):
    """Return silu(gate) * up of a tile with 8 of gate and 8 of up in turn along an axis."""
    if ALONG == 1:
        pairs = acc.reshape(acc.shape[0], acc.shape[1] // 16, 2, 8).permute(0, 1, 3, 2)
        gate, up = pairs.split()
        x = (activate(gate, "silu") * up).reshape(acc.shape[0], acc.shape[1] // 2)
    else:
        pairs = acc.reshape(acc.shape[0] // 16, 2, 8, acc.shape[1]).permute(0, 2, 3, 1)
        gate, up = pairs.split()
        x = (activate(gate, "silu") * up).reshape(acc.shape[0] // 2, acc.shape[1])
    return x


@triton.jit
def results(
    a, more, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, next_expert, next_column, first, K, dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, MOST_BEYOND: tl.constexpr,
    SWIGLU: tl.constexpr, PREFETCH: tl.constexpr, NEXT: tl.constexpr,
):  # fmt: skip
    """Return the results of two parts of BLOCK_M rows, and of TAIL rows beyond these, transposed."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_below = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    tail = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    below, beyond = first + BLOCK_M, first + 2 * BLOCK_M
    for block in range(tl.cdiv(K, BLOCK_K)):
        k = block * BLOCK_K
        # Loads that stand together come and go together.
        if SWIGLU:
            weights = b.load([expert, column // 8, 0, 0, k]).reshape(BLOCK_N, BLOCK_K)
        else:
            weights = b.load([expert, column, k]).reshape(BLOCK_N, BLOCK_K)
        if PREFETCH > 0:
            far = k + PREFETCH * BLOCK_K
            far_expert, far_column = expert, column
            if NEXT:
                of_next = far >= K
                far = tl.where(of_next, far - K, far)
                far_expert, far_column = tl.where(of_next, next_expert, expert), tl.where(of_next, next_column, column)
            if SWIGLU:
                b.prefetch([far_expert, far_column // 8, 0, 0, far])
            else:
                b.prefetch([far_expert, far_column, far])
        rows, scales = a.load([first, k]), scale_a.load([block, first])
        rows_below, scales_below = a.load([below, k]), scale_a.load([block, below])
        of_weights = tl.load(scale_ptr + block)
        if SWIGLU:
            is_gate = tl.arange(0, BLOCK_N) // 8 % 2 == 0
            of_weights = tl.where(is_gate, of_weights, tl.load(beside_ptr + block))
            acc += tl.dot(rows, weights.T) * (scales.reshape(BLOCK_M)[:, None] * of_weights[None, :])
            product = tl.dot(rows_below, weights.T)
            of_rows = scales_below.reshape(BLOCK_M)[:, None] * of_weights[None, :]
            if TAIL > 0:
                rows_beyond, scales_beyond = more.load([beyond, k]), scale_a.load([block, beyond])
            if TAIL == 16:
                beside = tl.dot(weights, rows_beyond.T)
            acc_below += product * of_rows
            if TAIL == 32:
                beside = tl.dot(weights, rows_beyond.T)
            if TAIL > 0:
                tail += beside * (of_weights[:, None] * scales_beyond.reshape(BLOCK_M)[None, :])
        else:
            acc += tl.dot(rows, weights.T) * (scales.reshape(BLOCK_M) * of_weights)[:, None]
            product = tl.dot(rows_below, weights.T)
            of_rows = (scales_below.reshape(BLOCK_M) * of_weights)[:, None]
            if TAIL > 0:
                rows_beyond, scales_beyond = more.load([beyond, k]), scale_a.load([block, beyond])
            if TAIL == 16:
                beside = tl.dot(weights, rows_beyond.T)
            acc_below += product * of_rows
            if TAIL == 32:
                beside = tl.dot(weights, rows_beyond.T)
            if TAIL > 0:
                tail += beside * (scales_beyond.reshape(BLOCK_M) * of_weights)[None, :]
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    if SWIGLU:
        acc, acc_below = activated(acc, 1), activated(acc_below, 1)
    if TAIL > 0:
        tail = first_columns(tail, TAIL)
        if SWIGLU:
            tail = activated(tail, 0)
    if factors is not None:
        of_rows, of_below = factors.load([first]), factors.load([below])
        if TAIL > 0:
            of_beyond = factors.load([beyond])
        acc *= of_rows[:, None]
        acc_below *= of_below[:, None]
        if TAIL > 0:
            tail *= of_beyond[None, :]
    if TAIL > 0:
        x_beyond = columns_of_parts(tail, MOST_BEYOND)[0].to(dtype)
    else:
        x_beyond = tl.zeros((COLUMNS, MOST_BEYOND), dtype)
    return acc.to(dtype), acc_below.to(dtype), x_beyond


@triton.jit
def fused_moe_tall1_kernel(
    a, more, b, out, out_beyond, scale_a, scale_b_ptr, start_ptr, count_ptr, expert_ptr,
    N, K, stride_sbe, stride_sbn, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, SWIGLU: tl.constexpr,
    PREFETCH: tl.constexpr = 0, NEXT: tl.constexpr = False, factors=None,
):  # fmt: skip
    """Store A @ B[expert]^T."""
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * COLUMNS
    first, count = tl.load(start_ptr + block), tl.load(count_ptr + block)
    expert = tl.load(expert_ptr + block)
    next_program = tl.program_id(0) + 132
    next_expert = tl.load(expert_ptr + tl.minimum(next_program // num_n, n_blocks - 1))
    next_column = next_program % num_n * COLUMNS
    # `first` and `expert` are not negative: they stand here so that all are loaded at once, none after the branch.
    if count + tl.minimum(first, 0) + tl.minimum(expert, 0) == 0:
        return
    scale_ptr = scale_b_ptr + expert.to(tl.int64) * stride_sbe + column // 128 * stride_sbn
    beside_ptr = scale_ptr + (N // 128 if SWIGLU else 0) * stride_sbn
    if count > 2 * BLOCK_M:
        x, x_below, x_beyond = results(
            a, more, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, next_expert, next_column, first, K, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, TAIL, TAIL, SWIGLU, PREFETCH, NEXT,
        )  # fmt: skip
        out_beyond.store([first + 2 * BLOCK_M, column], x_beyond.T)
    else:
        x, x_below, x_beyond = results(
            a, more, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, next_expert, next_column, first, K, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, 0, TAIL, SWIGLU, PREFETCH, NEXT,
        )  # fmt: skip
    out.store([first, column], x)
    out.store([first + BLOCK_M, column], x_below)
