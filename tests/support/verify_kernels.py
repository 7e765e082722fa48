"""Small kernels for input choice and verification, one per property of a kernel."""

import triton
import triton.language as tl


@triton.jit
def scale_rows(x_ptr, out_ptr, stride, n_rows, n_cols, factor, BLOCK: tl.constexpr):
    """Store x * factor for rows of any length, each product rounded once."""
    row = tl.program_id(0).to(tl.int64)
    tl.assume(row < n_rows)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * stride + cols, mask=mask)
        tl.store(out_ptr + row * stride + cols, x * factor, mask=mask)


@triton.jit
def scale_rows_in_turn(x_ptr, out_ptr, stride, n_rows, n_cols, factor, BLOCK: tl.constexpr):
    """Store x * factor, some rows a program, one after the other."""
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        offsets = row.to(tl.int64) * stride + cols
        x = tl.load(x_ptr + offsets, mask=cols < n_cols)
        tl.store(out_ptr + offsets, x * factor, mask=cols < n_cols)


@triton.jit
def to_bytes(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    """Store |x * scale| as bytes; large values are undefined."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.abs(x * scale).to(tl.uint8), mask=i < n)


@triton.jit
def added_if(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    """Store x * scale where it is nonzero."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if scale != 0.0:
        tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * scale, mask=i < n)


@triton.jit
def sum_rows(x_ptr, out_ptr, stride, n_cols, BLOCK: tl.constexpr):
    """Store the sum of every row."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32), axis=0))


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, n, stride_x, BLOCK: tl.constexpr):
    """Store the first two elements of the indexed rows."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    row = tl.load(index_ptr + i, mask=mask, other=0)
    first = tl.load(x_ptr + row * stride_x, mask=mask)
    second = tl.load(x_ptr + row * stride_x + 1, mask=mask)
    tl.store(out_ptr + i * 2, first, mask=mask)
    tl.store(out_ptr + i * 2 + 1, second, mask=mask)


@triton.jit
def leaky(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store the undefined values of masked-off lanes."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n - 1)
    tl.store(out_ptr + i, x, mask=i < n)


@triton.jit
def crowd(out_ptr, n, BLOCK: tl.constexpr):
    """Store to the same place from every program."""
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, i + tl.program_id(0), mask=i < n)


@triton.jit
def count(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Add up all elements, in any order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))


@triton.jit
def placed(x_ptr, counter_ptr, out_ptr, BLOCK: tl.constexpr):
    """Copy a row to the next free slot, in the order of arrival."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + i)
    tl.store(out_ptr + tl.atomic_add(counter_ptr, 1) * BLOCK + i, x)


@triton.jit
def locked(x_ptr, lock_ptr, out_ptr, BLOCK: tl.constexpr):
    """Add rows up one by one, behind a lock: the sums are rounded in the order of programs."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr + i, tl.load(out_ptr + i) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def last_adds(x_ptr, parts_ptr, counter_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store a partial sum; the last program adds up the sums of all programs."""
    i = tl.arange(0, BLOCK)
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    tl.store(parts_ptr + program, tl.sum(tl.load(x_ptr + program * BLOCK + i), axis=0))
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == num_programs - 1:
        parts = tl.load(parts_ptr + i, mask=i < num_programs, other=0)
        tl.store(out_ptr, tl.sum(parts, axis=0))
        tl.store(counter_ptr, 0)


