"""What every kernel of `kernels/` must compute: float64 references and error bounds.

A reference takes the inputs as they are in memory and returns, for every output, the exact result
in fp64 and a bound on the error of each element. A bound is the sum of

- the rounding of the result to the output's type (`rounding_error`), and
- what fp32 arithmetic may lose on the way: a small multiple of EPS, the fp32 unit roundoff, times
  the magnitude of what was added up. The multiples allow for `ex2.approx`, `rsqrt.approx` and
  `div.full` (2 ulp each) and for any order of summation.

They are a few times what is observed, and far below what a wrong kernel does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotc.ir.types import ScalarType
from tests.support.tensors import Array, rounding_error, wide

EPS = 2.0**-24


@dataclass(frozen=True)
class Expected:
    """The right result of one output, and how far from it each element may be."""

    value: Array
    bound: Array

    def check(self, name: str, actual: Array) -> None:
        """Assert that `actual` is within the bound everywhere; NaN only where NaN is right."""
        assert actual.shape == self.value.shape, f"{name}: {actual.shape} != {self.value.shape}"
        got = wide(actual)
        with np.errstate(invalid="ignore"):
            close = np.abs(got - self.value) <= self.bound
        right = close | (got == self.value) | (np.isnan(got) & np.isnan(self.value))
        if right.all():
            return
        at = tuple(int(i) for i in np.argwhere(~right)[0])
        raise AssertionError(
            f"{name}{list(at)} = {got[at]!r}, expected {self.value[at]!r} within "
            f"{np.broadcast_to(self.bound, got.shape)[at]:.3g}; {np.count_nonzero(~right)} of "
            f"{got.size} elements are wrong"
        )


def exact(value: Array) -> Expected:
    """Return the expectation that a result is right to the bit."""
    return Expected(wide(value), np.zeros(()))


def within(value: Array, error: Array | float, scalar: ScalarType) -> Expected:
    """Return the expectation of a result that is computed within `error` and then rounded."""
    return Expected(value, rounding_error(np.abs(value) + error, scalar) + error)


def vector_add(x: Array, y: Array, out: ScalarType) -> Expected:
    """One addition in the type of the operands: only the rounding."""
    return within(wide(x) + wide(y), 0.0, out)


def silu_mul(x: Array, out: ScalarType) -> Expected:
    """`x` is (n_rows, 2 * n_cols). The exponent's error grows with its argument."""
    gate, up = np.split(wide(x), 2, axis=1)
    value = gate / (1.0 + np.exp(-gate)) * up
    return within(value, EPS * (16 + 2 * np.abs(gate)) * np.abs(value), out)


def rotary(x: Array, cos: Array, sin: Array, positions: Array, out: ScalarType) -> Expected:
    """`x` is (n_tokens, n_heads, head_dim); features beyond 2 * half_dim stay."""
    half = cos.shape[1]
    value, error = wide(x), np.zeros(x.shape)
    c, s = wide(cos)[positions][:, None, :], wide(sin)[positions][:, None, :]
    first, second = value[..., :half].copy(), value[..., half : 2 * half].copy()
    value[..., :half] = first * c - second * s
    value[..., half : 2 * half] = second * c + first * s
    error[..., :half] = np.abs(first * c) + np.abs(second * s)
    error[..., half : 2 * half] = np.abs(second * c) + np.abs(first * s)
    return within(value, 4 * EPS * error, out)


def softmax(x: Array, out: ScalarType) -> Expected:
    """Rounding `x * log2(e)` costs EPS * |x| in the exponent, so that much relative error."""
    values = wide(x)
    largest = np.max(values, axis=1, keepdims=True, initial=-np.inf)
    power = np.exp(values - largest)
    value = power / np.sum(power, axis=1, keepdims=True)
    size = np.abs(np.where(np.isfinite(values), values, 0.0)) + np.abs(largest)
    return within(value, EPS * (32 + 4 * size) * value, out)


def cross_entropy(logits: Array, target: Array, ignore_index: int) -> tuple[Expected, Expected]:
    """Return loss and log-sum-exp, both fp32."""
    values = wide(logits)
    largest = np.max(values, axis=1, initial=-np.inf)
    lse = largest + np.log(np.sum(np.exp(values - largest[:, None]), axis=1))
    error = EPS * (32 + 8 * np.abs(largest) + 2 * np.abs(lse))
    inside = (target >= 0) & (target < logits.shape[1])
    rows = np.arange(len(target))
    at_target = np.where(inside, values[rows, np.where(inside, target, 0)], np.nan)
    loss = np.where(target == ignore_index, 0.0, lse - at_target)
    return Expected(loss, error + EPS * np.abs(at_target)), Expected(lse, error)


def rmsnorm(x: Array, w: Array, eps: float, out: ScalarType) -> Expected:
    """Every step is a product or a sum of squares: relative errors only."""
    values = wide(x)
    rstd = 1.0 / np.sqrt(np.mean(values * values, axis=1, keepdims=True) + eps)
    value = values * rstd * wide(w)
    return within(value, 32 * EPS * np.abs(value), out)


def layernorm(
    x: Array, w: Array, b: Array, eps: float, out: ScalarType
) -> tuple[Expected, Expected, Expected]:
    """Return the output, the mean and the reciprocal deviation; the latter two in fp32."""
    values = wide(x)
    mean = np.mean(values, axis=1)
    centred = values - mean[:, None]
    variance = np.mean(centred * centred, axis=1)
    rstd = 1.0 / np.sqrt(variance + eps)
    scaled = centred * rstd[:, None] * wide(w)
    size = np.mean(np.abs(values), axis=1)
    # An error of the mean moves every element of its row.
    error = (np.abs(values) + size[:, None]) * rstd[:, None] * np.abs(wide(w)) + np.abs(wide(b))
    # What the mean is off by enters the variance squared, beside the sums' relative error.
    spread = 1 + size * size / (variance + eps) * EPS
    return (
        within(scaled + wide(b), 32 * EPS * error, out),
        Expected(mean, 16 * EPS * size + EPS * np.abs(mean)),
        Expected(rstd, 32 * EPS * rstd * spread),
    )


def transpose2d(x: Array) -> Expected:
    """Nothing is computed."""
    return exact(x.T)


def argmax_rows(x: Array) -> Expected:
    """The first of equal elements; NaN counts as +inf."""
    values = wide(x)
    return exact(np.argmax(np.where(np.isnan(values), np.inf, values), axis=1))


def cumsum_rows(x: Array, out: ScalarType) -> Expected:
    """The error of a sum grows with what was added; blocks are summed as trees, then in turn."""
    values = wide(x)
    return within(np.cumsum(values, axis=1), 32 * EPS * np.cumsum(np.abs(values), axis=1), out)


def quantize_int8_rows(x: Array) -> tuple[Expected, Expected]:
    """Return the integers and the scales.

    An integer is right if it is within half a step of x / scale, give or take what fp32 loses of
    a number up to 127: where that decides a tie, both neighbours are right.
    """
    values = wide(x)
    largest = np.maximum(np.max(np.abs(values), axis=1, initial=0.0), 1e-10)
    scale = largest / 127.0
    steps = values / scale[:, None]
    return (
        Expected(steps, np.full(steps.shape, 0.5 + 127 * 8 * EPS)),
        Expected(scale, 4 * EPS * scale),
    )
