"""Kernels with layout conversions of every kind, for the GPU tests."""

import triton
import triton.language as tl


@triton.jit
def reduce_reshape_broadcast(x, y, ROWS: tl.constexpr, COLS: tl.constexpr, GROUPS: tl.constexpr):
    """Subtract from each element the maximum of its row, by way of two reshapes."""
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    v = tl.load(x + offsets)
    top = tl.reshape(tl.max(v, axis=1), (ROWS // GROUPS, GROUPS))
    top = tl.reshape(top, (ROWS // GROUPS, GROUPS, 1))
    below = tl.reshape(v, (ROWS // GROUPS, GROUPS, COLS)) - top
    tl.store(y + offsets, tl.reshape(below, (ROWS, COLS)))


@triton.jit
def turn_and_zip(x, y, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Interleave a tile with its transpose, and combine even with odd columns."""
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    v = tl.load(x + offsets)
    turned = tl.reshape(tl.trans(v), (ROWS, COLS))
    pairs = tl.reshape(tl.join(v, turned), (ROWS, COLS // 2, 2, 2))
    even, odd = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    tl.store(y + offsets, tl.reshape(even, (ROWS, COLS)) - 2 * tl.reshape(odd, (ROWS, COLS)))


@triton.jit
def affine(a_slope, a_offset, b_slope, b_offset):
    """Compose two affine maps: associative, not commutative."""
    return a_slope * b_slope, b_slope * a_offset + b_offset


@triton.jit
def scan_both_ways(x, y, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Compose affine maps down the columns, then from the end of each row."""
    offsets = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    v = tl.load(x + offsets)
    _, down = tl.associative_scan((v % 3, v), 0, affine)
    _, back = tl.associative_scan((down % 3, down), 1, affine, reverse=True)
    tl.store(y + offsets, back)
