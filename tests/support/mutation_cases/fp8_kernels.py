"""A product of fp8; by default tensor cores accumulate it with few bits."""

import triton
import triton.language as tl


@triton.jit
def multiply_fp8(
    a_ptr, b_ptr, out_ptr, K,
    BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """Store A @ B^T, promoted every IMPRECISE elements, or at 0 by the addition in the source."""
    m, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK_K):
        in_k = (k < K - start)[None, :]
        a = tl.load(a_ptr + m[:, None] * K + (start + k)[None, :], mask=in_k, other=0.0)
        b = tl.load(b_ptr + m[:, None] * K + (start + k)[None, :], mask=in_k, other=0.0)
        if IMPRECISE == 0:
            acc += tl.dot(a, b.T)
        else:
            acc = tl.dot(a, b.T, acc, max_num_imprecise_acc=IMPRECISE)
    tl.store(out_ptr + m[:, None] * BLOCK + m[None, :], acc)
