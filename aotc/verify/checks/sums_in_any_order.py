"""Magnitudes and possible overflows of sums in hardware's own order.

Invariant: infinities and NaN among the terms count as zero in a magnitude.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import Array

_LARGEST_BF16 = float.fromhex("0x1.fep127")


def finite(value: Array) -> Array:
    """Return values with infinities and NaN replaced by 0."""
    is_finite = np.isfinite(value)
    return value if is_finite.all() else np.where(is_finite, value, 0.0)


def largest_of(value: Array) -> float:
    """Return the largest finite number of an array's dtype."""
    return float(np.finfo(value.dtype).max) if value.dtype.isbuiltin == 1 else _LARGEST_BF16


def sums_of_products(
    a: Array, b: Array, acc: Array, step: float
) -> tuple[Array, Array | None, Array | None]:
    """Return the magnitude sums of a dot, where it is exact, and where it may overflow.

    The last two are None if nowhere. Infinite terms give the same sum in any order.
    """
    sizes = [finite(np.abs(value.astype(np.float64))) for value in (a, b, acc)]
    size = np.matmul(sizes[0], sizes[1]) + sizes[2]
    overflows = size > largest_of(acc)
    return size, _is_exact_dot(a, b, acc, size, step), overflows if overflows.any() else None


def _is_exact_dot(a: Array, b: Array, acc: Array, size: Array, step: float) -> Array | None:
    """Return the elements of a dot exact in any order; None if there are none.

    These are sums of whole numbers with magnitudes below the resolution of `step`.
    """
    rows, columns = (
        ((value == np.rint(value)) & np.isfinite(value)).all(axis=axis, keepdims=True)
        for value, axis in ((a.astype(np.float64), -1), (b.astype(np.float64), -2))
    )
    if not (rows.any() and columns.any()):
        return None
    whole = acc.astype(np.float64)
    return rows & columns & (whole == np.rint(whole)) & (size * step < 0.5)


def overflows_against_infinity(terms: Array, axis: int, largest: float) -> Array:
    """Return the sums with an infinity and, in some order, one of the other sign.

    A partial sum of the finite terms may overflow first. With both infinities or NaN among the
    terms, every order gives NaN.
    """
    is_known = np.asarray(np.isnan(terms).any(axis=axis))
    overflows = np.zeros_like(is_known)
    for sign in (1.0, -1.0):
        has_infinity = (terms == sign * np.inf).any(axis=axis)
        against = np.where(np.isfinite(terms) & (sign * terms < 0.0), np.abs(terms), 0.0)
        overflows |= has_infinity & (against.sum(axis=axis) > largest)
        is_known |= has_infinity & (terms == -sign * np.inf).any(axis=axis)
    return overflows & ~is_known
