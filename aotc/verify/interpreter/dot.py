"""Matrix products with the meaning of `tile.dot`.

Products of operands up to fp32 are exact in fp64, so they are summed there and rounded once to
the accumulator's type. Every order of summation approximates this result: compare with a bound
that grows with the sum of magnitudes, and to the bit only integers.

Tensor cores read tf32 operands from fp32 registers and ignore the 13 extra bits, which
truncates. Triton passes the registers unchanged, and so does aotc.

Invariant: the result does not depend on how a product is divided into instructions.
"""

from __future__ import annotations

import numpy as np

from aotc.ir.dialects.tile import InputPrecision
from aotc.ir.types import BF16, FP32, ScalarType
from aotc.verify.arrays import Array, reshape, view
from aotc.verify.interpreter.numerics import round_to

_TF32_DROPPED_BITS = 13
_BF16_PARTS = {"bf16x3": 2, "bf16x6": 3}


def dot(
    a: Array, b: Array, acc: Array, source: ScalarType, target: ScalarType, how: InputPrecision
) -> Array:
    """Return `a @ b + acc` for operands of type `source`, rounded to the type `target` of `acc`.

    Shapes: (…, M, K), (…, K, N) and (…, M, N).
    """
    wide_a, wide_b, wide_acc = (value.astype(np.float64) for value in (a, b, acc))
    if target.is_int:
        # Exact in fp64, and fast; then it wraps like the hardware's accumulators.
        return np.matmul(wide_a, wide_b).astype(np.int64).astype(acc.dtype) + acc
    if source != FP32 or how == "ieee":
        return round_to(np.matmul(wide_a, wide_b) + wide_acc, target)
    if how in _BF16_PARTS:
        total = _of_bf16_parts(a, b, _BF16_PARTS[how])
        return round_to(total + wide_acc, target)
    big_a, big_b = (truncate_to_tf32(value).astype(np.float64) for value in (a, b))
    total = np.matmul(big_a, big_b)
    if how == "tf32x3":
        small_a, small_b = (
            truncate_to_tf32((whole - big).astype(np.float32)).astype(np.float64)
            for whole, big in ((wide_a, big_a), (wide_b, big_b))
        )
        cross = np.matmul(small_a, big_b) + np.matmul(big_a, small_b)
        # The remainder of an infinity beyond tf32 is NaN; drop the term.
        total += np.where(np.isnan(cross), 0.0, cross)
    return round_to(total + wide_acc, target)


def _of_bf16_parts(a: Array, b: Array, count: int) -> Array:
    """Return `a @ b` of the `count` leading bf16 parts of both, without the smallest products."""
    left, right = _bf16_parts(a, count), _bf16_parts(b, count)
    cross = sum(np.matmul(left[i], right[k - i]) for k in range(1, count) for i in range(k + 1))
    return np.matmul(left[0], right[0]) + np.where(np.isnan(cross), 0.0, cross)


def _bf16_parts(value: Array, count: int) -> list[Array]:
    parts: list[Array] = []
    for _ in range(count):
        part = round_to(value.astype(np.float64), BF16)
        value = value - part.astype(np.float32)
        parts.append(part.astype(np.float64))
    return parts


def truncate_to_tf32(value: Array) -> Array:
    """Truncate fp32 values to the mantissa of tf32; a NaN stays one."""
    bits = view(np.atleast_1d(value), np.uint32)
    high_bits = bits >> _TF32_DROPPED_BITS << _TF32_DROPPED_BITS
    return np.where(np.isnan(value), value, reshape(view(high_bits, np.float32), value.shape))
