"""Dropout and noise by a seed: nothing is stored to know what was drawn, it is found again."""

import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    """Store x / (1 - p) with probability 1 - p, else 0; `p` is from 0 up to but without 1."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n).to(tl.float32)
    keep = tl.rand(seed, i) >= p
    tl.store(out_ptr + i, tl.where(keep, x / (1 - p), 0.0), mask=i < n)


@triton.jit
def add_noise_kernel(x_ptr, out_ptr, n, scale, seed, BLOCK: tl.constexpr):
    """Store x plus normal noise of deviation `scale`; four numbers of a call go to four quarters.

    BLOCK elements of each quarter are a program's, and `n` is a multiple of 4.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    quarter = n // 4
    noise = tl.randn4x(seed, i)
    for part in tl.static_range(4):
        place = part * quarter + i
        x = tl.load(x_ptr + place, mask=i < quarter)
        tl.store(out_ptr + place, x + scale * noise[part], mask=i < quarter)


@triton.jit
def tanh_gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Store x * 0.5 * (1 + tanh(…)) with the hardware's tanh, which is good to 11 bits."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    tanh = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out_ptr + i, x * 0.5 * (1.0 + tanh), mask=i < n)