@triton.jit
def grouped(a_ptr, out_ptr, M, N, stride_am, stride_an, stride_om, stride_on,
            BLOCK: tl.constexpr):  # fmt: skip
    """Store a / 2 in tiles, for any strides of both axes."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (m < M)[:, None] & (n < N)[None, :]
    a = tl.load(a_ptr + m[:, None] * stride_am + n[None, :] * stride_an, mask=mask)
    tl.store(out_ptr + m[:, None] * stride_om + n[None, :] * stride_on, a * 0.5, mask=mask)


@triton.jit
def halves(x_ptr, n_rows, stride, n, BLOCK: tl.constexpr):
    """Swap, in place, the two halves of every row of 2 * n."""
    row = tl.arange(0, BLOCK)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    mask = (row < n_rows) & (i < n)
    first = tl.load(x_ptr + row * stride + i, mask=mask)
    second = tl.load(x_ptr + row * stride + n + i, mask=mask)
    tl.store(x_ptr + row * stride + i, second, mask=mask)
    tl.store(x_ptr + row * stride + n + i, first, mask=mask)


@triton.jit
def twice(x_ptr, n, BLOCK: tl.constexpr):
    """Store zeros, and then ones over them."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 0.0, mask=i < n)
    tl.store(x_ptr + i, 1.0, mask=i < n)


@triton.jit
def doubled(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x + x: pointers alone tell launches apart."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, x + x)


@triton.jit
def halved(x_ptr, BLOCK: tl.constexpr):
    """Halve x in place; where a tile is smaller than a CTA, threads hold second copies."""
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 0.5 * tl.load(x_ptr + i))


@triton.jit
def halved_and_spread(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Halve x in place, and repeat its old value along rows: the second copies are used."""
    i, k = tl.arange(0, BLOCK), tl.arange(0, 32)
    x = tl.load(x_ptr + i)
    tl.store(x_ptr + i, 0.5 * x)
    tl.store(out_ptr + i[:, None] * 32 + k[None, :], x[:, None] + 0.0 * k[None, :])


@triton.jit
def turned(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x backwards through out: threads read other threads' writes."""
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i))
    tl.debug_barrier()
    x = tl.load(out_ptr + BLOCK - 1 - i)
    tl.debug_barrier()
    tl.store(out_ptr + i, x)


