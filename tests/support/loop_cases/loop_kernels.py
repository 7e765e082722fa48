"""Loops with loads, one for each treatment by the pipeliner."""

import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, m_size, n_size, k_size, stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Multiply one block of matrices; addresses are carried. MASK is "", "k" or "mnk"."""
    m = tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m * stride_a + k[None, :]
    b_ptrs = b_ptr + k[:, None] * stride_b + n
    acc = tl.dot(tl.zeros([BLOCK_M, 16], tl.float16), tl.zeros([16, BLOCK_N], tl.float16))
    acc = acc.to(tl.int32) if a_ptr.dtype.element_ty == tl.int8 else acc
    for start in range(0, k_size, BLOCK_K):
        if MASK == "":
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        elif MASK == "k":
            a = tl.load(a_ptrs, mask=k[None, :] < k_size - start, other=0.0)
            b = tl.load(b_ptrs, mask=k[:, None] < k_size - start, other=0.0)
        else:
            a = tl.load(a_ptrs, mask=(m < m_size) & (k[None, :] < k_size - start), other=0.0)
            b = tl.load(b_ptrs, mask=(k[:, None] < k_size - start) & (n < n_size), other=0.0)
        acc = tl.dot(a, b, acc, out_dtype=acc.dtype)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_b
    tl.store(c_ptr + m * BLOCK_N + n, acc)


@triton.jit
def turned(a_ptr, b_ptr, c_ptr, count, stride, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """Sum blocks of a and of b turned; addresses are computed anew, masked b is OTHER."""
    row = tl.arange(0, BLOCK)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        a = tl.load(a_ptr + row * stride + start + col, mask=col < count - start, other=0)
        b = tl.load(b_ptr + (start + row) * stride + col, mask=row < count - start, other=OTHER)
        acc += a + tl.trans(b)
    tl.store(c_ptr + row * BLOCK + col, acc)


@triton.jit
def gathered(x_ptr, index_ptr, out_ptr, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Add gathered rows, transposed, so that they go through shared memory."""
    offsets = tl.arange(0, BLOCK)
    col = tl.arange(0, WIDTH)
    acc = tl.load(out_ptr + col[:, None] * BLOCK + offsets[None, :])
    for start in range(0, count, BLOCK):
        inside = start + offsets < count
        index = tl.load(index_ptr + start + offsets, mask=inside, other=0)
        x = tl.load(x_ptr + index[:, None] * WIDTH + col[None, :], mask=inside[:, None], other=0)
        acc += tl.trans(x)
    tl.store(out_ptr + col[:, None] * BLOCK + offsets[None, :], acc)


