"""Kernels with assembly of their own, as real ones have it."""

import triton
import triton.language as tl


@triton.jit
def tanh_gelu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """One fp32 element at a time, by an approximate instruction."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    tanh = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out_ptr + offsets, 0.5 * x * (1.0 + tanh), mask=offsets < n)


@triton.jit
def unpack_int4(x_ptr, low_ptr, high_ptr, n, BLOCK: tl.constexpr):
    """Four bytes at a time to two results of two registers each."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    low, high = tl.inline_asm_elementwise(
        asm="""
        {
            .reg .b32 low, high;
            and.b32 low, $4, 0x0F0F0F0F;    // the low halves
            shr.u32 high, $4, 4;
            and.b32 high, high, 0x0F0F0F0F;
            prmt.b32 $0, low, 0, 0x4140;    // bytes to 16 bits
            prmt.b32 $1, low, 0, 0x4342;
            prmt.b32 $2, high, 0, 0x4140;
            prmt.b32 $3, high, 0, 0x4342;
        }
        """,
        constraints="=&r,=&r,=&r,=&r,r",
        args=[x],
        dtype=(tl.int16, tl.int16),
        is_pure=True,
        pack=4,
    )
    tl.store(low_ptr + offsets, low, mask=offsets < n)
    tl.store(high_ptr + offsets, high, mask=offsets < n)


@triton.jit
def scale_pairs(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Two bf16 elements at a time, in a loop."""
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
        y = tl.load(y_ptr + offsets, mask=offsets < n, other=0.0)
        out = tl.inline_asm_elementwise(
            "fma.rn.bf16x2 $0, $1, $2, $1;",
            "=r,r,r",
            [x, y],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
        tl.store(out_ptr + offsets, out, mask=offsets < n)


@triton.jit
def differences(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Process four bytes at a time by opaque assembly."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    y = tl.load(y_ptr + offsets, mask=offsets < n, other=0)
    xor = tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, 0, 0x3c;",
        "=r,r,r",
        [x, y],
        dtype=tl.uint8,
        is_pure=False,
        pack=4,
    )
    tl.store(out_ptr + offsets, xor, mask=offsets < n)


@triton.jit
def unpacked_product(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    """Integers up to 15 to fp16 on their way to a matrix product: the bits of 1024 + x, less 1024."""
    i = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + i[:, None] * BLOCK + i[None, :])
    b = tl.load(b_ptr + i[:, None] * BLOCK + i[None, :])
    wide = tl.inline_asm_elementwise(
        "{ .reg .b32 t, s; lop3.b32 t, $1, 0x000f000f, 0x64006400, 0xea;"
        " mov.b32 s, 0x64006400; sub.rn.f16x2 $0, t, s; }",
        "=r,r",
        [a],
        dtype=tl.float16,
        is_pure=True,
        pack=2,
    )
    product = tl.dot(wide, b)
    tl.store(out_ptr + i[:, None] * BLOCK + i[None, :], product)


@triton.jit
def needs_hopper(x_ptr, BLOCK: tl.constexpr):
    """Use an instruction new in sm_90."""
    offsets = tl.arange(0, BLOCK)
    x = tl.inline_asm_elementwise(
        "{ .reg .pred p; elect.sync _|p, $1; selp.b32 $0, 1, 0, p; }",
        "=r,r",
        [tl.load(x_ptr + offsets)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(x_ptr + offsets, x)


@triton.jit
def timed(x_ptr, out_ptr, time_ptr, n, BLOCK: tl.constexpr):
    """Read a clock before and after the work: no argument, and not to be moved."""
    start = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x * 2, mask=offsets < n)
    end = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(time_ptr + tl.program_id(0), end - start)
