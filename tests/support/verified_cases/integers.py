"""Integers beyond the precision of the result's type."""

import triton
import triton.language as tl


@triton.jit
def convert(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=at < n)
