"""Attention of one new token a sequence over a paged cache of keys and values: split, then combined.

The cache is (pages, kv heads, PAGE, HEAD_DIM), of any strides: one with heads inside of pages is
passed as a view that exchanges these axes. Row b of the block table names the pages of sequence b,
of which the first `lengths[b]` tokens count. All query heads of a key head are rows of one tile, so
each key is read once, and what counts is bytes on their way from memory.

A program takes `pages_per_split` pages of a sequence and leaves its part of the result, with the
log2-sum-exp2 of its scores; the combine kernel weighs the parts. Or, given `out_ptr` and `counter_ptr`, the
program that comes last of those that share heads and a sequence does: `counter_ptr` has an int32 for each
head and sequence, 0 before the first launch, and every launch leaves zeros. The grid has as many splits as a row
of the block table, and programs beyond the end of a shorter sequence end at once. Choose
`pages_per_split` so that the programs with work fill the GPU once or a few times.

An iteration takes BLOCK_N tokens, of whatever pages. It has two forms: through descriptors, where a
copy is for a page or, if the box has fewer tokens, for a part of one; and through pointers, where
tokens are gathered. Where a sequence ends within a page, the former multiplies what the cache holds
there by zero, so it has to be finite. Keys and values may be fp8, with a scale for each key head.

With PDL, for launches that follow one another, each kernel starts while the one before it still runs, and
waits for that: splits before they load queries, keys or values, the combine kernel before it loads what splits
leave. So the block table and the lengths must not come from the launch just before the splits. PREFETCH tokens of
each split are brought to the L2 cache before that wait, whoever writes them: memory is not idle until it ends.
"""

import triton
import triton.language as tl

# Where a running maximum starts. Not -inf: the difference of two of those is NaN.
LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def weigh(queries, keys, start, end, scale_log2, row_max, row_sum):
    """Return weights of tokens from `start` on, and maximum, sum and rescaling of each row.

    Keys and weights are tuples of tiles that follow one another. No token from `end` on is seen.
    """
    scores = ()
    for i in tl.static_range(len(keys)):
        scores += (tl.dot(queries, keys[i].to(queries.dtype).T),)
    seen = ()
    new_max = row_max
    for i in tl.static_range(len(keys)):
        token = start + i * keys[i].shape[0] + tl.arange(0, keys[i].shape[0])
        seen += (tl.where(token[None, :] < end, scores[i] * scale_log2, float("-inf")),)
        new_max = tl.maximum(new_max, tl.max(seen[i], axis=1))
    rescale = tl.exp2(row_max - new_max)
    row_sum *= rescale
    weights = ()
    for i in tl.static_range(len(keys)):
        power = tl.exp2(seen[i] - new_max[:, None])
        row_sum += tl.sum(power, axis=1)
        weights += (power.to(queries.dtype),)
    return weights, new_max, row_sum, rescale


