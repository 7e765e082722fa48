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

from aotc.verify.arrays import Array, view

STEP_K = 32
"""The products in one instruction."""

LEAST_EXPONENTS = {"e4m3": -6, "e5m2": -14}
"""The exponents of the smallest normal numbers."""

Kinds = tuple[str, str]
"""The formats of both operands."""

_FRACTION_BITS = 13
_NONE = -(1 << 20)  # the exponent of zero
_NO_FACTOR = -64  # of a factor that is zero: with any other it is below all products' in 8 bits


def fp8_step(a: Array, b: Array, acc: Array, kinds: Kinds) -> Array:
    """Return `acc` + `a` @ `b`, (..., M, 32) by (..., 32, N), as one instruction adds them in fp32.

    In units of the last bit kept, all terms and sums are whole numbers below 2^20: exact in fp32.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        exact = np.matmul(a, b) + acc
        a, b = _without_zeros(a, b)
        largest = np.maximum(_largest_product(a, b, kinds), _exponents(acc))
        shift = np.where(largest > _NONE, _FRACTION_BITS - largest, 0)
        total = np.trunc(acc * _power(shift)).astype(np.float32)
        # Products are from 2^-32 to 2^32: beyond these limits all of them, or none, are below 1.
        scale = _power(np.minimum(np.maximum(shift, -100), 100)).astype(np.float32)
        term = np.empty_like(total)
        for left, right in _by_k(a.astype(np.float32), b.astype(np.float32)):
            np.multiply(left, right, out=term)
            np.multiply(term, scale, out=term)
            np.trunc(term, out=term)
            np.add(total, term, out=total)
        wide = total.astype(np.float64)
        beyond = np.maximum(_exponents(wide) - _FRACTION_BITS, 0)
        wide = np.trunc(wide * _power(-beyond)) * _power(beyond - shift)
        return np.where(np.isfinite(exact), wide, exact)


def _power(exponents: Array) -> Array:
    """Return powers of two: `np.ldexp` takes far longer, an element at a time."""
    return view((exponents.astype(np.int64) + 1023) << 52, np.float64)


def _largest_product(a: Array, b: Array, kinds: Kinds) -> Array:
    """Return the largest exponent of the products for each sum, `_NONE` if all are zero."""
    shape = np.broadcast_shapes((*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1]))
    largest = np.full(shape, 2 * _NO_FACTOR, np.int8)
    term = np.empty_like(largest)
    for left, right in _by_k(*map(_factor_exponents, (a, b), kinds)):
        np.add(left, right, out=term)
        np.maximum(largest, term, out=largest)
    return np.where(largest >= 2 * min(LEAST_EXPONENTS.values()), largest.astype(np.int32), _NONE)


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


def _without_zeros(a: Array, b: Array) -> tuple[Array, Array]:
    """Return factors without those that only zeros meet, which count for nothing: masked parts of K."""
    last = range(a.ndim - 2)
    used = (a != 0.0).any(axis=(*last, -2)) & (b != 0.0).any(axis=(*last, -1))
    return (a, b) if used.all() else (a[..., used], b[..., used, :])


def _by_k(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Yield each column of `a` with its row of `b`, shaped to broadcast to the result."""
    for k in range(a.shape[-1]):
        yield a[..., :, k, None], b[..., k, None, :]


def _exponents(value: Array) -> Array:
    """Return the exponents of leading bits."""
    _, exponent = np.frexp(value)
    return np.where((value != 0.0) & np.isfinite(value), exponent - 1, _NONE)


def _factor_exponents(value: Array, kind: str) -> Array:
    """Return the exponents of factors, of 8 bits."""
    exponents = np.maximum(_exponents(value), LEAST_EXPONENTS[kind])
    is_number = (value != 0.0) & np.isfinite(value)
    return np.where(is_number, exponents, _NO_FACTOR).astype(np.int8)
