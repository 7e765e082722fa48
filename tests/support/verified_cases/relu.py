"""Maxima, minima and selects."""

import triton
import triton.language as tl


@triton.jit
def relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0), mask=offsets < n)


@triton.jit
def relu_where(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, tl.where(x > 0, x, 0.0), mask=offsets < n)


@triton.jit
def clipped(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.clamp(x, -0.0, 6.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + offsets, y, mask=offsets < n)


@triton.jit
def signs(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, tl.where(offsets % 2 == 0, -x, tl.abs(x)), mask=offsets < n)


@triton.jit
def narrowed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # The largest, the least of a row and a ReLU, in fp32 and narrowed.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(tl.float32)
    y = tl.minimum(tl.maximum(x, 0.0), tl.max(x, 0)) - tl.min(x, 0)
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=offsets < n)
