"""Linear layers of a mixture of experts, computed transposed: an expert's rows are the columns of a tile.

Tensor cores take 64 rows at a time, but columns in multiples of 8. So an expert that has 250 rows, or 280, is one
tile along them: each weight leaves memory once, and one of 4 bits is converted once. Whoever calls sorts rows by
expert, fills each expert's up to a multiple of EPILOGUE_M, as vLLM's `moe_align_block_size` does, and cuts them into
blocks of up to MOST, or BLOCK_M + TAIL. Results come in that order.

A tile multiplies as many columns as its block has rows, a multiple of STEP, in two sums: the first BLOCK_M, and those
beyond. Both read the same weights from shared memory, and a sum of few columns takes as long as that: with
BLOCK_M = 128, TAIL = 256 and MOST = 288 they are about as wide. Or all are one sum, BLOCK_M = 512 of which 288 columns
count: a compiler multiplies up to 256 by one instruction, and reads weights once for these. Factors of
rows, which are one for each column, come FACTORS_M at a time then, and widths below LEAST are FEWER apart: where weights
take registers, as those of 4 bits do, four or five widths are what a compiler has registers for.
"""

import triton
import triton.language as tl
from matmul import activate
from persistent_matmul import columns_of_parts, halves_of_columns
from weight_only_matmul import unpacked_int4


@triton.jit
def row_pointers(
    a_ptr, sorted_ptr, first, count, n_rows, stride_am, BLOCK_K: tl.constexpr, NUM: tl.constexpr,
    ROWS_PER_TOKEN: tl.constexpr,
):  # fmt: skip
    """Return pointers to the rows of A for NUM row numbers from `first` on: those that do not count repeat others."""
    m = tl.minimum(tl.arange(0, NUM), count - 1)
    token = tl.minimum(tl.load(sorted_ptr + first + m), n_rows - 1) // ROWS_PER_TOKEN
    return a_ptr + token.to(tl.int64)[:, None] * stride_am + tl.arange(0, BLOCK_K)[None, :]


@triton.jit
def load_rows(a, a_ptrs, first, k, K, BLOCK_K: tl.constexpr):
    """Return a block of A: rows that a descriptor has in order, or those that pointers name."""
    if a_ptrs is None:
        rows = a.load([first, k])
    else:
        in_k = (tl.arange(0, BLOCK_K) < K - k)[None, :]
        rows = tl.load(a_ptrs + k, mask=in_k, other=0.0)
    return rows


