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
def one_of_four(x, number):
    """Return an element of a block of four."""
    even, odd = tl.split(x.reshape(2, 2))
    first, second = tl.split(tl.where(number % 2 == 0, even, odd))
    return tl.where(number < 2, first, second)


@triton.jit
def results(
    a, more, b, scale_a, scale_b, factors, expert, column, first, N, K, dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, MOST_BEYOND: tl.constexpr,
    SWIGLU: tl.constexpr,
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
        rows, scales = a.load([first, k]), scale_a.load([block, first])
        rows_below, scales_below = a.load([below, k]), scale_a.load([block, below])
        of_weights = scale_b.load([expert, column // 128, block // 4 * 4])
        if SWIGLU:
            of_beside = scale_b.load([expert, column // 128 + N // 128, block // 4 * 4])
        of_weights = one_of_four(of_weights, block % 4)
        if SWIGLU:
            is_gate = tl.arange(0, BLOCK_N) // 8 % 2 == 0
            of_weights = tl.where(is_gate, of_weights, one_of_four(of_beside, block % 4))
            acc += tl.dot(rows, weights.T) * (scales.reshape(BLOCK_M)[:, None] * of_weights[None, :])
            acc_below += tl.dot(rows_below, weights.T) * (scales_below.reshape(BLOCK_M)[:, None] * of_weights[None, :])
            if TAIL > 0:
                rows_beyond, scales_beyond = more.load([beyond, k]), scale_a.load([block, beyond])
                tail += tl.dot(weights, rows_beyond.T) * (of_weights[:, None] * scales_beyond.reshape(BLOCK_M)[None, :])
        else:
            acc += tl.dot(rows, weights.T) * (scales.reshape(BLOCK_M) * of_weights)[:, None]
            acc_below += tl.dot(rows_below, weights.T) * (scales_below.reshape(BLOCK_M) * of_weights)[:, None]
            if TAIL > 0:
                rows_beyond, scales_beyond = more.load([beyond, k]), scale_a.load([block, beyond])
                tail += tl.dot(weights, rows_beyond.T) * (scales_beyond.reshape(BLOCK_M) * of_weights)[None, :]
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    if TAIL > 0:
        tail = first_columns(tail, TAIL)
        if SWIGLU:
            tail = activated(tail, 0)
        if factors is not None:
            tail *= factors.load([beyond])[None, :]
        x_beyond = columns_of_parts(tail, MOST_BEYOND)[0].to(dtype)
    else:
        x_beyond = tl.zeros((COLUMNS, MOST_BEYOND), dtype)
    if SWIGLU:
        acc, acc_below = activated(acc, 1), activated(acc_below, 1)
    if factors is not None:
        acc *= factors.load([first])[:, None]
    x = acc.to(dtype)
    if factors is not None:
        acc_below *= factors.load([below])[:, None]
    return x, acc_below.to(dtype), x_beyond


@triton.jit
def fused_moe_tall_kernel(
    a, more, b, out, out_beyond, scale_a, scale_b, start_ptr, count_ptr, expert_ptr,
    N, K, n_blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, SWIGLU: tl.constexpr,
    factors=None,
):  # fmt: skip
    """Store A @ B[expert]^T."""
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * COLUMNS
    first, count = tl.load(start_ptr + block), tl.load(count_ptr + block)
    expert = tl.load(expert_ptr + block)
    # `first` and `expert` are not negative: they stand here so that all are loaded at once, none after the branch.
    if count + tl.minimum(first, 0) + tl.minimum(expert, 0) == 0:
        return
    if count > 2 * BLOCK_M:
        x, x_below, x_beyond = results(
            a, more, b, scale_a, scale_b, factors, expert, column, first, N, K, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, TAIL, TAIL, SWIGLU,
        )  # fmt: skip
        out_beyond.store([first + 2 * BLOCK_M, column], x_beyond.T)
    else:
        x, x_below, x_beyond = results(
            a, more, b, scale_a, scale_b, factors, expert, column, first, N, K, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, 0, TAIL, SWIGLU,
        )  # fmt: skip
    out.store([first, column], x)
    out.store([first + BLOCK_M, column], x_below)
