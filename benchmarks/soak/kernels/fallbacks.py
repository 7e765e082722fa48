"""Loops the schedule cannot pipeline: each takes another of its fallbacks."""

import triton
import triton.language as tl


@triton.jit
def row_sums_kernel(
    x_ptr, out_ptr, stride, n_cols,
    BLOCK: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Store the sum of each row, and twice the row in place where the WAY says so."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    x_ptr += row * stride
    if WAY == "while":
        start = 0
        while start < n_cols:
            total += tl.load(x_ptr + start + cols, mask=start + cols < n_cols, other=0.0)
            start += BLOCK
    else:
        for start in tl.range(0, n_cols, BLOCK, num_stages=3):
            mask = start + cols < n_cols
            if WAY == "volatile":
                total += tl.load(x_ptr + start + cols, mask=mask, other=0.0, volatile=True)
            else:
                x = tl.load(x_ptr + start + cols, mask=mask, other=0.0)
                total += x
                if WAY == "in place":
                    tl.store(x_ptr + start + cols, x + x, mask=mask)
                if WAY == "barrier":
                    tl.debug_barrier()
    tl.store(out_ptr + row, tl.sum(total, axis=0))


@triton.jit
def gathered_sums_kernel(
    table_ptr, index_ptr, out_ptr, n, size,
    BLOCK: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Store the sum of `n` elements of a table of `size`, found in some way through indices."""
    cols = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    row = 0
    for start in range(0, n, BLOCK):
        mask = start + cols < n
        if WAY == "chased":
            row = tl.load(index_ptr + row)
            total += tl.load(table_ptr + row + cols, mask=mask, other=0.0)
        elif WAY == "reduced":
            index = tl.load(index_ptr + start + cols, mask=mask, other=0)
            total += tl.load(table_ptr + tl.max(index, axis=0) + cols, mask=mask, other=0.0)
        elif WAY == "volatile":
            index = tl.load(index_ptr + start + cols, mask=mask, other=0, volatile=True)
            total += tl.load(table_ptr + index, mask=mask, other=0.0)
        else:
            index = tl.load(index_ptr + start + cols, mask=mask, other=0)
            if tl.max(index, axis=0) > size // 2:
                total += tl.load(table_ptr + index, mask=mask, other=0.0)
    tl.store(out_ptr + cols, total)


@triton.jit
def dot_sums_kernel(
    a_ptr, b_ptr, out_ptr, counter_ptr, M, N, K, stride_a, stride_b, stride_out,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Store A @ B, (M, K) by (K, N), with operands transformed before the dot."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WAY == "counted":
        tl.atomic_add(counter_ptr, 1)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        in_a, in_b = (m < M)[:, None] & (k < K)[None, :], (k < K)[:, None] & (n < N)[None, :]
        if WAY == "ones":
            a = tl.load(a_ptr + m[:, None] * stride_a + k[None, :], mask=in_a, other=1.0)
        elif WAY == "holes":
            hole = in_a & ((m[:, None] + k[None, :]) % 3 != 0)
            a = tl.load(a_ptr + m[:, None] * stride_a + k[None, :], mask=hole, other=0.0)
        elif WAY == "reversed":
            back = tl.maximum(K - 1 - k, 0)
            a = tl.load(a_ptr + m[:, None] * stride_a + back[None, :], mask=in_a, other=0.0)
        else:
            a = tl.load(a_ptr + m[:, None] * stride_a + k[None, :], mask=in_a, other=0.0)
        b = tl.load(b_ptr + k[:, None] * stride_b + n[None, :], mask=in_b, other=0.0)
        if WAY == "summed":
            b = (b + tl.sum(b.to(tl.float32), axis=1)[:, None]).to(b.dtype)
        acc = tl.dot(a, b, acc)
    offsets = m.to(tl.int64)[:, None] * stride_out + n[None, :]
    tl.store(out_ptr + offsets, acc, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def block_rows_kernel(
    x, out, start_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Write X, (M, N) by blocks, plus 1 to `out`, or to itself where the WAY says so."""
    row = tl.program_id(0) * BLOCK_M
    first = 0
    if WAY == "a tile":
        first = tl.min(tl.load(start_ptr + tl.arange(0, 32)), axis=0) * BLOCK_N
    elif WAY == "volatile":
        first = tl.load(start_ptr, volatile=True) * BLOCK_N
    elif WAY == "counted":
        tl.atomic_add(start_ptr, 1)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for column in range(first, x.shape[1], BLOCK_N):
        block = x.load([row, column])
        total += block
        if WAY == "in place":
            x.store([row, column], block + 1)
        elif WAY == "carried":
            out.store([row, column], total)
        else:
            out.store([row, column], block + 1)


@triton.jit
def made_ways_kernel(
    x_ptr, out_ptr, offset_ptr, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Copy blocks of X, (M, N), through descriptors with fields known only in the kernel."""
    m = tl.program_id(0) * BLOCK_M
    base = x_ptr + m.to(tl.int64) * N
    if WAY == "loaded":
        base = x_ptr + tl.load(offset_ptr) * 0
    for column in range(0, N, BLOCK_N):
        rows = M if WAY == "loaded" else M - m
        x = tl.make_tensor_descriptor(base, [rows, N], [N, 1], [BLOCK_M, BLOCK_N])
        block = x.load([m if WAY == "loaded" else 0, column])
        offsets = (m + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None] * N + column
        n = tl.arange(0, BLOCK_N)[None, :]
        mask = (m + tl.arange(0, BLOCK_M) < M)[:, None] & (column + n < N)
        tl.store(out_ptr + offsets + n, block, mask=mask)


@triton.jit
def tile_ways_kernel(
    a, b, c, seen_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NUM_PROGRAMS: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Store A @ B.T by several tiles of a program, with dependences between them."""
    num_n = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    total = 0.0
    if WAY == "before":
        tl.store(seen_ptr + program, 1.0)
    for index in tl.range(program, tl.cdiv(M, BLOCK_M) * num_n, NUM_PROGRAMS):
        row, column = index // num_n * BLOCK_M, index % num_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            if WAY == "branch":
                left = tl.zeros((BLOCK_M, BLOCK_K), a.dtype)
                if k % (2 * BLOCK_K) == 0:
                    left = a.load([row, k])
            else:
                left = a.load([row, k])
            if WAY == "waits":
                tl.extra.cuda.gdc_wait()
            acc = tl.dot(left, b.load([column, k]).T, acc)
        if WAY == "carried":
            total += tl.max(tl.max(acc, axis=1), axis=0)
            acc = tl.where(acc < total, acc, 0.0)
        elif WAY == "volatile":
            acc += tl.load(seen_ptr + program, volatile=True)
        elif WAY == "barrier":
            tl.debug_barrier()
        elif WAY == "same place":
            tl.store(seen_ptr + program, index.to(tl.float32))
        elif WAY == "read":
            acc += tl.load(seen_ptr + index)
            tl.store(seen_ptr + index, 1.0)
        c.store([row, column], acc.to(c.dtype))


@triton.jit
def split_ways_kernel(
    x_ptr, out_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WAY: tl.constexpr,
):  # fmt: skip
    """Write a tile for each program, after an operation not allowed in a cluster."""
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    start = tl.program_id(0) * BLOCK_M * BLOCK_N
    offsets = start + m[:, None] * BLOCK_N + n[None, :]
    x = tl.load(x_ptr + offsets)
    if WAY == "scan":
        x = tl.cumsum(tl.cumsum(x, axis=0), axis=1)
    elif WAY == "sorted":
        x = tl.sort(x)
    elif WAY == "square":
        for _ in range(3):
            x = x + x.T
    elif WAY == "counted":
        x += tl.atomic_add(out_ptr + offsets, x, sem="relaxed")
    tl.store(out_ptr + offsets, x)


@triton.jit
def split_blocks_kernel(x, out, turned, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Copy blocks as they are and turned."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    block = x.load([row, column])
    turned.store([column, row], block.T)
    out.store([row, column], block)