@triton.jit
def load_weights(
    b, scales, expert, column, k, dtype: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_K: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """Return a block of weights, BLOCK_N rows of one expert: see the kernel for what `b` is."""
    if scales is not None:
        words = b.load([expert, column, k // 8]).reshape(BLOCK_N, BLOCK_K // 8)
        scale = scales.load([expert, k // GROUP_K, column]).reshape(BLOCK_N)
        weights = ((unpacked_int4(words) - 8).to(dtype) * scale[:, None]).to(dtype)
    elif len(b.block_shape) == 4:
        row = column * 2 if SWIGLU else column
        weights = b.load([expert, k // BLOCK_K, row, 0]).reshape(BLOCK_N, BLOCK_K)
    elif SWIGLU:
        weights = b.load([expert, column // 8, 0, 0, k]).reshape(BLOCK_N, BLOCK_K)
    else:
        weights = b.load([expert, column, k]).reshape(BLOCK_N, BLOCK_K)
    return weights


@triton.jit
def first_columns(x, NUM: tl.constexpr):
    """Return a tile with its first NUM columns, and 0 in the others: a compiler need not multiply those."""
    HALF: tl.constexpr = x.shape[1] // 2
    if x.shape[1] == NUM:
        kept = x
    elif NUM == 0:
        kept = tl.zeros(x.shape, x.dtype)
    else:
        left, right = halves_of_columns(x)
        left = first_columns(left, NUM if NUM < HALF else HALF)  # noqa: FURB136 - Triton has no constant min
        right = first_columns(right, NUM - HALF if NUM > HALF else 0)
        kept = tl.join(left, right).permute(0, 2, 1).reshape(x.shape)
    return kept


@triton.jit
def products(
    acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, beyond, K, dtype: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_K: tl.constexpr, SWIGLU: tl.constexpr,
    COLUMNS: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    """Return the first COLUMNS columns of a tile of weights and rows, and the first MORE of what is beyond BLOCK_M."""
    for k in range(0, K, BLOCK_K):
        weights = load_weights(
            b, scales, expert, column, k, dtype, BLOCK_N, BLOCK_K, GROUP_K, SWIGLU
        )
        acc = tl.dot(weights, load_rows(a, a_ptrs, first, k, K, BLOCK_K).T, acc)
        if MORE > 0:
            tail = tl.dot(weights, load_rows(more, more_ptrs, beyond, k, K, BLOCK_K).T, tail)
    if MORE > 0:
        tail = first_columns(tail, MORE)
    return first_columns(acc, COLUMNS), tail


@triton.jit
def products_of_width(
    acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, count, K, dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_K: tl.constexpr,
    SWIGLU: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, LEAST: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Return the products of `count` columns or some more: WIDTH, less STEP as often as it will do, LEAST or FEW."""
    COLUMNS: tl.constexpr = WIDTH if WIDTH < BLOCK_M else BLOCK_M  # noqa: FURB136 - Triton has no constant min
    ENOUGH: tl.constexpr = WIDTH - STEP if WIDTH > LEAST else FEW
    if ENOUGH == 0:  # noqa: SIM114 - this one is constant
        acc, tail = products(
            acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, first + BLOCK_M, K, dtype,
            BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, COLUMNS, WIDTH - COLUMNS,
        )  # fmt: skip
    elif count > ENOUGH:
        acc, tail = products(
            acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, first + BLOCK_M, K, dtype,
            BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, COLUMNS, WIDTH - COLUMNS,
        )  # fmt: skip
    elif ENOUGH > FEW:
        acc, tail = products_of_width(
            acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, count, K, dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, WIDTH - STEP, STEP, LEAST, FEW,
        )  # fmt: skip
    else:
        acc, tail = products(
            acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, first + BLOCK_M, K, dtype,
            BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, FEW, 0,
        )  # fmt: skip
    return acc, tail


@triton.jit
def factors_of_parts(factors, first, COLUMNS: tl.constexpr, FACTORS_M: tl.constexpr):
    """Return the factors of COLUMNS columns, or some more, in parts of FACTORS_M from left to right."""
    parts = (factors.load([first]),)
    if COLUMNS > FACTORS_M:
        parts += factors_of_parts(factors, first + FACTORS_M, COLUMNS - FACTORS_M, FACTORS_M)
    return parts


@triton.jit
def times_factors(x, factors, dtype: tl.constexpr, FIRST: tl.constexpr, FACTORS_M: tl.constexpr):
    """Return columns of a tile, of which FIRST are before `x`, times their factors, if there are any.

    Part by part, to save registers: half as many results of gate and up do without.
    """
    NUM: tl.constexpr = x.shape[1]
    if factors is None and NUM == FACTORS_M:
        scaled = x.to(dtype)
    elif factors is not None and len(factors) <= FIRST // FACTORS_M:
        scaled = x.to(dtype)  # of columns that do not count
    elif NUM == FACTORS_M:
        scaled = (x * factors[FIRST // FACTORS_M][None, :]).to(dtype)
    else:
        left, right = halves_of_columns(x)
        left = times_factors(left, factors, dtype, FIRST, FACTORS_M)
        right = times_factors(right, factors, dtype, FIRST + NUM // 2, FACTORS_M)
        scaled = tl.join(left, right).permute(0, 2, 1).reshape(x.shape)
    return scaled


@triton.jit
def finished(
    acc, factors, first, dtype: tl.constexpr,
    SWIGLU: tl.constexpr, MOST: tl.constexpr, FACTORS_M: tl.constexpr,
):  # fmt: skip
    """Return the results of a tile; with SWIGLU its rows are 8 of gate and 8 of up, in turn.

    The factors of MOST columns are loaded in any case: widths that load the same share the memory for it.
    """
    NUM: tl.constexpr = acc.shape[1]
    if SWIGLU:
        HALF: tl.constexpr = acc.shape[0] // 2
        gate, up = acc.reshape(HALF // 8, 2, 8, NUM).permute(0, 2, 3, 1).split()
        acc = (activate(gate, "silu") * up).reshape(HALF, NUM)
    parts = None
    if factors is not None:
        parts = factors_of_parts(factors, first, MOST, FACTORS_M)
    if SWIGLU and factors is None:
        x = acc.to(dtype)
    else:
        x = times_factors(acc, parts, dtype, 0, FACTORS_M)
    return x


@triton.jit
def results_of_width(
    a, a_ptrs, b, scales, factors, expert, column, first, count, K, dtype: tl.constexpr, out_dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_K: tl.constexpr,
    SWIGLU: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    FEWER: tl.constexpr, FACTORS_M: tl.constexpr,
):  # fmt: skip
    """Return the results of `count` columns or some more, of one sum for each width.

    Widths are MOST, less STEP down to LEAST, where most blocks are, then less FEWER down to 1/4 of MOST.
    """
    ENOUGH: tl.constexpr = WIDTH - (STEP if WIDTH > LEAST else FEWER)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if ENOUGH < MOST // 4:  # noqa: SIM114 - this one is constant
        acc, _ = products(
            acc, acc, a, a_ptrs, None, None, b, scales, expert, column, first, first, K, dtype,
            BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, WIDTH, 0,
        )  # fmt: skip
        x = finished(acc, factors, first, out_dtype, SWIGLU, MOST, FACTORS_M)
    elif count > ENOUGH:
        acc, _ = products(
            acc, acc, a, a_ptrs, None, None, b, scales, expert, column, first, first, K, dtype,
            BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, WIDTH, 0,
        )  # fmt: skip
        x = finished(acc, factors, first, out_dtype, SWIGLU, MOST, FACTORS_M)
    else:
        x = results_of_width(
            a, a_ptrs, b, scales, factors, expert, column, first, count, K, dtype, out_dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, ENOUGH, STEP, MOST, LEAST, FEWER, FACTORS_M,
        )  # fmt: skip
    return x


@triton.jit
def store_columns(
    acc, out, factors, first, count, column,
    COLUMNS: tl.constexpr, EPILOGUE_M: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """Store the first COLUMNS columns of a tile, EPILOGUE_M at a time: they are rows of the output.

    With SWIGLU the tile's rows are 8 of gate and 8 of up, in turn.
    """
    NUM: tl.constexpr = acc.shape[1]
    if SWIGLU:
        HALF: tl.constexpr = acc.shape[0] // 2
        gate, up = acc.reshape(HALF // 8, 2, 8, NUM).permute(0, 2, 3, 1).split()
        acc = (activate(gate, "silu") * up).reshape(HALF, NUM)
    if factors is not None:
        acc *= factors[None, :]
    parts = columns_of_parts(acc, EPILOGUE_M)
    for part in tl.static_range(COLUMNS // EPILOGUE_M):
        # What lies beyond a tensor is not stored: so a part that has no rows takes no branch.
        row = tl.where(part * EPILOGUE_M < count, first + part * EPILOGUE_M, 2**30)
        out.store([row, column], parts[part].to(out.dtype).T)


@triton.jit
def store_tile(
    a, b, out, sorted_ptr, more, scales, factors, more_factors,
    first, count, expert, column, K, stride_am, n_rows,
    BLOCK_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_M: tl.constexpr, SWIGLU: tl.constexpr, ROWS_PER_TOKEN: tl.constexpr, GROUP_K: tl.constexpr,
    MOST: tl.constexpr, STEP: tl.constexpr, LEAST: tl.constexpr, FEWER: tl.constexpr, FACTORS_M: tl.constexpr,
):  # fmt: skip
    """Store the results of a block's `count` rows from `first` on, and of weights from `column` on: see the kernel."""
    beyond, rest = first + BLOCK_M, count - BLOCK_M
    WIDTH: tl.constexpr = MOST if MOST > 0 else BLOCK_M + TAIL
    a_ptrs, more_ptrs = None, None
    if more is None:
        dtype: tl.constexpr = a.dtype.element_ty
        a_ptrs = row_pointers(
            a, sorted_ptr, first, count, n_rows, stride_am, BLOCK_K, BLOCK_M, ROWS_PER_TOKEN
        )
        if WIDTH > BLOCK_M:
            more_ptrs = row_pointers(
                a, sorted_ptr, beyond, rest, n_rows, stride_am, BLOCK_K, TAIL, ROWS_PER_TOKEN
            )
    else:
        dtype: tl.constexpr = a.dtype
    if WIDTH < BLOCK_M:
        tl.static_assert((MOST - LEAST) % STEP == 0, "LEAST is MOST, less STEP several times")
        x = results_of_width(
            a, a_ptrs, b, scales, factors, expert, column, first, count, K, dtype, out.dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, WIDTH, STEP, WIDTH, LEAST, FEWER, FACTORS_M,
        )  # fmt: skip
        store_columns(x, out, None, first, count, column, WIDTH, EPILOGUE_M, SWIGLU=False)
    else:
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        tail = tl.zeros((BLOCK_N, TAIL), tl.float32)
        acc, tail = products_of_width(
            acc, tail, a, a_ptrs, more, more_ptrs, b, scales, expert, column, first, count, K, dtype,
            BLOCK_M, BLOCK_N, BLOCK_K, GROUP_K, SWIGLU, WIDTH, STEP, WIDTH - 48, BLOCK_M // 2,
        )  # fmt: skip
        of_rows, of_more = None, None
        if factors is not None:
            of_rows, of_more = factors.load([first]), more_factors.load([beyond])
        store_columns(acc, out, of_rows, first, count, column, BLOCK_M, EPILOGUE_M, SWIGLU)
        store_columns(tail, out, of_more, beyond, rest, column, WIDTH - BLOCK_M, EPILOGUE_M, SWIGLU)


@triton.jit
def fused_moe_columns_kernel(
    a, b, out, sorted_ptr, start_ptr, count_ptr, expert_ptr,
    N, K, stride_am, n_rows, n_blocks,
    BLOCK_M: tl.constexpr, TAIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_M: tl.constexpr, SWIGLU: tl.constexpr = False,  # noqa: FBT002 - a constant
    ROWS_PER_TOKEN: tl.constexpr = 1, GROUP_K: tl.constexpr = 128, MOST: tl.constexpr = 0, STEP: tl.constexpr = 16,
    LEAST: tl.constexpr = 216, FEWER: tl.constexpr = 48, FACTORS_M: tl.constexpr = 128,
    more=None, scales=None, factors=None, more_factors=None, num_blocks_ptr=None, n_programs=1,
):  # fmt: skip
    """Store A @ B[expert]^T for each block of rows, times `factors` if there are any.

    `a` is a pointer to (tokens, K), of which row r of the result has token sorted[r] // ROWS_PER_TOKEN; numbers from
    `n_rows` on fill up. With `more`, rows are there in order: `a` is a descriptor of (rows, K) in blocks of (BLOCK_M,
    BLOCK_K), and `more` another in blocks of (TAIL, BLOCK_K). Block *i* has `count[i]` rows from `start[i]` on, a
    multiple of EPILOGUE_M: MOST, or BLOCK_M + TAIL, at most, all for one expert, `expert[i]`. It may have none. `out` is
    (rows, N) in blocks of (EPILOGUE_M, BLOCK_N), `factors` (rows) of fp32 in blocks of BLOCK_M, `more_factors` the
    same in blocks of TAIL; if all are one sum, `factors` in blocks of FACTORS_M, and `more_factors` is not read.

    A program stores one tile, of `n_blocks` blocks; with `num_blocks_ptr`, each of `n_programs` stores every
    n_programs-th tile of as many blocks as stand there in memory. A launch has room for as many as there can be, of
    which those without rows take time, too, where one CTA comes to them one after the other.

    `b` is (experts, N, K) in blocks of (1, BLOCK_N, BLOCK_K). With SWIGLU the result is silu(gate) * up, and `b` is
    (experts, N / 8, 2, 8, K), gate and up along the axis of 2, wherever these are in memory, in blocks of
    (1, BLOCK_N / 16, 2, 8, BLOCK_K); a tile has half as many results. With `scales` weights are (B - 8) * scale of
    4 bits, eight in a word of `b`, (experts, N, K / 8), see `unpacked_int4`; GROUP_K of K share a scale, (experts,
    cdiv(K, GROUP_K), N), in blocks of (1, 1, BLOCK_N).

    Without `scales` K may be cut, so that a block is one piece of memory, which delivers it faster: `b` is (experts,
    cdiv(K, BLOCK_K), N, BLOCK_K), the last part of K filled up, in blocks of (1, 1, BLOCK_N, BLOCK_K), with SWIGLU
    twice as many rows, 8 of gate and 8 of up in turn.
    """
    tl.static_assert(GROUP_K % BLOCK_K == 0, "a block of K must lie in one group")
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    num_n = tl.cdiv(N, COLUMNS)
    if num_blocks_ptr is None:
        block, column = tl.program_id(0) // num_n, tl.program_id(0) % num_n * COLUMNS
        first, count = tl.load(start_ptr + block), tl.load(count_ptr + block)
        # `first` is not negative: it stands here so that both numbers are loaded at once, none after the branch.
        if count + tl.minimum(first, 0) == 0:
            return
        expert = tl.load(expert_ptr + block)
        store_tile(
            a, b, out, sorted_ptr, more, scales, factors, more_factors,
            first, count, expert, column, K, stride_am, n_rows,
            BLOCK_M, TAIL, BLOCK_N, BLOCK_K, EPILOGUE_M, SWIGLU, ROWS_PER_TOKEN, GROUP_K, MOST, STEP, LEAST, FEWER,
            FACTORS_M,
        )  # fmt: skip
    else:
        num_tiles = tl.load(num_blocks_ptr) * num_n
        for index in tl.range(tl.program_id(0), num_tiles, n_programs, warp_specialize=True):
            block, column = index // num_n, index % num_n * COLUMNS
            first, count = tl.load(start_ptr + block), tl.load(count_ptr + block)
            expert = tl.load(expert_ptr + block)
            store_tile(
                a, b, out, sorted_ptr, more, scales, factors, more_factors,
                first, count, expert, column, K, stride_am, n_rows,
                BLOCK_M, TAIL, BLOCK_N, BLOCK_K, EPILOGUE_M, SWIGLU, ROWS_PER_TOKEN, GROUP_K, MOST, STEP, LEAST, FEWER,
                FACTORS_M,
            )  # fmt: skip