@triton.jit
def gathered_twice(x_ptr, page_ptr, index_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Sum blocks through two levels of scalar indirection: index, page, block."""
    offsets = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(count):
        page = tl.load(index_ptr + i)
        block = tl.load(page_ptr + page)
        acc += tl.load(x_ptr + block * BLOCK + offsets)
    tl.store(out_ptr + offsets, acc)


@triton.jit
def looked_up_before(x_ptr, index_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Sum blocks by a number loaded in the previous iteration."""
    offsets = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    block = tl.load(index_ptr)
    for i in range(count):
        acc += tl.load(x_ptr + block * BLOCK + offsets)
        block = tl.load(index_ptr + i + 1)
    tl.store(out_ptr + offsets, acc + block)


@triton.jit
def chased(next_ptr, out_ptr, count):
    """Chase pointers: each address is loaded in the previous iteration."""
    index = 0
    for _ in range(count):
        index = tl.load(next_ptr + index)
    tl.store(out_ptr, index)


@triton.jit
def summed(x_ptr, out_ptr, start, stop, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Sum blocks, from any start to any stop."""
    offsets = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(start, stop, STEP):
        acc += tl.load(x_ptr + (i - start) + offsets)
    tl.store(out_ptr + offsets, acc)


@triton.jit
def scaled(x_ptr, out_ptr, count, STAGES: tl.constexpr, BLOCK: tl.constexpr):
    """Scale blocks, perhaps in place."""
    offsets = tl.arange(0, BLOCK)
    for start in tl.range(0, count, BLOCK, num_stages=STAGES):
        inside = start + offsets < count
        tl.store(
            out_ptr + start + offsets,
            tl.load(x_ptr + start + offsets, mask=inside) * 2,
            mask=inside,
        )


@triton.jit
def accumulated(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Add blocks to the same place in memory, time and again."""
    offsets = tl.arange(0, BLOCK)
    for i in tl.range(count, num_stages=3):
        total = tl.load(out_ptr + offsets)
        tl.store(out_ptr + offsets, total + tl.load(x_ptr + i * BLOCK + offsets))


@triton.jit
def conditional(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Sum blocks of x, and in every other iteration blocks of y."""
    offsets = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(count):
        x = tl.load(x_ptr + i * BLOCK + offsets)
        if i % 2 == 1:
            x += tl.load(y_ptr + i * BLOCK + offsets)
        acc += x
    tl.store(out_ptr + offsets, acc)


@triton.jit
def unrolled(x_ptr, out_ptr, start, stop, STEP: tl.constexpr, FACTOR: tl.constexpr):
    """Fold numbers so that order matters: three times the sum so far, plus the next."""
    total = start.to(tl.int64)
    for i in tl.range(start, stop, STEP, loop_unroll_factor=FACTOR):
        total = total * 3 + tl.load(x_ptr + (i - start)) + i.to(tl.int64)
    tl.store(out_ptr, total)


@triton.jit
def halo(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """A stencil over blocks: exponentials of an element and its existing neighbours."""
    block = tl.program_id(0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    total = tl.exp(tl.load(x_ptr + offsets, mask=inside, other=0.0))
    before = tl.zeros([BLOCK], tl.float32)
    if block > 0:
        before = tl.load(x_ptr + offsets - BLOCK)
    total += tl.exp(before)
    after = tl.zeros([BLOCK], tl.float32)
    if (block + 1) * BLOCK < size:
        after = tl.load(x_ptr + offsets + BLOCK, mask=offsets + BLOCK < size, other=0.0)
    total += tl.exp(after)
    tl.store(out_ptr + offsets, total, mask=inside)


@triton.jit
def batch(x_ptr, out_ptr, take, BLOCK: tl.constexpr):
    """Batched loads in conditional code, with something else in the other arm."""
    offsets = tl.arange(0, BLOCK)
    if take > 0:
        a = tl.load(x_ptr + offsets)
        b = tl.load(x_ptr + BLOCK + offsets)
        c = tl.load(x_ptr + 2 * BLOCK + offsets)
        total = a * b - c
    else:
        total = tl.load(x_ptr + 3 * BLOCK + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def normalized(x_ptr, weight_ptr, out_ptr, BLOCK: tl.constexpr):
    """A reduction between two independent loads."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    total = tl.sum(x * x)
    weight = tl.load(weight_ptr + offsets)
    tl.store(out_ptr + offsets, x * total * weight)
    tl.store(weight_ptr + offsets, total + tl.load(x_ptr + offsets))


@triton.jit
def many_loads(x_ptr, out_ptr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Straight code of more loads than registers."""
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(COUNT):
        total = total * 2 + tl.load(x_ptr + i * BLOCK + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def until(x_ptr, out_ptr):
    """Sum until there is a zero."""
    total = 0
    index = 0
    value = tl.load(x_ptr)
    while value != 0:
        total += value
        index += 1
        value = tl.load(x_ptr + index)
    tl.store(out_ptr, total)


@triton.jit
def sometimes(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Copy every other block."""
    offsets = tl.arange(0, BLOCK)
    for i in range(count):
        if i % 2 == 0:
            tl.store(out_ptr + i * BLOCK + offsets, tl.load(x_ptr + i * BLOCK + offsets))


@triton.jit
def cut_off(x_ptr, out_ptr, start, stop, BLOCK: tl.constexpr, FORM: tl.constexpr):
    """Fold blocks with a mask on the last one only; another branch tests for it, too."""
    total = tl.zeros([BLOCK], tl.int32)
    offsets = tl.arange(0, BLOCK)
    for i in range(start, stop, BLOCK):
        if FORM == "beyond":
            is_cut = i + BLOCK > stop
        elif FORM == "reaches":
            is_cut = stop <= i + BLOCK
        else:
            is_cut = i + BLOCK + 1 > stop  # in the last but one, too
        if is_cut:
            x = tl.load(x_ptr + (i - start) + offsets, mask=offsets < stop - i, other=7)
        else:
            x = tl.load(x_ptr + (i - start) + offsets)
        total = total * 3 + x
    tl.store(out_ptr + offsets, total)


@triton.jit
def cut_off_by_number(x_ptr, out_ptr, count, stop, BLOCK: tl.constexpr):
    """The same, by block number."""
    total = tl.zeros([BLOCK], tl.int32)
    offsets = tl.arange(0, BLOCK)
    for j in range(count):
        if j == count - 1:
            x = tl.load(x_ptr + j * BLOCK + offsets, mask=j * BLOCK + offsets < stop, other=7)
        else:
            x = tl.load(x_ptr + j * BLOCK + offsets)
        total = total * 3 + x
    tl.store(out_ptr + offsets, total)
