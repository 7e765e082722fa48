"""Kernels only reading a cache's pages: the bandwidth of launches of a few microseconds."""

import triton
import triton.language as tl


@triton.jit
def read_pages_kernel(
    k, v, table_ptr, out_ptr,
    n_kv_heads, n_pages, pages_per_split,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr = True,  # noqa: FBT002 - a constant
):  # fmt: skip
    """Store a sum of each split's keys and values, copied page by page as decode does."""
    kv_head, first = tl.program_id(0), tl.program_id(1) * pages_per_split
    last = min(first + pages_per_split, n_pages)
    page = tl.load(table_ptr + first)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((PAGE, HEAD_DIM), tl.float32)
    for i in range(first, last):
        following = tl.load(table_ptr + i + 1, mask=i + 1 < n_pages, other=0)
        keys = k.load([page, kv_head, 0, 0]).reshape(PAGE, HEAD_DIM)
        values = v.load([page, kv_head, 0, 0]).reshape(PAGE, HEAD_DIM)
        total += keys.to(tl.float32) + values.to(tl.float32)
        page = following
    tl.store(out_ptr + kv_head * tl.num_programs(1) + tl.program_id(1), tl.sum(tl.sum(total, 1), 0))


@triton.jit
def read_rows_kernel(
    x_ptr, out_ptr, n_blocks, n_programs,
    BLOCK: tl.constexpr, PDL: tl.constexpr = True,  # noqa: FBT002 - a constant
):  # fmt: skip
    """Store a sum of each program's part of a tensor, of neighbouring words, loaded by threads."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(tl.program_id(0), n_blocks, tl.num_programs(0)):
        total += tl.load(x_ptr + i.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, 0))
