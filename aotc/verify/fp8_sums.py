"""Sums of fp8 products as in Hopper's `wgmma`, with an accumulator of few bits.

An instruction aligns its 32 products and the accumulator to the largest exponent among them,
and truncates towards zero all bits more than 13 below the leading one. It adds the rest
exactly, and truncates the sum to as many bits. A product's exponent is the sum of its factors'
exponents, 0 for 1.5 * 1.5; a subnormal factor counts with the smallest normal exponent. So a
large accumulator costs all products their last bits, always to the same side: sums of positive
numbers come out smaller, the more so the longer they are. Sums of an H100 matched to the bit,
for random numbers in four distributions and up to 64 instructions.

Invariant: a sum whose terms all fit the bits is exact; infinities and NaN behave as in any sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aotc.verify.arrays import Array

STEP_K = 32
"""The products in one instruction."""

LEAST_EXPONENTS = {"e4m3": -6, "e5m2": -14}
"""The exponents of the smallest normal numbers."""

Kinds = tuple[str, str]
"""The formats of both operands."""

_FRACTION_BITS = 13
_NONE = -(1 << 20)  # the exponent of zero


def fp8_step(a: Array, b: Array, acc: Array, kinds: Kinds) -> Array:
    """Return `acc` + `a` @ `b`, (..., M, 32) by (..., 32, N), as one instruction adds them."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.matmul(a, b) + acc
        largest = _exponents(acc)
        for left, right in _by_k(*map(_factor_exponents, (a, b), kinds)):
            np.maximum(largest, left + right, out=largest)
        shift = np.where(largest > _NONE // 2, _FRACTION_BITS - largest, 0)
        total = np.trunc(np.ldexp(acc, shift))
        scale = np.ldexp(1.0, shift)
        for left, right in _by_k(a, b):
            total += np.trunc(left * right * scale)
        beyond = np.maximum(_exponents(total) - _FRACTION_BITS, 0)
        total = np.ldexp(np.trunc(np.ldexp(total, -beyond)), beyond)
        return np.where(np.isfinite(exact), np.ldexp(total, -shift), exact)


def fp8_sums(a: Array, b: Array, acc: Array, kinds: Kinds, interval: int = 0) -> Array:
    """Return `acc` + `a` @ `b` by such instructions in the order of K.

    With an `interval`, each partial sum covers so much of K and is added to `acc` in fp64.
    """
    depth = a.shape[-1]
    size = interval or max(1, depth)
    total = acc
    for start in range(0, depth, size):
        part = np.zeros_like(acc) if interval else acc
        end = min(start + size, depth)
        for first in range(start, end, STEP_K):
            steps = slice(first, min(first + STEP_K, end))
            part = fp8_step(a[..., :, steps], b[..., steps, :], part, kinds)
        total = total + part if interval else part
    return total


def _by_k(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Yield each column of `a` with its row of `b`, shaped to broadcast to the result."""
    for k in range(a.shape[-1]):
        yield a[..., :, k, None], b[..., k, None, :]


def _exponents(value: Array) -> Array:
    """Return the exponents of leading bits."""
    _, exponent = np.frexp(value)
    return np.where((value != 0.0) & np.isfinite(value), exponent - 1, _NONE)


def _factor_exponents(value: Array, kind: str) -> Array:
    return np.where(value != 0.0, np.maximum(_exponents(value), LEAST_EXPONENTS[kind]), _NONE)
