"""Kernels to plant compiler bugs under, each small and sensitive to one part of the compiler.

Integers where possible: comparison to the bit hides no error.
"""

import triton
import triton.language as tl

from aotc.language import cluster_rank, cluster_read, cluster_shift, cluster_size, grid_barrier


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store x + y."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + y, mask=i < n)


@triton.jit
def add_one_in_place(x_ptr, n, BLOCK: tl.constexpr):
    """Add 1 to x in place, reload it, and store twice the sum."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x + 1, mask=i < n)
    tl.store(x_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def fold_in_place(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Add the rows of x to out one after the other, through memory."""
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    for row in range(n_rows):
        total = tl.load(out_ptr + i, mask=mask)
        tl.store(out_ptr + i, total + tl.load(x_ptr + row * stride + i, mask=mask), mask=mask)


@triton.jit
def flip(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store x backwards, going down from its end."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load((x_ptr + n) - (i + 1), mask=i < n)
    tl.store(out_ptr + i, x, mask=i < n)


@triton.jit
def pick(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store the elements of x at indices."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, tl.load(x_ptr + index, mask=i < n), mask=i < n)


@triton.jit
def every_second(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store every second element of x."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + 2 * i, mask=i < n), mask=i < n)


@triton.jit
def spread(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store elements at offsets reduced by a 64-bit remainder."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    far = (i.to(tl.int64) + 1) * 3000000019
    tl.store(out_ptr + i, tl.load(x_ptr + far % 1009, mask=i < n), mask=i < n)


@triton.jit
def shared_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store sums, maxima and minima of rows."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols, other=0)
    tl.store(out_ptr + row, tl.sum(x, axis=0))
    tl.store(out_ptr + n_rows + row, tl.max(x, axis=0))
    tl.store(out_ptr + 2 * n_rows + row, tl.min(x, axis=0))


@triton.jit
def largest(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store the largest element of every row, at least -1000."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols, other=-1000)
    tl.store(out_ptr + row, tl.max(x, axis=0))


@triton.jit
def where_largest(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store where the largest element of every row is, the first of equals."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols, other=-1000)
    tl.store(out_ptr + row, tl.argmax(x, axis=0))


@triton.jit
def running_sum(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """Store the sum of every row up to each element, or from it."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols, other=0)
    total = tl.cumsum(x, axis=0, reverse=REVERSE)
    tl.store(out_ptr + row * stride + i, total, mask=i < n_cols)


@triton.jit
def follow(a_first, b_first, a_next, b_next):
    """Apply x -> a x + b, then another."""
    return a_first * a_next, b_first * a_next + b_next


@triton.jit
def recurrence(a_ptr, b_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store x[i] = a[i] x[i-1] + b[i] of every row: a non-commutative scan."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    a = tl.load(a_ptr + row * stride + i, mask=mask, other=1)
    b = tl.load(b_ptr + row * stride + i, mask=mask, other=0)
    _, x = tl.associative_scan((a, b), 0, follow)
    tl.store(out_ptr + row * stride + i, x, mask=mask)


@triton.jit
def turn(x_ptr, out_ptr, stride_x, stride_out, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store x transposed."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(
        x_ptr + m[:, None] * stride_x + n[None, :], mask=(m < n_rows)[:, None] & (n < n_cols)
    )
    tl.store(
        out_ptr + n[:, None] * stride_out + m[None, :],
        tl.trans(x),
        mask=(n < n_cols)[:, None] & (m < n_rows)[None, :],
    )


@triton.jit
def turn_two(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x transposed, then y: two conversions through the same shared memory."""
    offsets = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out_ptr + offsets, tl.trans(tl.load(x_ptr + offsets)))
    tl.store(out_ptr + BLOCK * BLOCK + offsets, tl.trans(tl.load(y_ptr + offsets)))


@triton.jit
def turn_all(x_ptr, y_ptr, out_ptr, n_tiles, BLOCK: tl.constexpr):
    """Store the sum of products of tiles, the left ones transposed: a trip in every iteration."""
    offsets = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK, BLOCK], tl.int32)
    for tile in range(n_tiles):
        x = tl.load(x_ptr + tile * BLOCK * BLOCK + offsets)
        total += tl.trans(x) * tl.load(y_ptr + tile * BLOCK * BLOCK + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def stack_sums(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Store the sums of rows, then the sums of columns in another layout."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(out_ptr + m, tl.sum(x, axis=1))
    tl.store(out_ptr + M + n, tl.sum(x * m[:, None], axis=0))


@triton.jit
def integers(x_ptr, y_ptr, u_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store results sensitive to the signedness and width of integers."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask, other=1)
    y = tl.load(y_ptr + i, mask=mask, other=1) | 1
    u = tl.load(u_ptr + i, mask=mask, other=1)
    out = out_ptr + i
    tl.store(out, x // y, mask=mask)
    tl.store(out + n, x % y, mask=mask)
    tl.store(out + 2 * n, x >> 3, mask=mask)
    tl.store(out + 3 * n, (x < y).to(tl.int32), mask=mask)
    tl.store(out + 4 * n, tl.minimum(x, y), mask=mask)
    tl.store(out + 5 * n, u.to(tl.int32), mask=mask)
    tl.store(out + 6 * n, x.to(tl.int8).to(tl.int32), mask=mask)
    tl.store(out + 7 * n, tl.umulhi(x.to(tl.uint32), y.to(tl.uint32)).to(tl.int32), mask=mask)
    tl.store(out + 8 * n, tl.where(x > y, x - y, 0 - x), mask=mask)


@triton.jit
def shared(x_ptr, d_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Divide many elements of a thread by one scalar."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1)
    tl.store(out_ptr + i, x // (tl.load(d_ptr) | 1), mask=i < n)


@triton.jit
def floats(x_ptr, half_ptr, eight_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store rounding and saturating conversions, and a maximum with one side often NaN."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    tl.store(half_ptr + i, x.to(tl.float16), mask=mask)
    tl.store(eight_ptr + i, (x * 400.0).to(tl.float8e4nv), mask=mask)
    root = tl.sqrt_rn(x)
    top = tl.maximum(root, x + 1.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + i, top, mask=mask)
    tl.store(out_ptr + n + i, (x == x + root).to(tl.float32), mask=mask)
    tl.store(out_ptr + 2 * n + i, 0.0 - x, mask=mask)
    tl.store(out_ptr + 3 * n + i, x * 1e-39, mask=mask)
    tl.store(out_ptr + 4 * n + i, root, mask=mask)
    tl.store(out_ptr + 5 * n + i, tl.div_rn(x, 3.1), mask=mask)


@triton.jit
def through_memory(x_ptr, scratch_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store x backwards through memory shared by all threads."""
    i = tl.arange(0, BLOCK)
    start = tl.program_id(0) * BLOCK
    tl.store(scratch_ptr + start + i, tl.load(x_ptr + start + i, mask=start + i < n, other=0))
    tl.debug_barrier()
    turned = tl.load(scratch_ptr + start + BLOCK - 1 - i)
    tl.store(out_ptr + start + i, turned, mask=start + i < n)


@triton.jit
def far_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the rows of x negated, for any distance between rows."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols)
    tl.store(out_ptr + row * n_cols + i, -x, mask=i < n_cols)


@triton.jit
def next_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store each row of x plus 1 as the next row of out; out may be x."""
    i = tl.arange(0, BLOCK)
    for row in range(n_rows):
        x = tl.load(x_ptr + row * stride + i, mask=i < n_cols)
        tl.store(out_ptr + (row + 1) * stride + i, x + 1, mask=i < n_cols)


@triton.jit
def normalise(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store the softmax of every row, computed in fp32."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + i, mask=i < n_cols, other=float("-inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, axis=0))
    out = x / tl.sum(x, axis=0)
    tl.store(out_ptr + row * stride + i, out.to(out_ptr.dtype.element_ty), mask=i < n_cols)


@triton.jit
def walk(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the sum and the alternating sum of every row, block by block."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    total, alternating = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    for start in range(0, n_cols, BLOCK):
        x = tl.load(x_ptr + row * stride + start + i, mask=start + i < n_cols, other=0)
        total += x
        alternating = x - alternating
    tl.store(out_ptr + row, tl.sum(total, axis=0))
    tl.store(out_ptr + n_rows + row, tl.sum(alternating, axis=0))


@triton.jit
def unrolled(x_ptr, out_ptr, stride, n_rows, n_cols):
    """Store a checksum of every row, three elements an iteration."""
    row = tl.program_id(0)
    total = 0
    for i in tl.range(0, n_rows * n_cols, loop_unroll_factor=3):
        total = total * 3 + tl.load(x_ptr + row * stride + i % n_cols)
    tl.store(out_ptr + row, total)


@triton.jit
def halve(x_ptr, out_ptr, n):
    """Store how often x can be halved before it is less than 3."""
    row = tl.program_id(0)
    x = tl.load(x_ptr + row)
    count = 0
    while x > 2:
        x = x // 2
        count += 1
    tl.store(out_ptr + row, count + n * x)


@triton.jit
def above(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store x plus the row above, where there is one; every second row is negated."""
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n_cols
    other = tl.zeros([BLOCK], tl.int32)
    if row > 0:
        other = tl.load(x_ptr + (row - 1) * stride + i, mask=mask, other=0)
    x = tl.load(x_ptr + row * stride + i, mask=mask, other=0)
    if row % 2 == 0:  # noqa: SIM108 - a branch is what is wanted
        total = (x + other) // 3
    else:
        total = (other - x) // 5
    tl.store(out_ptr + row * stride + i, total, mask=mask)


@triton.jit
def multiply(
    a_ptr, b_ptr, out_ptr, M, N, K, stride_a, stride_b, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store A @ B."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_m, in_n = (m < M)[:, None], (n < N)[None, :]
    a_ptrs = a_ptr + m[:, None] * stride_a + k[None, :]
    b_ptrs = b_ptr + k[:, None] * stride_b + n[None, :]
    acc = tl.zeros(
        [BLOCK_M, BLOCK_N], tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32
    )
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=in_m & (k[None, :] < K - start), other=0)
        b = tl.load(b_ptrs, mask=(k[:, None] < K - start) & in_n, other=0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_b
    out_ptrs = out_ptr + m[:, None] * stride_out + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def multiply_small(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    """Store A @ B with fewer columns of A than an instruction multiplies."""
    m, k = tl.arange(0, SIZE), tl.arange(0, BLOCK_K)
    a = tl.load(a_ptr + m[:, None] * BLOCK_K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * SIZE + m[None, :])
    tl.store(out_ptr + m[:, None] * SIZE + m[None, :], tl.dot(a, b))


@triton.jit
def count(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Add up all elements and find the least of them, in any order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))


@triton.jit
def least(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Lower every element of out to the least of the row of x below it."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + i, mask=i < n)
    tl.atomic_min(out_ptr + i, x, mask=i < n)


@triton.jit
def accumulate(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Add x to out, one update for each element."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.atomic_add(out_ptr + i, x, mask=i < n)


@triton.jit
def swap_in(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Raise the first element of each block of x atomically, and broadcast its old value."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.atomic_add(x_ptr + tl.program_id(0), 5)
    tl.store(out_ptr + i, before + i, mask=i < n)


@triton.jit
def last_adds_up(
    x_ptr, parts_ptr, counter_ptr, out_ptr, n, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """Store the sums of PARTS rows of x: each program leaves a row, and the last one adds them up."""
    part, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + part * n + i, mask=i < n, other=0)
    tl.store(parts_ptr + part * BLOCK + i, x * 3)
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == PARTS - 1:
        tl.store(counter_ptr, 0)
        total = tl.zeros((BLOCK,), tl.int32)
        for other in range(PARTS):
            total += tl.load(parts_ptr + other * BLOCK + i)
        tl.store(out_ptr + i, total, mask=i < n)


@triton.jit
def turn_blocks(x, out, BLOCK: tl.constexpr):
    """Transpose a tensor in blocks, a few of them a program."""
    rows = tl.cdiv(x.shape[0], BLOCK)
    for tile in range(tl.program_id(0), rows * tl.cdiv(x.shape[1], BLOCK), tl.num_programs(0)):
        i, j = tile % rows * BLOCK, tile // rows * BLOCK
        out.store([j, i], x.load([i, j]).T)


@triton.jit
def store_and_read(x_ptr, work_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    """Copy a block of rows to `work`, read it there, and add the sums of its columns."""
    work = tl.make_tensor_descriptor(work_ptr, [rows, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
    first, column = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
    row = first + column[:, None]
    offsets, mask = row * BLOCK + column[None, :], row < rows
    work.store([first, 0], tl.load(x_ptr + offsets, mask=mask, other=0))
    tl.debug_barrier()
    block = tl.load(work_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, block + tl.sum(block, 0)[None, :], mask=mask)


@triton.jit
def multiply_blocks(a, b, out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Store A @ B, blocks of it one after the other, and the largest product of each row on top."""
    rows = tl.cdiv(a.shape[0], BLOCK_M)
    for tile in range(tl.program_id(0), rows * tl.cdiv(b.shape[1], BLOCK_N), tl.num_programs(0)):
        i, j = tile % rows * BLOCK_M, tile // rows * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, a.shape[1], BLOCK_K):
            acc = tl.dot(a.load([i, k]), b.load([k, j]), acc)
        acc += tl.max(acc, 1)[:, None]
        out.store([i, j], acc.to(tl.float16))


@triton.jit
def multiply_and_scale(
    a, b, scale_ptr, out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Store the sum of products of blocks, each with a scale of its own, for blocks of A @ B."""
    rows = tl.cdiv(a.shape[0], BLOCK_M)
    for tile in range(tl.program_id(0), rows * tl.cdiv(b.shape[1], BLOCK_N), tl.num_programs(0)):
        i, j = tile % rows * BLOCK_M, tile // rows * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(a.shape[1], BLOCK_K)):
            part = tl.dot(a.load([i, k * BLOCK_K]), b.load([k * BLOCK_K, j]))
            acc += part * tl.load(scale_ptr + k)
        out.store([i, j], acc)


@triton.jit
def multiply_a_block(
    a, b, out, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Store A @ B for as many columns of A as a block has."""
    i, j = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    out.store([i, j], tl.dot(a.load([i, 0]), b.load([0, j])).to(tl.float16))


@triton.jit
def add_up_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Add up the blocks of each row."""
    i = tl.arange(0, BLOCK)
    x_ptr += tl.program_id(0) * stride
    total = tl.zeros((BLOCK,), tl.int32)
    for start in tl.range(0, n_cols, BLOCK, num_stages=3):
        total += tl.load(x_ptr + start + i, mask=start + i < n_cols, other=1)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + i, total)


@triton.jit
def double_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store twice of each row."""
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * stride
    for start in tl.range(0, n_cols, BLOCK, num_stages=3, warp_specialize=True):
        mask = start + i < n_cols
        x = tl.load(x_ptr + row + start + i, mask=mask, other=0)
        tl.store(out_ptr + row + start + i, x * 2, mask=mask)


@triton.jit
def halves_of_columns(x):
    """Return the left and the right half of a tile."""
    return tl.split(x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1))


@triton.jit
def multiply_columns(
    a,
    b,
    out,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Store A @ B^T in tiles of COLUMNS, 8 columns at a time from right to left."""
    for tile in range(tl.program_id(0), tl.cdiv(b.shape[0], COLUMNS), tl.num_programs(0)):
        column = tile * COLUMNS
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, a.shape[1], BLOCK_K):
            acc = tl.dot(a.load([0, k]), b.load([column, k]).T, acc)
        left, right = halves_of_columns(acc)
        parts = halves_of_columns(left) + halves_of_columns(right)
        for part in tl.static_range(COLUMNS // 8):
            out.store([0, column + part * 8], parts[COLUMNS // 8 - 1 - part].to(tl.float16))


@triton.jit
def attend(
    q,
    k,
    v,
    out,
    scale,
    n_keys,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Store softmax(Q @ K.T * scale) @ V, in powers of two, for a block of queries."""
    row = tl.program_id(0) * BLOCK_M
    queries = q.load([row, 0])
    row_max = tl.full((BLOCK_M,), -3.0e38, tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for first in range(0, n_keys, BLOCK_N):
        scores = tl.dot(queries, k.load([first, 0]).T) * scale
        columns = first + tl.arange(0, BLOCK_N)
        scores = tl.where((columns < n_keys)[None, :], scores, float("-inf"))
        largest = tl.max(scores, axis=1)
        new_max = tl.maximum(row_max, tl.ceil(largest) if WHOLE else largest)
        power = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(power, axis=1)
        acc = tl.dot(power.to(tl.float16), v.load([first, 0]), acc * rescale[:, None])
        row_max = new_max
    out.store([row, 0], acc / row_sum[:, None])


@triton.jit
def spread_rows(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store the distances of a row's elements below its maximum, times the sum of distances."""
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    offsets = tl.program_id(0) * stride + i
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    below = tl.max(x, axis=0) - x
    tl.store(out_ptr + offsets, below * tl.sum(below, axis=0), mask=mask)


@triton.jit
def pass_rows(x_ptr, out_ptr, n_times, BLOCK: tl.constexpr):
    """Pass rows around the CTAs of a cluster in both directions, and fold the incoming rows."""
    rank = cluster_rank()
    offsets = (tl.program_id(0) * cluster_size() + rank) * BLOCK + tl.arange(0, BLOCK)
    right = tl.load(x_ptr + offsets)
    left = right
    out = right
    for _ in range(n_times):
        right = cluster_shift(right, 1)
        left = cluster_shift(left, -1)
        out = out * 3 + right - left
    tl.store(out_ptr + offsets, out)


@triton.jit
def read_rows(x_ptr, out_ptr, n_times, BLOCK: tl.constexpr):
    """Read the rows of the CTAs of a cluster, the next one's each time, and fold them."""
    rank = cluster_rank()
    offsets = (tl.program_id(0) * cluster_size() + rank) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    for step in range(n_times):
        x = x * 3 + cluster_read(x, (rank + step) % cluster_size())
    tl.store(out_ptr + offsets, x)


@triton.jit
def turn_pieces(x_ptr, y_ptr, out_ptr, counter_ptr, BLOCK: tl.constexpr):
    """Store a piece of x, wait for the grid, and add the next program's piece, twice."""
    pid = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    following = (pid + 1) % tl.num_programs(0)
    x = tl.load(x_ptr + pid * BLOCK + i)
    tl.store(y_ptr + pid * BLOCK + i, x * 3)
    grid_barrier(counter_ptr)
    x += tl.load(y_ptr + following * BLOCK + i)
    grid_barrier(counter_ptr)
    tl.store(y_ptr + pid * BLOCK + i, x * 5)
    grid_barrier(counter_ptr)
    tl.store(out_ptr + pid * BLOCK + i, x + tl.load(y_ptr + following * BLOCK + i))


@triton.jit
def level_rows(x_ptr, out_ptr, stride, n_cols, n_times, BLOCK: tl.constexpr):
    """Double the elements of a row and take the maximum from each, several times."""
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    offsets = tl.program_id(0) * stride + i
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    for _ in range(n_times):
        x = x * 2.0 - tl.max(x, axis=0)
    tl.store(out_ptr + offsets, x, mask=mask)
