"""Linear layers of a mixture of experts in fp8, with scales of blocks, for rows that are in the order of their experts.

So rows, their scales and the weights all come by tensor copies, as those of `blockwise_matmul_kernel` do, and results
leave by them.

Up to 2 * BLOCK_M + TAIL rows of an expert are one tile, in which each weight leaves memory once. The first 2 * BLOCK_M
are two parts, with a sum of their own each. Those beyond, if there are any, are multiplied transposed: tensor cores
take 64 rows at a time, but columns in multiples of 8, so few rows fill up.
"""

import triton
import triton.language as tl
from fused_moe_columns import first_columns
from matmul import activate
from persistent_matmul import columns_of_parts


@triton.jit
def gated(acc, AXIS: tl.constexpr):
    """Return silu(gate) * up of a tile that has 8 of gate and 8 of up in turn along an axis."""
    HEIGHT: tl.constexpr = acc.shape[0]
    WIDTH: tl.constexpr = acc.shape[1]
    if AXIS == 0:
        gate, up = acc.reshape(HEIGHT // 16, 2, 8, WIDTH).permute(0, 2, 3, 1).split()
        x = (activate(gate, "silu") * up).reshape(HEIGHT // 2, WIDTH)
    else:
        gate, up = acc.reshape(HEIGHT, WIDTH // 16, 2, 8).permute(0, 1, 3, 2).split()
        x = (activate(gate, "silu") * up).reshape(HEIGHT, WIDTH // 2)
    return x


@triton.jit
def load_weights(
    b, expert, column, k, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWIGLU: tl.constexpr
):
    """Return a block of weights, BLOCK_N rows of one expert: with SWIGLU 8 of gate and 8 of up, in turn."""
    if len(b.block_shape) == 4:
        at = [expert, k // BLOCK_K, column * 2 if SWIGLU else column, 0]
    else:
        at = [expert, column // 8, 0, 0, k] if SWIGLU else [expert, column, k]
    return b.load(at).reshape(BLOCK_N, BLOCK_K)


@triton.jit
def products(
    a, more, b, scale_a, scale_ptr, beside_ptr, expert, column, first, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWIGLU: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Return the sums of two parts of BLOCK_M rows, and of the TAIL rows beyond, which are columns: the first TAIL."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_below = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    tail = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    below, beyond = first + BLOCK_M, first + 2 * BLOCK_M
    for block in range(tl.cdiv(K, BLOCK_K)):
        k = block * BLOCK_K
        # Loads that stand together come and go together.
        weights = load_weights(b, expert, column, k, BLOCK_N, BLOCK_K, SWIGLU)
        rows, of_rows = a.load([first, k]), scale_a.load([block, first]).reshape(BLOCK_M)
        rows_below, of_below = a.load([below, k]), scale_a.load([block, below]).reshape(BLOCK_M)
        of_weights = tl.full((BLOCK_N,), 1.0, tl.float32) * tl.load(scale_ptr + block)
        if SWIGLU:
            is_up = tl.arange(0, BLOCK_N) // 8 % 2 == 1
            of_weights = tl.where(is_up, tl.load(beside_ptr + block), of_weights)
        acc += tl.dot(rows, weights.T) * (of_rows[:, None] * of_weights[None, :])
        product = tl.dot(rows_below, weights.T)
        if TAIL > 0:  # it is waited for ahead of the additions, beside which its product begins
            rows, of_rows = more.load([beyond, k]), scale_a.load([block, beyond]).reshape(BLOCK_M)
        acc_below += product * (of_below[:, None] * of_weights[None, :])
        if TAIL > 0:
            tail += tl.dot(weights, rows.T) * (of_weights[:, None] * of_rows[None, :])
    return acc, acc_below, first_columns(tail, TAIL)


@triton.jit
def results(
    a, more, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, K, dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWIGLU: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Return what `products` does, finished, in the type of the results."""
    below, beyond = first + BLOCK_M, first + 2 * BLOCK_M
    acc, acc_below, tail = products(
        a, more, b, scale_a, scale_ptr, beside_ptr, expert, column, first, K, BLOCK_M, BLOCK_N, BLOCK_K, SWIGLU, TAIL,
    )  # fmt: skip
    if SWIGLU:
        acc, acc_below, tail = gated(acc, 1), gated(acc_below, 1), gated(tail, 0)
    if factors is not None:
        of_rows, of_below = factors.load([first]), factors.load([below])
        if TAIL > 0:
            of_beyond = factors.load([beyond])
        acc *= of_rows[:, None]
        acc_below *= of_below[:, None]
        if TAIL > 0:
            tail *= of_beyond[None, :]
    return acc.to(dtype), acc_below.to(dtype), tail.to(dtype)


@triton.jit
def store_tile(
    a, more, b, out, out_beyond, scale_a, scale_ptr, beside_ptr, factors, first, count, expert, column, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, SWIGLU: tl.constexpr,
    EPILOGUE_N: tl.constexpr,
):  # fmt: skip
    """Store the results of a block's `count` rows from `first` on, and of weights from `column` on: see the kernel."""
    if count > 2 * BLOCK_M:
        x, x_below, tail = results(
            a, more, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, K, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, SWIGLU, TAIL,
        )  # fmt: skip
        out_beyond.store([first + 2 * BLOCK_M, column], columns_of_parts(tail, TAIL)[0].T)
    else:
        x, x_below, _ = results(
            a, more, b, scale_a, scale_ptr, beside_ptr, factors, expert, column, first, K, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, SWIGLU, 0,
        )  # fmt: skip
    parts, parts_below = columns_of_parts(x, EPILOGUE_N), columns_of_parts(x_below, EPILOGUE_N)
    for part in tl.static_range(x.shape[1] // EPILOGUE_N):
        out.store([first, column + part * EPILOGUE_N], parts[part])
        out.store([first + BLOCK_M, column + part * EPILOGUE_N], parts_below[part])


@triton.jit
def fused_moe_blockwise_kernel(
    a, more, b, out, out_beyond, scale_a, scale_b_ptr, start_ptr, count_ptr, expert_ptr, num_blocks_ptr,
    N, K, stride_sbe, stride_sbn, n_blocks, n_programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAIL: tl.constexpr, SWIGLU: tl.constexpr,
    EPILOGUE_N: tl.constexpr, factors=None,
):  # fmt: skip
    """Store A @ B[expert]^T in bf16, with an fp32 scale for 1 x 128 of A and 128 x 128 of B, times `factors` if any.

    Each of `n_programs` programs stores every n_programs-th tile of as many blocks as stand at `num_blocks_ptr`: a
    launch has room for `n_blocks`. Block *i* has `count[i]` rows from `start[i]` on, 2 * BLOCK_M + TAIL at most, all
    for one expert, `expert[i]`. Its rows of `out` up to 2 * BLOCK_M are written, and TAIL more if it has more: the next
    block starts after these. Blocks that have more are best first. A is (rows, K), `a` and `more` in blocks of
    (BLOCK_M, 128); `out` is (rows, N) in blocks of (BLOCK_M, EPILOGUE_N), `out_beyond` the same in blocks of (TAIL,
    columns), where a tile has BLOCK_N columns, or half as many with SWIGLU. `factors` (rows) is fp32 in blocks of
    BLOCK_M. `scale_a` is (cdiv(K, 128), rows) in blocks of (1, BLOCK_M); `scale_b` (experts, blocks of rows of B,
    cdiv(K, 128)), experts `stride_sbe` and rows `stride_sbn` apart. Each 128 of K are summed apart.

    B is (experts, N, K) in blocks of (1, BLOCK_N, 128). With SWIGLU the result is silu(gate) * up, N is a multiple of
    128, and B is (experts, N / 8, 2, 8, K), gate and up along the axis of 2, wherever these are in memory, in blocks of
    (1, BLOCK_N / 16, 2, 8, 128). Or K is cut, so that a block is one piece of memory, which delivers it faster: B is
    (experts, cdiv(K, 128), N, 128), the last part of K filled up, in blocks of (1, 1, BLOCK_N, 128), with SWIGLU twice
    as many rows, 8 of gate and 8 of up in turn.
    """
    tl.static_assert(BLOCK_K == 128, "a block of K has one scale")
    tl.static_assert(128 % BLOCK_N == 0, "a tile lies under one scale of B")
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    num_tiles = tl.load(num_blocks_ptr) * num_n
    for index in tl.range(tl.program_id(0), num_tiles, n_programs, warp_specialize=True):
        block, column = index // num_n, index % num_n * COLUMNS
        first, count = tl.load(start_ptr + block), tl.load(count_ptr + block)
        expert = tl.load(expert_ptr + block)
        scale_ptr = scale_b_ptr + expert.to(tl.int64) * stride_sbe + column // 128 * stride_sbn
        beside_ptr = scale_ptr + (N // 128 if SWIGLU else 0) * stride_sbn
        store_tile(
            a, more, b, out, out_beyond, scale_a, scale_ptr, beside_ptr, factors, first, count, expert, column, K,
            BLOCK_M, BLOCK_N, BLOCK_K, TAIL, SWIGLU, EPILOGUE_N,
        )  # fmt: skip