@triton.jit
def attend(x_ptr, v_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store exp(x) @ v, the weights rounded to fp16 on their way."""
    m, n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    weights = tl.exp(tl.load(x_ptr + m * BLOCK + n)).to(tl.float16)
    tl.store(out_ptr + m * BLOCK + n, tl.dot(weights, tl.load(v_ptr + m * BLOCK + n)))


@triton.jit
def chained_dots(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store (x @ y) @ y, both products in tf32."""
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    y = tl.load(y_ptr + at)
    tl.store(out_ptr + at, tl.dot(tl.dot(tl.load(x_ptr + at), y), y))


@triton.jit
def sequence_sums(x_ptr, starts_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store the sum of each sequence of x; it starts where the one before ends."""
    row = tl.program_id(0)
    start, end = tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)
    total = tl.zeros([BLOCK], tl.int32)
    for at in range(start, end, BLOCK):
        i = at + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + i, mask=i < end, other=0)
    tl.store(out_ptr + row, tl.sum(total))


@triton.jit
def rows_before(x_ptr, rows_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store the row of x that lies as far before the second as `rows_ptr` says."""
    i = tl.arange(0, BLOCK)
    row = 1 - tl.load(rows_ptr + tl.program_id(0))
    tl.store(out_ptr + tl.program_id(0) * n + i, tl.load(x_ptr + row * n * 1024 + i), mask=i < n)


@triton.jit
def rows_at_addresses(addresses_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store a row of integers behind each address."""
    i = tl.arange(0, BLOCK)
    row = tl.load(addresses_ptr + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    tl.store(out_ptr + tl.program_id(0) * n + i, tl.load(row + i, mask=i < n), mask=i < n)


@triton.jit
def swizzled(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Negate x; programs take tiles column by column, and start again after the last one."""
    down = tl.cdiv(n_rows, BLOCK)
    tile = tl.program_id(0) % (down * tl.cdiv(n_cols, BLOCK))
    row = tile % down * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tile // down * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < n_rows) & (col < n_cols)
    tl.store(out_ptr + row * stride + col, -tl.load(x_ptr + row * stride + col, mask=mask), mask)


@triton.jit
def lower_pairs(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x for each pair of 4 tiles, the first one after the second; a program is a pair."""
    first, second = tl.program_id(0) // 4, tl.program_id(0) % 4
    if first > second:
        i = tl.arange(0, BLOCK)
        tl.store(out_ptr + tl.program_id(0) * BLOCK + i, tl.load(x_ptr + first * BLOCK + i))


@triton.jit
def tile_sums(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store the sum of each tile; only of whole tiles is it defined."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + row * stride + col, mask=(row < n_rows) & (col < n_cols))
    tl.store(out_ptr + tl.program_id(0) * 64 + tl.program_id(1), tl.sum(x))


@triton.jit
def next_rows(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr):
    """Store each row of x plus 1 as the next row of out; out may be x."""
    i = tl.arange(0, BLOCK)
    for row in range(n_rows):
        x = tl.load(x_ptr + row * stride + i, mask=i < n_cols)
        tl.store(out_ptr + (row + 1) * stride + i, x + 1, mask=i < n_cols)


@triton.jit
def shifted(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store x, one element further: in place it depends on the order of threads."""
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i + 1, tl.load(x_ptr + i))


@triton.jit
def tiles(x_ptr, out_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Negate x tile by tile, every PROGRAMS-th of them a program."""
    columns = tl.cdiv(n_cols, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(n_rows, 2) * columns, PROGRAMS):
        m = tile // columns * 2 + tl.arange(0, 2)[:, None]
        n = tile % columns * BLOCK + tl.arange(0, BLOCK)[None, :]
        mask = (m < n_rows) & (n < n_cols)
        x = tl.load(x_ptr + m.to(tl.int64) * stride + n, mask=mask)
        tl.store(out_ptr + m.to(tl.int64) * stride + n, -x, mask=mask)


@triton.jit
def grouped_pointers(rows_ptr, out_ptrs, n, BLOCK: tl.constexpr):
    """Store a group's number in as many elements as it has, through a pointer of its own."""
    group = tl.program_id(0)
    out = tl.load(out_ptrs + group).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(out + i, (group + i).to(tl.float32), mask=i < tl.load(rows_ptr + group) + n)


@triton.jit
def causal_sums(x, y, out, n_queries, n_keys, BLOCK: tl.constexpr):
    """Add up the blocks of x visible to a block of queries, and one of y; the last sees all."""
    head = tl.program_id(1)
    first_query = tl.program_id(0) * BLOCK
    total = y.load([head, first_query])
    last = tl.minimum(n_keys, first_query + BLOCK + n_keys - n_queries)
    for first in range(0, last, BLOCK):
        total += x.load([head, first])
    out.store([head, first_query], total)


@triton.jit
def head_rows(x_ptr, out_ptr, n_heads, n_rows, BLOCK: tl.constexpr):
    """Sum the rows of all heads in one loop."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    n_steps = tl.cdiv(n_rows, BLOCK)
    for step in range(n_heads * n_steps):
        rows = step % n_steps * BLOCK + lanes
        mask = rows < n_rows
        total += tl.load(x_ptr + step // n_steps * n_rows + rows, mask=mask, other=0)
    tl.store(out_ptr + lanes, total)


@triton.jit
def looked_up(x_ptr, table_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Look up a table by values of hardware-dependent rounding."""
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lanes, mask=lanes < n, other=0.0)
    index = (tl.exp2(tl.minimum(tl.abs(x), 4.0)) * 8.0).to(tl.int32)
    tl.store(out_ptr + lanes, tl.load(table_ptr + index), mask=lanes < n)


@triton.jit
def products(a_ptr, b_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    """Add up the products of columns of a and rows of b."""
    m, k = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n_cols, BLOCK):
        a = tl.load(a_ptr + m * n_cols + start + k, mask=start + k < n_cols, other=0.0)
        b = tl.load(b_ptr + m * n_cols + start + k, mask=start + k < n_cols, other=0.0)
        acc += tl.dot(a, b.T)
    tl.store(out_ptr + m * BLOCK + k, acc)
