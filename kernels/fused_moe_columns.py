"""Linear layers of a mixture of experts, computed transposed: an expert's rows are the columns of a tile.

Tensor cores take 64 rows at a time, but columns in multiples of 8. So an expert that has 250 rows, or 280, is one
tile along them: each weight leaves memory once, and one of 4 bits is converted once. Whoever calls cuts the
rows of an expert, sorted by expert, into blocks of BLOCK_M, of which the last may have up to TAIL more.
"""

import triton
import triton.language as tl
from matmul import activate
from persistent_matmul import columns_of_parts
from weight_only_matmul import unpacked_int4


@triton.jit
def row_pointers(
    a_ptr, sorted_ptr, first, count, stride_am, k, NUM: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr
):  # fmt: skip
    """Return pointers to the rows of A for NUM row numbers from `first` on: the last one that counts fills up."""
    m = tl.minimum(tl.arange(0, NUM), count - 1)
    token = (tl.load(sorted_ptr + first + m) // ROWS_PER_TOKEN).to(tl.int64)
    return a_ptr + token[:, None] * stride_am + k[None, :]


@triton.jit
def numbers_of_parts(sorted_ptr, first, count, NUM: tl.constexpr, EPILOGUE_M: tl.constexpr):
    """Return NUM row numbers from `first` on in parts: loaded ahead of the products, used after them."""
    PART: tl.constexpr = EPILOGUE_M if EPILOGUE_M < NUM else NUM  # noqa: FURB136 - Triton has no constant min
    numbers = ()
    for part in tl.static_range(NUM // PART):
        m = part * PART + tl.arange(0, PART)
        numbers = numbers + (tl.load(sorted_ptr + first + m, mask=m < count, other=0),)  # noqa: RUF005 - no `*`
    return numbers


@triton.jit
def factors_of_rows(weight_ptr, first, count, NUM: tl.constexpr, WEIGHTED: tl.constexpr):
    """Return what rows are multiplied by, if WEIGHTED: loaded ahead of the products, used after them."""
    m = tl.arange(0, NUM)
    factors = tl.full((NUM,), 1.0, tl.float32)
    if WEIGHTED:
        factors = tl.load(weight_ptr + first + m, mask=m < count, other=0.0)
    return factors


@triton.jit
def store_columns(
    acc, out_ptr, rows, factors, first, count, n, N, stride_om,
    EPILOGUE_M: tl.constexpr, WEIGHTED: tl.constexpr, SWIGLU: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """Store a tile, EPILOGUE_M columns at a time: they are rows of the output, in order if ORDERED.

    With SWIGLU the tile's rows are 8 of gate and 8 of up, in turn.
    """
    NUM: tl.constexpr = acc.shape[1]
    if SWIGLU:
        HALF: tl.constexpr = acc.shape[0] // 2
        gate, up = acc.reshape(HALF // 8, 2, 8, NUM).permute(0, 2, 3, 1).split()
        acc = (activate(gate, "silu") * up).reshape(HALF, NUM)
    if WEIGHTED:
        acc *= factors[None, :]
    PART: tl.constexpr = EPILOGUE_M if EPILOGUE_M < NUM else NUM  # noqa: FURB136 - Triton has no constant min
    parts = columns_of_parts(acc, PART)
    for part in tl.static_range(NUM // PART):
        m = part * PART + tl.arange(0, PART)
        at = first + m if ORDERED else rows[part]
        out_ptrs = out_ptr + at.to(tl.int64)[:, None] * stride_om + n[None, :]
        mask = (m < count)[:, None] & (n < N)[None, :]
        tl.store(out_ptrs, parts[part].to(out_ptr.dtype.element_ty).T, mask=mask)


@triton.jit
def load_weights(b, expert, column, k, SWIGLU: tl.constexpr):
    """Return a block of weights: rows of one expert, with SWIGLU 8 of gate, 8 of up, in turn."""
    BLOCK_K: tl.constexpr = b.block_shape[4]
    if SWIGLU:
        weights = b.load([expert, column // 8, 0, 0, k])
    else:
        weights = b.load([expert, 0, 0, column, k])
    return weights.reshape(b.block_shape[1] * b.block_shape[2] * b.block_shape[3], BLOCK_K)


@triton.jit
def fused_moe_columns_kernel(
    a_ptr, b, out_ptr, weight_ptr, sorted_ptr, start_ptr, expert_ptr,
    N, K, stride_am, stride_om, n_blocks,
    BLOCK_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_M: tl.constexpr, WEIGHTED: tl.constexpr, SWIGLU: tl.constexpr, ORDERED: tl.constexpr,
    ROWS_PER_TOKEN: tl.constexpr,
):  # fmt: skip
    """Store out[r] = A[r // ROWS_PER_TOKEN] @ B[expert of r]^T, times its weight if WEIGHTED.

    A is (tokens, K), B (experts, 1, 1, N, K), out (rows, N). With SWIGLU out is silu(gate) * up, and B is
    (experts, N / 8, 2, 8, K), gate and up along the axis of 2, wherever these are in memory. `sorted` holds row
    numbers by expert, and `weight` the weights of these rows in the same order. Block *i* has those from `start[i]`
    to `start[i + 1]`, BLOCK_M + TAIL at most, all for one expert, `expert[i]`. If ORDERED, out has rows in that order,
    not by their numbers. Blocks of b are (1, 1, 1, BLOCK_N, BLOCK_K), or (1, BLOCK_N / 16, 2, 8, BLOCK_K).
    """
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * COLUMNS
    first = tl.load(start_ptr + block)
    count = tl.load(start_ptr + block + 1) - first
    if count == 0:
        return
    expert = tl.load(expert_ptr + block)
    n, k = column + tl.arange(0, COLUMNS), tl.arange(0, BLOCK_K)
    a_ptrs = row_pointers(a_ptr, sorted_ptr, first, count, stride_am, k, BLOCK_M, ROWS_PER_TOKEN)
    rows = numbers_of_parts(sorted_ptr, first, count, BLOCK_M, EPILOGUE_M)
    factors = factors_of_rows(weight_ptr, first, count, BLOCK_M, WEIGHTED)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if count > BLOCK_M:
        more_ptrs = row_pointers(
            a_ptr, sorted_ptr, first + BLOCK_M, count - BLOCK_M, stride_am, k, TAIL, ROWS_PER_TOKEN
        )
        begin, rest = first + BLOCK_M, count - BLOCK_M
        more_rows = numbers_of_parts(sorted_ptr, begin, rest, TAIL, EPILOGUE_M)
        more_factors = factors_of_rows(weight_ptr, begin, rest, TAIL, WEIGHTED)
        tail = tl.zeros((BLOCK_N, TAIL), tl.float32)
        for start_k in range(0, K, BLOCK_K):
            in_k = (k < K - start_k)[None, :]
            weights = load_weights(b, expert, column, start_k, SWIGLU)
            tokens = tl.load(a_ptrs + start_k, mask=in_k, other=0.0)
            acc = tl.dot(weights, tokens.T, acc)
            tokens = tl.load(more_ptrs + start_k, mask=in_k, other=0.0)
            tail = tl.dot(weights, tokens.T, tail)
        store_columns(
            tail, out_ptr, more_rows, more_factors, first + BLOCK_M, count - BLOCK_M,
            n, N, stride_om, EPILOGUE_M, WEIGHTED, SWIGLU, ORDERED,
        )  # fmt: skip
    else:
        for start_k in range(0, K, BLOCK_K):
            in_k = (k < K - start_k)[None, :]
            weights = load_weights(b, expert, column, start_k, SWIGLU)
            tokens = tl.load(a_ptrs + start_k, mask=in_k, other=0.0)
            acc = tl.dot(weights, tokens.T, acc)
    store_columns(
        acc, out_ptr, rows, factors, first, count,
        n, N, stride_om, EPILOGUE_M, WEIGHTED, SWIGLU, ORDERED,
    )  # fmt: skip


@triton.jit
def fused_moe_down_kernel(
    a, more, b, out_ptr, weight_ptr, sorted_ptr, start_ptr, expert_ptr,
    N, K, stride_om, n_blocks,
    BLOCK_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_M: tl.constexpr,
):  # fmt: skip
    """Store out[sorted[i]] = weight[i] * A[i] @ B[expert of i]^T: rows of A are sorted already.

    A is (rows, K), in blocks of (BLOCK_M, BLOCK_K), and as `more` in blocks of (TAIL, BLOCK_K); B is (experts, N, K)
    in blocks of (1, BLOCK_N, BLOCK_K). All else is as for `fused_moe_columns_kernel`.
    """
    num_n = tl.cdiv(N, BLOCK_N)
    block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * BLOCK_N
    first = tl.load(start_ptr + block)
    count = tl.load(start_ptr + block + 1) - first
    if count == 0:
        return
    expert = tl.load(expert_ptr + block)
    n = column + tl.arange(0, BLOCK_N)
    rows = numbers_of_parts(sorted_ptr, first, count, BLOCK_M, EPILOGUE_M)
    factors = factors_of_rows(weight_ptr, first, count, BLOCK_M, WEIGHTED=True)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    # Rows of other experts that a block has at its end are columns that are not stored.
    if count > BLOCK_M:
        begin, rest = first + BLOCK_M, count - BLOCK_M
        more_rows = numbers_of_parts(sorted_ptr, begin, rest, TAIL, EPILOGUE_M)
        more_factors = factors_of_rows(weight_ptr, begin, rest, TAIL, WEIGHTED=True)
        tail = tl.zeros((BLOCK_N, TAIL), tl.float32)
        for k in range(0, K, BLOCK_K):
            weights = b.load([expert, column, k]).reshape(BLOCK_N, BLOCK_K)
            acc = tl.dot(weights, a.load([first, k]).T, acc)
            tail = tl.dot(weights, more.load([first + BLOCK_M, k]).T, tail)
        store_columns(
            tail, out_ptr, more_rows, more_factors, first + BLOCK_M, count - BLOCK_M,
            n, N, stride_om, EPILOGUE_M, WEIGHTED=True, SWIGLU=False, ORDERED=False,
        )  # fmt: skip
    else:
        for k in range(0, K, BLOCK_K):
            weights = b.load([expert, column, k]).reshape(BLOCK_N, BLOCK_K)
            acc = tl.dot(weights, a.load([first, k]).T, acc)
    store_columns(
        acc, out_ptr, rows, factors, first, count,
        n, N, stride_om, EPILOGUE_M, WEIGHTED=True, SWIGLU=False, ORDERED=False,
    )  # fmt: skip


@triton.jit
def load_int4(b, scales, expert, column, k, GROUP_K: tl.constexpr, DTYPE: tl.constexpr):
    """Return a block of weights of 4 bits, (B - 8) * scale."""
    BLOCK_N: tl.constexpr = b.block_shape[1]
    words = b.load([expert, column, k // 8]).reshape(BLOCK_N, b.block_shape[2])
    scale = scales.load([expert, k // GROUP_K, column]).reshape(BLOCK_N)
    return ((unpacked_int4(words) - 8).to(DTYPE) * scale[:, None]).to(DTYPE)


@triton.jit
def fused_moe_int4_columns_kernel(
    a_ptr, b, out_ptr, scales, weight_ptr, sorted_ptr, start_ptr, expert_ptr,
    N, K, stride_am, stride_om, n_blocks,
    BLOCK_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_M: tl.constexpr, GROUP_K: tl.constexpr, WEIGHTED: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr,
):  # fmt: skip
    """Store the same of weights of 4 bits, (B - 8) * scale: A is (tokens, K) of 16-bit floats.

    Eight weights are a word of b, (experts, N, K / 8), see `unpacked_int4`. GROUP_K of K share a scale: `scales`
    is (experts, cdiv(K, GROUP_K), N). Blocks are (1, BLOCK_N, BLOCK_K / 8) of b and (1, 1, BLOCK_N) of scales.
    """
    tl.static_assert(GROUP_K % BLOCK_K == 0, "a block of K must lie in one group")
    dtype = a_ptr.dtype.element_ty
    num_n = tl.cdiv(N, BLOCK_N)
    block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * BLOCK_N
    first = tl.load(start_ptr + block)
    count = tl.load(start_ptr + block + 1) - first
    if count == 0:
        return
    expert = tl.load(expert_ptr + block)
    n, k = column + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = row_pointers(a_ptr, sorted_ptr, first, count, stride_am, k, BLOCK_M, ROWS_PER_TOKEN)
    rows = numbers_of_parts(sorted_ptr, first, count, BLOCK_M, EPILOGUE_M)
    factors = factors_of_rows(weight_ptr, first, count, BLOCK_M, WEIGHTED)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if count > BLOCK_M:
        more_ptrs = row_pointers(
            a_ptr, sorted_ptr, first + BLOCK_M, count - BLOCK_M, stride_am, k, TAIL, ROWS_PER_TOKEN
        )
        begin, rest = first + BLOCK_M, count - BLOCK_M
        more_rows = numbers_of_parts(sorted_ptr, begin, rest, TAIL, EPILOGUE_M)
        more_factors = factors_of_rows(weight_ptr, begin, rest, TAIL, WEIGHTED)
        tail = tl.zeros((BLOCK_N, TAIL), tl.float32)
        for start_k in range(0, K, BLOCK_K):
            in_k = (k < K - start_k)[None, :]
            weights = load_int4(b, scales, expert, column, start_k, GROUP_K, dtype)
            tokens = tl.load(a_ptrs + start_k, mask=in_k, other=0.0)
            acc = tl.dot(weights, tokens.T, acc)
            tokens = tl.load(more_ptrs + start_k, mask=in_k, other=0.0)
            tail = tl.dot(weights, tokens.T, tail)
        store_columns(
            tail, out_ptr, more_rows, more_factors, first + BLOCK_M, count - BLOCK_M,
            n, N, stride_om, EPILOGUE_M, WEIGHTED, SWIGLU=False, ORDERED=False,
        )  # fmt: skip
    else:
        for start_k in range(0, K, BLOCK_K):
            in_k = (k < K - start_k)[None, :]
            weights = load_int4(b, scales, expert, column, start_k, GROUP_K, dtype)
            tokens = tl.load(a_ptrs + start_k, mask=in_k, other=0.0)
            acc = tl.dot(weights, tokens.T, acc)
    store_columns(
        acc, out_ptr, rows, factors, first, count,
        n, N, stride_om, EPILOGUE_M, WEIGHTED, SWIGLU=False, ORDERED=False,
    )  # fmt: skip
