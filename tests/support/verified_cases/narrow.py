"""Partial results of fewer than 32 bits."""

import triton
import triton.language as tl


@triton.jit
def narrow(x_ptr, y_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = i < n_cols
    at = tl.program_id(0) * n_cols + i
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    y = tl.load(y_ptr + at, mask=mask, other=0)
    parity = tl.xor_sum(y, axis=0)
    tl.store(out_ptr + at, x - tl.max(x, axis=0) + parity.to(tl.float16), mask=mask)
