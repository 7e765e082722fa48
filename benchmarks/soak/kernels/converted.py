"""A product with its left operand converted by threads between memory and the dot."""

import triton
import triton.language as tl


@triton.jit
def converted_dot_kernel(
    a_ptr, b_ptr, s_ptr, c_ptr, M, K, limit, stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    MASKED: tl.constexpr, SCALED: tl.constexpr, TURNED: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Store A @ B of one block of rows: A in the type of B.

    With MASKED, elements from `limit` on are zero. With SCALED, rows have factors. With TURNED,
    A lies transposed. With SHARED, two dots use the converted operand.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    integers: tl.constexpr = b_ptr.dtype.element_ty == tl.int8
    total: tl.constexpr = tl.int32 if integers else tl.float32
    # Between types of 8 bits there is no other way.
    narrow: tl.constexpr = a_ptr.dtype.element_ty != b_ptr.dtype.element_ty and (
        a_ptr.dtype.element_ty.primitive_bitwidth == b_ptr.dtype.element_ty.primitive_bitwidth == 8
    )
    acc = tl.zeros((BLOCK_M, BLOCK_N), total)
    other = tl.zeros((BLOCK_M, BLOCK_N), total)
    scale = tl.load(s_ptr + m)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if TURNED:
            a = tl.load(a_ptr + k[:, None] * stride_a + m[None, :]).T
        else:
            a = tl.load(a_ptr + m[:, None] * stride_a + k[None, :])
        if MASKED:
            a = tl.where(k[None, :] < limit, a, tl.zeros_like(a))
        if SCALED or narrow:
            a = a.to(tl.float32)
        if SCALED:
            a *= scale[:, None]
        b = tl.load(b_ptr + k[:, None] * stride_b + n[None, :])
        a = a.to(b.dtype)
        acc = tl.dot(a, b, acc, out_dtype=total)
        if SHARED:
            other = tl.dot(a, b, other, out_dtype=total)
    tl.store(c_ptr + m[:, None] * BLOCK_N + n[None, :], (acc + other).to(tl.float32))
