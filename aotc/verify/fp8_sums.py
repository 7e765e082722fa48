"""Sums of fp8 products as Hopper's `wgmma` makes them, with an accumulator of few bits.

An instruction aligns its 32 products and the accumulator to the largest of them, cuts what lies more
than 13 bits below that one's first bit, towards zero, and adds what is left exactly. So an accumulator
that is large costs all products their last bits, always to the same side: sums of positive numbers come
out smaller, the more so the longer they are.

Invariant: a sum whose terms all fit the bits is exact; what is no finite number is as in any sum.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import Array

STEP_K = 32
"""The products that one instruction adds up."""

_FRACTION_BITS = 13


def fp8_step(a: Array, b: Array, acc: Array) -> Array:
    """Return `acc` + `a` @ `b`, (..., M, 32) by (..., 32, N), as one instruction adds them in fp32."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.matmul(a, b) + acc
        columns = [(a[..., :, k, None], b[..., k, None, :]) for k in range(a.shape[-1])]
        largest = np.abs(acc)
        for left, right in columns:
            np.maximum(largest, np.abs(left * right), out=largest)
        _, exponent = np.frexp(largest)  # the first bit of x is that of 2^(exponent - 1)
        shift = np.where(np.isfinite(largest) & (largest > 0.0), _FRACTION_BITS + 1 - exponent, 0)
        total = np.trunc(np.ldexp(acc, shift))
        scale = np.ldexp(1.0, shift)
        for left, right in columns:
            total += np.trunc(left * right * scale)
        return np.where(np.isfinite(exact), np.ldexp(total, -shift), exact)


def fp8_sums(a: Array, b: Array, acc: Array, interval: int = 0) -> Array:
    """Return `acc` + `a` @ `b` by such instructions in the order of K.

    With an `interval` they add up so much of K at a time, which is added to `acc` in fp64.
    """
    depth = a.shape[-1]
    size = interval or max(1, depth)
    total = acc
    for start in range(0, depth, size):
        part = np.zeros_like(acc) if interval else acc
        end = min(start + size, depth)
        for first in range(start, end, STEP_K):
            steps = slice(first, min(first + STEP_K, end))
            part = fp8_step(a[..., :, steps], b[..., steps, :], part)
        total = total + part if interval else part
    return total
