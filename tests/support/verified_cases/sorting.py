"""Sorting and the greatest elements: exchanges in registers, lanes and across warps."""

import triton
import triton.language as tl


@triton.jit
def sort_rows(x_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, DOWN: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + offsets, tl.sort(tl.load(x_ptr + offsets), descending=DOWN))


@triton.jit
def sort_masked(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=float("inf"))
    tl.store(out_ptr + offsets, tl.sort(x), mask=offsets < n)


@triton.jit
def greatest(x_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, K: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    outputs = tl.arange(0, ROWS)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(out_ptr + outputs, tl.topk(tl.load(x_ptr + offsets), K))
