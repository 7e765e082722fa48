"""The softmax of one very long row by all multiprocessors at once: each holds a piece in registers meanwhile."""

import triton
import triton.language as tl

from aotc.language import grid_barrier


@triton.jit
def long_softmax_kernel(
    x_ptr, out_ptr, parts_ptr, counter_ptr, n_cols, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """Store softmax(x); programs tell each other their maxima and sums in `parts_ptr`, a pair for each.

    There are at most PARTS programs. `counter_ptr` is at an int32 that is 0 before the first launch.
    """
    pid = tl.program_id(0)
    cols = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    power = tl.exp(x - top)
    tl.store(parts_ptr + 2 * pid, top)
    tl.store(parts_ptr + 2 * pid + 1, tl.sum(power, axis=0))
    grid_barrier(counter_ptr)
    part = tl.arange(0, PARTS)
    there = part < tl.num_programs(0)
    tops = tl.load(parts_ptr + 2 * part, mask=there, other=-float("inf"))
    sums = tl.load(parts_ptr + 2 * part + 1, mask=there, other=0.0)
    largest = tl.max(tops, axis=0)
    total = tl.sum(sums * tl.exp(tops - largest), axis=0)
    scaled = power * (tl.exp(top - largest) / total)
    tl.store(out_ptr + cols, scaled.to(out_ptr.dtype.element_ty), mask=cols < n_cols)
