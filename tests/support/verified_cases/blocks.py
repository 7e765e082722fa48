"""A matrix product through block pointers."""

import triton
import triton.language as tl


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, UPWARD: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    last = 0 if UPWARD else (tl.cdiv(K, BLOCK) - 1) * BLOCK
    a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (row, last), (BLOCK, BLOCK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (N, 1), (last, column), (BLOCK, BLOCK), (1, 0))
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    step = BLOCK if UPWARD else -BLOCK
    for _ in range(0, K, BLOCK):
        acc = tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)), acc)
        a = tl.advance(a, (0, step))
        b = tl.advance(b, (step, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (row, column), (BLOCK, BLOCK), (1, 0))
    tl.store(c, acc.to(c.dtype.element_ty), boundary_check=(0, 1))
