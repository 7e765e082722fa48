"""Attention in float64, for any mask of keys."""

from __future__ import annotations

import numpy as np

from aotc.ir.types import ScalarType
from tests.support.references import EPS, Approximate, dot
from tests.support.tensors import Array, wide


def attend(
    q: Array,
    k: Array,
    v: Array,
    seen: Array,
    scale: float,
    scalar: ScalarType,
    *,
    soft_cap: float = 0.0,
    sinks: Array | None = None,
    weight_scalar: ScalarType | None = None,
) -> Approximate:
    """Return softmax(q @ k.T * scale) @ v of (heads, n, d) tensors, of `seen` (queries, keys) alone.

    A soft cap maps scores x to c * tanh(x / c). A sink adds one score per head, with value zero.
    A query without keys gets zeros. An absolute error of a score is a relative error of its
    exponential. Rounding the weights to `scalar` or `weight_scalar` adds half an ulp.
    """
    product = dot(q, k.swapaxes(1, 2), scalar) * scale
    scores, score_error = product.value, product.error
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
        score_error = score_error + 32 * EPS * soft_cap
    scores = np.where(seen, scores, -np.inf)
    score_error = np.where(seen, score_error, 0.0)
    largest = np.max(scores, axis=2, keepdims=True, initial=-1e30)
    sink = np.zeros_like(largest)
    if sinks is not None:
        largest = np.maximum(largest, wide(sinks)[:, None, None])
        sink = np.exp(wide(sinks)[:, None, None] - largest)
    power = np.exp(scores - largest)
    total = np.sum(power, axis=2, keepdims=True) + sink
    weights = power / np.where(total > 0, total, 1.0)
    magnitude = np.where(np.isfinite(scores), np.abs(scores), 0.0) + np.abs(largest) * (total > 0)
    relative = 2 * score_error + EPS * (64 + 4 * magnitude + np.sqrt(k.shape[1]))
    # The denominator sums the weights before rounding.
    worst = np.sum(weights * relative, axis=2, keepdims=True)
    rounding = 2.0 ** -((weight_scalar or scalar).mantissa_bits + 1)
    error = (weights * (relative + worst + rounding)) @ np.abs(wide(v))
    return Approximate(weights @ wide(v), error)