@triton.jit
def _heads(n_heads, n_kv_heads, BLOCK_H: tl.constexpr):
    """Return the key head of this program, and the first of its query heads among those."""
    blocks = tl.cdiv(n_heads // n_kv_heads, BLOCK_H)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK_H


@triton.jit
def _pages(
    table_ptr, start, last, max_pages, PAGE: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr,
    NONE: tl.constexpr = 0,
):  # fmt: skip
    """Return the pages that COUNT boxes of ROWS tokens from `start` on lie in; NONE from `last` on.

    The table's row is read whatever `last` is: that comes from memory, too, and would be waited for.
    """
    pages = ()
    for i in tl.static_range(COUNT):
        token = start + i * ROWS
        page = tl.load(table_ptr + token // PAGE, mask=token // PAGE < max_pages, other=NONE)
        pages += (tl.where(token < last, page, NONE),)
    return pages


@triton.jit
def _prefetch(
    k, v, table_ptr, kv_head, start, last, max_pages, PAGE: tl.constexpr, TOKENS: tl.constexpr
):  # fmt: skip
    """Begin to bring TOKENS keys and values from `start` on to the L2 cache, none from `last` on."""
    ROWS: tl.constexpr = k.block_shape[2]
    # Of page -1 there is nothing to bring.
    pages = _pages(table_ptr, start, last, max_pages, PAGE, ROWS, TOKENS // ROWS, NONE=-1)
    for i in tl.static_range(TOKENS // ROWS):
        k.prefetch([pages[i], kv_head, (start + i * ROWS) % PAGE, 0])
        v.prefetch([pages[i], kv_head, (start + i * ROWS) % PAGE, 0])


@triton.jit
def attend(
    queries, k, v, table_ptr, pages, kv_head, start, end, max_pages, scale_log2,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return maximum and sum of each row's weights for tokens from `start` to `end`, and the weighted values.

    An iteration takes BLOCK_N tokens, of which `pages` has the first ones' pages.
    """
    ROWS: tl.constexpr = k.block_shape[2]
    row_max = tl.full((queries.shape[0],), LOWEST, tl.float32)
    row_sum = tl.zeros((queries.shape[0],), tl.float32)
    acc = tl.zeros(queries.shape, tl.float32)
    for token in range(start, end, BLOCK_N):
        following = _pages(
            table_ptr, token + BLOCK_N, end, max_pages, PAGE, ROWS, BLOCK_N // ROWS
        )  # fmt: skip
        keys = ()
        for i in tl.static_range(BLOCK_N // ROWS):
            tile = k.load([pages[i], kv_head, (token + i * ROWS) % PAGE, 0])
            keys += (tile.reshape(ROWS, queries.shape[1]),)
        weights, row_max, row_sum, rescale = weigh(
            queries, keys, token, end, scale_log2, row_max, row_sum
        )
        acc *= rescale[:, None]
        for i in tl.static_range(BLOCK_N // ROWS):
            tile = v.load([pages[i], kv_head, (token + i * ROWS) % PAGE, 0])
            values = tile.reshape(ROWS, queries.shape[1]).to(queries.dtype)
            acc = tl.dot(weights[i], values, acc)
        pages = following
    return row_max, row_sum, acc


@triton.jit
def _store_part(
    part_ptr, lse_ptr, row_max, row_sum, acc, v_scale_ptr,
    n_heads, n_kv_heads, n_splits, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Store this program's part: `part` is (batch, n_heads, n_splits, HEAD_DIM), `lse` likewise."""
    kv_head, first = _heads(n_heads, n_kv_heads, BLOCK_H)
    h = first + tl.arange(0, BLOCK_H)
    real = h < n_heads // n_kv_heads
    head = tl.program_id(1) * n_heads + kv_head * (n_heads // n_kv_heads) + h
    rows = head.to(tl.int64) * n_splits + tl.program_id(2)
    columns = tl.arange(0, acc.shape[1])
    factor = 1.0 / row_sum
    if v_scale_ptr is not None:
        factor *= tl.load(v_scale_ptr + kv_head)
    part_ptrs = part_ptr + rows[:, None] * acc.shape[1] + columns[None, :]
    tl.store(part_ptrs, acc * factor[:, None], mask=real[:, None])
    tl.store(lse_ptr + rows, row_max + tl.log2(row_sum), mask=real)


@triton.jit
def _finish_last(
    part_ptr, lse_ptr, out_ptr, counter_ptr,
    n_heads, n_kv_heads, n_splits, n_parts,
    HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Weigh the parts of this program's heads, if it is the last of `n_parts` to have stored one.

    ROWS heads at a time, AT_ONCE parts of each. The parts are added in their order, whoever was last.
    """
    tl.debug_barrier()  # the whole part is stored before it is counted
    counter_ptr += tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == n_parts - 1:
        tl.store(counter_ptr, 0)
        kv_head, first = _heads(n_heads, n_kv_heads, BLOCK_H)
        d = tl.arange(0, HEAD_DIM)
        for block in range(first, min(first + BLOCK_H, n_heads // n_kv_heads), ROWS):
            h = block + tl.arange(0, ROWS)
            real = h < n_heads // n_kv_heads
            head = tl.program_id(1) * n_heads + kv_head * (n_heads // n_kv_heads) + h
            lse_ptrs = lse_ptr + head.to(tl.int64) * n_splits
            part_ptrs = part_ptr + (head.to(tl.int64) * n_splits * HEAD_DIM)[:, None] + d[None, :]
            largest = tl.full((ROWS,), LOWEST, tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            acc = tl.zeros((ROWS, HEAD_DIM), tl.float32)
            for start in range(0, n_parts, AT_ONCE):
                lse, part = (), ()
                for i in tl.static_range(AT_ONCE):
                    seen = real & (start + i < n_parts)
                    lse += (tl.load(lse_ptrs + start + i, mask=seen, other=float("-inf")),)
                    at = part_ptrs + (start + i) * HEAD_DIM
                    part += (tl.load(at, mask=seen[:, None], other=0.0),)
                new_largest = largest
                for i in tl.static_range(AT_ONCE):
                    new_largest = tl.maximum(new_largest, lse[i])
                rescale = tl.exp2(largest - new_largest)
                total *= rescale
                acc *= rescale[:, None]
                for i in tl.static_range(AT_ONCE):
                    weight = tl.exp2(lse[i] - new_largest)
                    total += weight
                    acc += part[i] * weight[:, None]
                largest = new_largest
            out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
            out_ptrs = out_ptr + head.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
            tl.store(out_ptrs, out, mask=real[:, None])


@triton.jit
def _finish(
    part_ptr, lse_ptr, row_max, row_sum, acc, v_scale_ptr, out_ptr, counter_ptr,
    length, n_heads, n_kv_heads, max_pages, pages_per_split,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr,
    COMBINE_H: tl.constexpr, COMBINE_S: tl.constexpr,
):  # fmt: skip
    """Store this program's part, and weigh all parts of its sequence if there is one launch."""
    _store_part(
        part_ptr, lse_ptr, row_max, row_sum, acc, v_scale_ptr,
        n_heads, n_kv_heads, tl.cdiv(max_pages, pages_per_split), BLOCK_H,
    )  # fmt: skip
    if counter_ptr is not None:
        _finish_last(
            part_ptr, lse_ptr, out_ptr, counter_ptr, n_heads, n_kv_heads,
            tl.cdiv(max_pages, pages_per_split), tl.cdiv(tl.cdiv(length, PAGE), pages_per_split),
            HEAD_DIM, BLOCK_H, COMBINE_H, COMBINE_S,
        )  # fmt: skip


@triton.jit
def _finish_empty(
    out_ptr, length, n_heads, n_kv_heads, HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr
):  # fmt: skip
    """Store the result of a sequence without tokens: its first program does."""
    if length == 0 and tl.program_id(2) == 0:
        kv_head, first = _heads(n_heads, n_kv_heads, BLOCK_H)
        h, d = first + tl.arange(0, BLOCK_H), tl.arange(0, HEAD_DIM)
        head = tl.program_id(1) * n_heads + kv_head * (n_heads // n_kv_heads) + h
        out_ptrs = out_ptr + head.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
        zeros = tl.zeros((BLOCK_H, HEAD_DIM), out_ptr.dtype.element_ty)
        tl.store(out_ptrs, zeros, mask=(h < n_heads // n_kv_heads)[:, None])


@triton.jit
def paged_decode_descriptor_kernel(
    q, k, v, table_ptr, lengths_ptr, part_ptr, lse_ptr,
    scale_log2,
    n_sequences,
    n_heads, n_kv_heads, max_pages, pages_per_split,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
    k_scale_ptr=None, v_scale_ptr=None,
    PREFETCH: tl.constexpr = 0,
    out_ptr=None, counter_ptr=None,
    COMBINE_H: tl.constexpr = 8, COMBINE_S: tl.constexpr = 8,
):  # fmt: skip
    """Store the parts of each split, of tokens that are copied page by page.

    Q is (batch * n_kv_heads, n_heads / n_kv_heads, HEAD_DIM): beyond the heads there are zeros.
    `scale_log2` is the scale of scores times log2(e).
    """
    ROWS: tl.constexpr = k.block_shape[2]
    kv_head, first_head = _heads(n_heads, n_kv_heads, BLOCK_H)
    sequence, split = tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    first = split * pages_per_split * PAGE
    last = min(first + pages_per_split * PAGE, length)
    table_ptr += sequence.to(tl.int64) * max_pages
    first_pages = _pages(table_ptr, first, last, max_pages, PAGE, ROWS, BLOCK_N // ROWS)
    if PREFETCH > 0:
        _prefetch(k, v, table_ptr, kv_head, first, last, max_pages, PAGE, PREFETCH)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if first < last:
        if k_scale_ptr is not None:
            scale_log2 *= tl.load(k_scale_ptr + kv_head)
        queries = q.load([sequence * n_kv_heads + kv_head, first_head, 0])
        queries = queries.reshape(BLOCK_H, HEAD_DIM)
        row_max, row_sum, acc = attend(
            queries, k, v, table_ptr, first_pages, kv_head, first, last, max_pages, scale_log2,
            PAGE, BLOCK_N,
        )  # fmt: skip
        _finish(
            part_ptr, lse_ptr, row_max, row_sum, acc, v_scale_ptr, out_ptr, counter_ptr,
            length, n_heads, n_kv_heads, max_pages, pages_per_split,
            HEAD_DIM, PAGE, BLOCK_H, COMBINE_H, COMBINE_S,
        )  # fmt: skip
    elif counter_ptr is not None:
        _finish_empty(out_ptr, length, n_heads, n_kv_heads, HEAD_DIM, BLOCK_H)


@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, part_ptr, lse_ptr,
    scale_log2,
    n_sequences,
    n_heads, n_kv_heads, max_pages, pages_per_split,
    stride_kp, stride_kh, stride_kn, stride_vp, stride_vh, stride_vn,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
    k_scale_ptr=None, v_scale_ptr=None, out_ptr=None, counter_ptr=None,
    COMBINE_H: tl.constexpr = 8, COMBINE_S: tl.constexpr = 8,
):  # fmt: skip
    """Store the parts of each split, of tokens that are gathered.

    Q is (batch, n_heads, HEAD_DIM), dense. Strides are those of pages, key heads and tokens.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    kv_head, first_head = _heads(n_heads, n_kv_heads, BLOCK_H)
    sequence, split = tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    first = split * pages_per_split * PAGE
    last = min(first + pages_per_split * PAGE, length)
    if first < last:
        if k_scale_ptr is not None:
            scale_log2 *= tl.load(k_scale_ptr + kv_head)
        h, d = first_head + tl.arange(0, BLOCK_H), tl.arange(0, HEAD_DIM)
        heads_per_kv_head = n_heads // n_kv_heads
        rows = sequence * n_heads + kv_head * heads_per_kv_head + h
        q_ptrs = q_ptr + rows.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
        queries = tl.load(q_ptrs, mask=(h < heads_per_kv_head)[:, None], other=0.0)
        row_max = tl.full((BLOCK_H,), LOWEST, tl.float32)
        row_sum = tl.zeros((BLOCK_H,), tl.float32)
        acc = tl.zeros((BLOCK_H, HEAD_DIM), tl.float32)
        table_ptr += sequence.to(tl.int64) * max_pages
        k_ptr += kv_head.to(tl.int64) * stride_kh
        v_ptr += kv_head.to(tl.int64) * stride_vh
        for start in range(first, last, BLOCK_N):
            token = start + tl.arange(0, BLOCK_N)
            seen = token < last
            page = tl.load(table_ptr + token // PAGE, mask=seen, other=0).to(tl.int64)
            k_ptrs = k_ptr + page * stride_kp + token % PAGE * stride_kn
            keys = tl.load(k_ptrs[:, None] + d[None, :], mask=seen[:, None], other=0.0)
            weights, row_max, row_sum, rescale = weigh(
                queries, (keys,), start, last, scale_log2, row_max, row_sum
            )
            v_ptrs = v_ptr + page * stride_vp + token % PAGE * stride_vn
            values = tl.load(v_ptrs[:, None] + d[None, :], mask=seen[:, None], other=0.0)
            acc = tl.dot(weights[0], values.to(queries.dtype), acc * rescale[:, None])
        _finish(
            part_ptr, lse_ptr, row_max, row_sum, acc, v_scale_ptr, out_ptr, counter_ptr,
            length, n_heads, n_kv_heads, max_pages, pages_per_split,
            HEAD_DIM, PAGE, BLOCK_H, COMBINE_H, COMBINE_S,
        )  # fmt: skip
    elif counter_ptr is not None:
        _finish_empty(out_ptr, length, n_heads, n_kv_heads, HEAD_DIM, BLOCK_H)


@triton.jit
def combine_splits_kernel(
    part_ptr, lse_ptr, lengths_ptr, out_ptr,
    n_sequences,
    n_heads, max_pages, pages_per_split,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_S: tl.constexpr,
    PDL: tl.constexpr = False,  # noqa: FBT002 - a constant
):  # fmt: skip
    """Store the result of each head, (batch, n_heads, HEAD_DIM), from its parts, BLOCK_S at a time.

    The grid has a program for each head and sequence; one of no tokens gets zeros.
    """
    sequence = tl.program_id(1)
    row = (sequence * n_heads + tl.program_id(0)).to(tl.int64)
    pages = tl.cdiv(tl.load(lengths_ptr + sequence), PAGE)
    n_splits = tl.cdiv(pages, pages_per_split)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()  # what splits leave; lengths were there before them
    row *= tl.cdiv(max_pages, pages_per_split)
    d = tl.arange(0, HEAD_DIM)
    largest = LOWEST
    total = 0.0
    acc = tl.zeros((HEAD_DIM,), tl.float32)
    for start in range(0, n_splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        real = split < n_splits
        lse = tl.load(lse_ptr + row + split, mask=real, other=float("-inf"))
        part_ptrs = part_ptr + (row + split)[:, None] * HEAD_DIM + d[None, :]
        part = tl.load(part_ptrs, mask=real[:, None], other=0.0)
        new_largest = tl.maximum(largest, tl.max(lse, axis=0))
        weight = tl.exp2(lse - new_largest)
        rescale = tl.exp2(largest - new_largest)
        total = total * rescale + tl.sum(weight, axis=0)
        acc = acc * rescale + tl.sum(part * weight[:, None], axis=0)
        largest = new_largest
    out = acc / tl.where(total > 0.0, total, 1.0)
    out_ptrs = out_ptr + (sequence * n_heads + tl.program_id(0)).to(tl.int64) * HEAD_DIM + d
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty))
