"""Kernels with tiles of a chosen number of registers per thread."""

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(y_ptr + cols, tl.load(x_ptr + cols))


@triton.jit
def total(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + cols, mask=cols < n, other=0.0)
    tl.store(y_ptr, tl.sum(x, axis=0))


@triton.jit
def shares(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Divide a row by its sum: the row is live during the reduction."""
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + cols, mask=cols < n, other=0.0)
    tl.store(y_ptr + cols, x / tl.sum(x, axis=0), mask=cols < n)


@triton.jit
def running(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        acc += tl.load(x_ptr + i * BLOCK + cols)
        tl.debug_barrier()
    tl.store(y_ptr + cols, acc)


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    acc = tl.zeros([M, N], tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + m[:, None] * K + (start + k)[None, :])
        b = tl.load(b_ptr + n[None, :] * K + (start + k)[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def repeated(x_ptr, y_ptr, COUNT: tl.constexpr):
    x = tl.load(x_ptr)
    for i in tl.static_range(COUNT):
        x = x * x + i
    tl.store(y_ptr, x)
