"""Rings of the CTAs of a cluster: each passes its tile on to both neighbours, and gets one from both.

And sums that all have a part of, where each gives every other one its part.

The program instance is a cluster; a kernel that names its CTAs is that of one of them.
"""

import triton
import triton.language as tl

from aotc.language import (
    cluster_rank,
    cluster_read,
    cluster_shift,
    cluster_size,
    cluster_transpose,
)


@triton.jit
def all_gather_kernel(x_ptr, out_ptr, stride, n_clusters, BLOCK: tl.constexpr):
    """Give each CTA the rows of all CTAs of its cluster: out[cluster, rank, other, :] = x[cluster, other, :]."""
    size: tl.constexpr = cluster_size()
    rank = cluster_rank()
    first = tl.program_id(0) * size
    cols = tl.arange(0, BLOCK)
    out_ptr += (first + rank).to(tl.int64) * size * stride
    mine = tl.load(x_ptr + (first + rank) * stride + cols, mask=cols < stride, other=0)
    tl.store(out_ptr + rank * stride + cols, mine, mask=cols < stride)
    right = mine
    left = mine
    for step in tl.static_range(1, size // 2 + 1):
        # What comes from the left has gone `step` CTAs to the right.
        right = cluster_shift(right, 1)
        left = cluster_shift(left, -1)
        from_left = (rank + size - step) % size
        from_right = (rank + step) % size
        tl.store(out_ptr + from_left * stride + cols, right, mask=cols < stride)
        if 2 * step < size:
            tl.store(out_ptr + from_right * stride + cols, left, mask=cols < stride)


@triton.jit
def ring_kernel(
    x_ptr, right_ptr, left_ptr, steps, n_clusters, BLOCK: tl.constexpr, PULL: tl.constexpr
):
    """Add up the rows that pass by each CTA in `steps` steps, to the right and to the left.

    They are sent to the neighbours, or with PULL each CTA reads those of its neighbours.
    """
    size: tl.constexpr = cluster_size()
    rank = cluster_rank()
    place = (tl.program_id(0) * size + rank).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    right = tl.load(x_ptr + place)
    left = right
    right_sum = tl.zeros_like(right)
    left_sum = tl.zeros_like(left)
    for _ in range(steps):
        if PULL:
            right = cluster_read(right, (rank + size - 1) % size)
            left = cluster_read(left, (rank + 1) % size)
        else:
            right = cluster_shift(right, 1)
            left = cluster_shift(left, -1)
        right_sum += right
        left_sum += left
    tl.store(right_ptr + place, right_sum)
    tl.store(left_ptr + place, left_sum)


@triton.jit
def reduce_scatter_kernel(x_ptr, out_ptr, n_rows, n_clusters, BLOCK: tl.constexpr):
    """Store the sums of n_rows rows of all CTAs of a cluster, of which each CTA adds up its share of columns.

    x is (n_clusters, n_rows, size, BLOCK), of which row i of each CTA is added; out (n_clusters, n_rows, BLOCK).
    """
    size: tl.constexpr = cluster_size()
    share: tl.constexpr = BLOCK // size
    rank = cluster_rank()
    for row in range(n_rows):
        place = tl.program_id(0).to(tl.int64) * n_rows + row
        mine = tl.load(x_ptr + (place * size + rank) * BLOCK + tl.arange(0, BLOCK))
        parts = cluster_transpose(mine.reshape(size, share))
        out_ptrs = out_ptr + place * BLOCK + rank * share + tl.arange(0, share)
        tl.store(out_ptrs, tl.sum(parts, axis=0))
