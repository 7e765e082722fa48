"""Kernels whose speed depends on the layout of their plain accesses, as people write them."""

import triton
import triton.language as tl


@triton.jit
def quantize_heads(x, out, row_stride, head_dim, first, count, BLOCK: tl.constexpr):
    """Quantise `count` numbers after `first`, of heads whose size is known at run time."""
    offs = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = (offs // head_dim) * row_stride + offs % head_dim
    here = offs < first + count
    value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
    tl.store(out + place, (value * 0.5).to(tl.float8e4nv), mask=here)


@triton.jit
def clamped_matmul(
    a, b, c, M, N, K, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply; rows and columns beyond the end read the first one."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    safe_rows = tl.where(rows < M, rows, 0)
    safe_columns = tl.where(columns < N, columns, 0)
    safe_rows = tl.max_contiguous(tl.multiple_of(safe_rows, BLOCK_M), BLOCK_M)
    safe_columns = tl.max_contiguous(tl.multiple_of(safe_columns, BLOCK_N), BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        steps = k * BLOCK_K + tl.arange(0, BLOCK_K)
        left = tl.load(
            a + safe_rows[:, None] * stride_a + steps[None, :], mask=steps[None, :] < K, other=0.0
        )
        right = tl.load(
            b + steps[:, None] * stride_b + safe_columns[None, :],
            mask=steps[:, None] < K,
            other=0.0,
        )
        acc = tl.dot(left, right, acc)
    tl.store(
        c + rows[:, None] * stride_c + columns[None, :],
        acc.to(c.dtype.element_ty),
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )


@triton.jit
def route_in_groups(
    scores, bias, ids, weights, tokens,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Choose experts for each of BLOCK tokens, among the groups with the best two experts."""
    size: tl.constexpr = EXPERTS // GROUPS
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.arange(0, EXPERTS)
    here = token[:, None] < tokens
    logits = tl.load(scores + token[:, None] * EXPERTS + expert[None, :], mask=here, other=0.0)
    probability = tl.sigmoid(logits.to(tl.float32))
    choice = probability + tl.load(bias + expert)[None, :]
    grouped = tl.reshape(choice, (BLOCK, GROUPS, size))
    member = tl.arange(0, size)[None, None, :]
    best, best_at = tl.max(grouped, axis=2, return_indices=True)
    second = tl.max(tl.where(member == best_at[:, :, None], float("-inf"), grouped), axis=2)
    group_score = best + second
    group = tl.arange(0, GROUPS)[None, :]
    chosen = tl.zeros((BLOCK, GROUPS), dtype=tl.int32)
    for _ in tl.static_range(TOP_GROUPS):
        at = tl.argmax(group_score, axis=1)[:, None]
        chosen = tl.where(group == at, 1, chosen)
        group_score = tl.where(group == at, float("-inf"), group_score)
    allowed = tl.where(chosen[:, :, None] != 0, grouped, float("-inf"))
    allowed = tl.reshape(allowed, (BLOCK, EXPERTS))
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in tl.static_range(TOP):
        at = tl.argmax(allowed, axis=1)
        is_chosen = expert[None, :] == at[:, None]
        weight = tl.sum(tl.where(is_chosen, probability, 0.0), axis=1)
        allowed = tl.where(is_chosen, float("-inf"), allowed)
        tl.store(ids + token * TOP + k, at, mask=token < tokens)
        tl.store(weights + token * TOP + k, weight, mask=token < tokens)
        total += weight


@triton.jit
def sort_rows(x, out, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Sort short rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    value = tl.load(x + place, mask=row[:, None] < rows, other=0.0)
    tl.store(out + place, tl.sort(value, descending=True), mask=row[:, None] < rows)


@triton.jit
def convolve(
    x, weight, out, batch, height, width, out_channels, out_height, out_width,
    x_batch, x_channel, x_row, x_column, w_out, w_in, w_row, w_column,
    out_batch, out_channel, out_row, out_column,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, STEP: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Convolve images in two dimensions, as a product of gathered pixels and weights."""
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    channel_out = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    line = pixel // out_width
    image = line // out_height
    y = line % out_height
    column = pixel % out_width
    acc = tl.zeros((BLOCK_P, BLOCK_O), dtype=tl.float32)
    blocks: tl.constexpr = (CHANNELS + BLOCK_I - 1) // BLOCK_I
    for step in range(KERNEL * KERNEL * blocks):
        tap = step // blocks
        dy = tap // KERNEL
        dx = tap % KERNEL
        channel = (step % blocks) * BLOCK_I + tl.arange(0, BLOCK_I)
        source_y = y * STEP - PADDING + dy
        source_x = column * STEP - PADDING + dx
        pixels = tl.load(
            x
            + (image * x_batch + source_y * x_row + source_x * x_column)[:, None]
            + (channel * x_channel)[None, :],
            mask=(image < batch)[:, None]
            & (source_y >= 0)[:, None]
            & (source_y < height)[:, None]
            & (source_x >= 0)[:, None]
            & (source_x < width)[:, None]
            & (channel < CHANNELS)[None, :],
            other=0.0,
        )
        taps = tl.load(
            weight
            + (channel * w_in)[:, None]
            + (channel_out * w_out)[None, :]
            + dy * w_row
            + dx * w_column,
            mask=(channel < CHANNELS)[:, None] & (channel_out < out_channels)[None, :],
            other=0.0,
        )
        acc = tl.dot(pixels, taps, acc)
    tl.store(
        out
        + (image * out_batch + y * out_row + column * out_column)[:, None]
        + (channel_out * out_channel)[None, :],
        acc.to(out.dtype.element_ty),
        mask=(image < batch)[:, None] & (channel_out < out_channels)[None, :],
    )


@triton.jit
def dequantize_blocks(x, scales, out, M, N, SIDE: tl.constexpr):
    """Multiply fp8 weights by the scale of their block of SIDE times SIDE."""
    row = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    column = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    scale = tl.load(scales + tl.program_id(0) * tl.cdiv(N, SIDE) + tl.program_id(1))
    place = row[:, None] * N + column[None, :]
    here = (row[:, None] < M) & (column[None, :] < N)
    value = tl.load(x + place, mask=here).to(tl.float32)
    tl.store(out + place, (value * scale).to(out.dtype.element_ty), mask=here)


@triton.jit
def widen(x, out, count, BLOCK: tl.constexpr):
    """Convert bf16 to fp32."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offs, mask=offs < count)
    tl.store(out + offs, value.to(tl.float32), mask=offs < count)


@triton.jit
def dequantize_nibbles(packed, code, scales, out, count, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Look up both halves of each byte in a table of 16 values, and scale them."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(packed + offs, mask=offs < count, other=0)
    scale = tl.load(scales + offs // (GROUP // 2), mask=offs < count, other=1.0)
    high = tl.load(code + (byte >> 4)) * scale
    low = tl.load(code + (byte & 0xF)) * scale
    pair = tl.interleave(high, low).to(out.dtype.element_ty)
    places = tl.program_id(0) * BLOCK * 2 + tl.arange(0, BLOCK * 2)
    tl.store(out + places, pair, mask=places < 2 * count)


@triton.jit
def quantize_nibbles(
    x, code, scales, packed, count, GROUP: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """Find the nearest of 16 values by bisection, and pack two indices in a byte."""
    first = tl.program_id(0) * GROUPS
    offs = first * GROUP + tl.arange(0, GROUPS * GROUP)
    value = tl.load(x + offs, mask=offs < count, other=0.0).to(tl.float32)
    value = tl.reshape(value, (GROUPS, GROUP))
    scale = tl.max(tl.abs(value), axis=1)
    tl.store(
        scales + first + tl.arange(0, GROUPS),
        scale,
        mask=first + tl.arange(0, GROUPS) < count // GROUP,
    )
    value = tl.reshape(value / scale[:, None], (GROUPS * GROUP,))
    table = tl.load(code + tl.arange(0, 16))
    index = tl.zeros((GROUPS * GROUP,), dtype=tl.int32)
    for bit in tl.static_range(4):
        probe = index + (8 >> bit)
        index = tl.where(value >= tl.gather(table, probe, 0), probe, index)
    above = tl.minimum(index + 1, 15)
    lower = tl.gather(table, index, 0)
    upper = tl.gather(table, above, 0)
    index = tl.where(value - lower > upper - value, above, index)
    high, low = tl.split(tl.reshape(index, (GROUPS * GROUP // 2, 2)))
    places = first * (GROUP // 2) + tl.arange(0, GROUPS * GROUP // 2)
    tl.store(packed + places, (high << 4 | low).to(tl.uint8), mask=places < count // 2)


@triton.jit
def order_pairs(keys, ids, flip, STEP: tl.constexpr, BITS: tl.constexpr):
    """Exchange keys that are 2**(BITS - STEP - 1) apart and out of order, with their ids."""
    shape: tl.constexpr = [(keys.numel >> BITS) * 2**STEP, 2, 2 ** (BITS - STEP - 1)]
    side = tl.arange(0, 2)[None, :, None]
    pairs = tl.reshape(keys, shape)
    pair_ids = tl.reshape(ids, shape)
    left = tl.broadcast_to(tl.sum(pairs * (1 - side), 1)[:, None, :], shape)
    right = tl.broadcast_to(tl.sum(pairs * side, 1)[:, None, :], shape)
    left_id = tl.broadcast_to(tl.sum(pair_ids * (1 - side), 1)[:, None, :], shape)
    right_id = tl.broadcast_to(tl.sum(pair_ids * side, 1)[:, None, :], shape)
    swaps = tl.reshape(left > right, keys.shape) != flip
    other = tl.reshape(tl.where(side == 0, right, left), keys.shape)
    other_id = tl.reshape(tl.where(side == 0, right_id, left_id), keys.shape)
    return tl.where(swaps, other, keys), tl.where(swaps, other_id, ids)


@triton.jit
def merge_runs(keys, ids, LENGTH: tl.constexpr, BITS: tl.constexpr):
    """Sort runs of 2**LENGTH keys, each of two sorted halves in opposite directions."""
    if LENGTH < BITS:
        shape: tl.constexpr = [keys.numel >> (LENGTH + 1), 2, 2**LENGTH]
        flip = tl.broadcast_to(tl.arange(0, 2)[None, :, None] == 1, shape)
        flip = tl.reshape(flip, keys.shape)
    else:
        flip = tl.zeros(keys.shape, dtype=tl.int1)
    for step in tl.static_range(BITS - LENGTH, BITS):
        keys, ids = order_pairs(keys, ids, flip, step, BITS)
    return keys, ids


@triton.jit
def argsort_rows(x, out, rows, COLUMNS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the order of each row's numbers, from the least to the greatest."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, COLUMNS)
    place = row[:, None] * COLUMNS + column[None, :]
    keys = tl.load(x + place, mask=row[:, None] < rows, other=0.0)
    ids = tl.broadcast_to(column[None, :], (BLOCK, COLUMNS))
    for length in tl.static_range(1, BITS + 1):
        keys, ids = merge_runs(keys, ids, length, BITS)
    tl.store(out + place, ids, mask=row[:, None] < rows)


@triton.jit
def bisect_nibbles(x, code, scales, packed, count, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """Quantise like `quantize_nibbles`, with bounds narrowed by loads from the table."""
    first = tl.program_id(0) * GROUPS
    offs = first * GROUP + tl.arange(0, GROUPS * GROUP)
    value = tl.load(x + offs, mask=offs < count, other=0.0).to(tl.float32)
    value = tl.reshape(value, (GROUPS, GROUP))
    scale = tl.max(tl.abs(value), axis=1)
    value = value / scale[:, None]
    lower = tl.zeros((GROUPS, GROUP), dtype=tl.int32)
    upper = tl.full((GROUPS, GROUP), 15, dtype=tl.int32)
    for _ in range(4):
        middle = (lower + upper) // 2
        is_above = value > tl.load(code + middle)
        lower = tl.where(is_above, middle, lower)
        upper = tl.where(is_above, upper, middle)
    below = value - tl.load(code + lower)
    above = tl.load(code + upper) - value
    index = tl.where(below < above, lower, upper)
    high, low = tl.split(tl.reshape(index, (GROUPS * GROUP // 2, 2)))
    group = first + tl.arange(0, GROUPS)
    tl.store(scales + group, scale, mask=group < count // GROUP)
    places = first * (GROUP // 2) + tl.arange(0, GROUPS * GROUP // 2)
    tl.store(packed + places, (high << 4 | low).to(tl.uint8), mask=places < count // 2)
