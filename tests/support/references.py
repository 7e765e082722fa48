"""References in float64, with error bounds, for every kernel of `kernels/`.

A reference takes the inputs as stored in memory. For every output it returns the exact result in
fp64 and a bound on the error of each element. A bound is the sum of

- the rounding of the result to the output's type (`rounding_error`), and
- the error of fp32 arithmetic: a small multiple of EPS, the fp32 unit roundoff, times the magnitude
  of the terms. The multiples allow for `ex2.approx`, `rsqrt.approx` and `div.full` (2 ulp each) and
  for any order of summation.

They are a few times the observed errors, and far below the errors of a wrong kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from aotc.ir.dialects.tile import InputPrecision
from aotc.ir.types import FP8E4NV, FP8E5, FP16, FP32, FP64, I32, ScalarType
from aotc.verify.interpreter.numerics import erf
from tests.support.tensors import Array, rounding_error, wide

EPS = 2.0**-24


@dataclass(frozen=True)
class Expected:
    """The right result of one output, and how far from it each element may be."""

    value: Array
    bound: Array

    def check(self, name: str, actual: Array) -> None:
        """Assert `actual` within the bound everywhere; NaN only where expected."""
        assert actual.shape == self.value.shape, f"{name}: {actual.shape} != {self.value.shape}"
        numbers = wide(actual)
        with np.errstate(invalid="ignore"):
            close = np.abs(numbers - self.value) <= self.bound
        right = close | (numbers == self.value) | (np.isnan(numbers) & np.isnan(self.value))
        if right.all():
            return
        index = tuple(int(i) for i in np.argwhere(~right)[0])
        raise AssertionError(
            f"{name}{list(index)} = {numbers[index]!r}, expected {self.value[index]!r} within "
            f"{np.broadcast_to(self.bound, numbers.shape)[index]:.3g}; {np.count_nonzero(~right)} of "
            f"{numbers.size} elements are wrong"
        )


def exact(value: Array) -> Expected:
    """Expect a result exact to the bit."""
    return Expected(wide(value), np.zeros(()))


def within(value: Array, error: Array | float, scalar: ScalarType) -> Expected:
    """Expect a result computed within `error` and then rounded."""
    return Expected(value, rounding_error(np.abs(value) + error, scalar) + error)


def vector_add(x: Array, y: Array, out: ScalarType) -> Expected:
    """One addition in the type of the operands: only the rounding."""
    return within(wide(x) + wide(y), 0.0, out)


def silu_mul(x: Array, out: ScalarType) -> Expected:
    """`x` is (n_rows, 2 * n_cols). The exponent's error grows with its argument."""
    gate, up = np.split(wide(x), 2, axis=1)
    value = _silu(gate) * up
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
    """Rounding `x * log2(e)` costs EPS * |x| in the exponent: a relative error of the result."""
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
    # The error of the mean enters the variance squared, beside the sums' relative error.
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
    """The error of a sum grows with its terms; blocks are summed as trees, then in sequence."""
    values = wide(x)
    return within(np.cumsum(values, axis=1), 32 * EPS * np.cumsum(np.abs(values), axis=1), out)


def quantize_int8_rows(x: Array) -> tuple[Expected, Expected]:
    """Return the integers and the scales.

    An integer is right within half a step of x / scale, plus the fp32 error of a number up to 127.
    Near a tie both neighbours are right.
    """
    values = wide(x)
    largest = np.maximum(np.max(np.abs(values), axis=1, initial=0.0), 1e-10)
    scale = largest / 127.0
    steps = values / scale[:, None]
    return (
        Expected(steps, np.full(steps.shape, 0.5 + 127 * 8 * EPS)),
        Expected(scale, 4 * EPS * scale),
    )


# ---- matrix products --------------------------------------------------------------------------

# The error of one addition to an accumulator: tensor cores truncate, so twice a rounding.
_ACCUMULATOR_EPS = {FP16: 2.0**-10, FP32: 2.0**-23, FP64: 2.0**-53, I32: 0.0}
# The relative error of one fp32 operand.
_OPERAND_EPS: dict[InputPrecision, float] = {
    "tf32": 2.0**-10,
    "tf32x3": 2.0**-20,
    "bf16x3": 2.0**-15,
    "bf16x6": 2.0**-22,
    "ieee": 0.0,
}


@dataclass(frozen=True)
class Approximate:
    """A result before it is rounded to its type: the exact value, and the error it may have."""

    value: Array
    error: Array

    def __add__(self, other: Array | float) -> Approximate:
        """Add an exact operand in fp32: one more rounding."""
        value = self.value + other
        return Approximate(value, self.error + EPS * np.abs(value))

    def __mul__(self, factor: Array | float) -> Approximate:
        """Multiply by an exact operand in fp32."""
        value, size = self.value * factor, np.abs(factor)
        return Approximate(value, self.error * size + EPS * np.abs(value))

    def rounded(self, scalar: ScalarType) -> Expected:
        """Return the expectation of the result rounded to `scalar`."""
        return within(self.value, self.error, scalar)


_FP8_SUM_EPS = 2**-9.8


def dot(
    a: Array,
    b: Array,
    scalar: ScalarType,
    precision: InputPrecision = "tf32",
    accumulator: ScalarType = FP32,
) -> Approximate:
    """`a @ b`, (…, M, K) and (…, K, N), of operands of type `scalar`.

    Products are exact except for the `precision` of fp32 operands. A sum of K terms loses some roundings
    of its partial sums. Their number grows with sqrt(K), since errors have either sign. It grows with K
    where tensor cores truncate, 16 terms at a time. Of fp8 products they keep some 13 bits below the
    largest term; see docs/internals/calibration.md.
    """
    x, y = wide(a), wide(b)
    size = np.abs(x) @ np.abs(y)
    num_terms = a.shape[-1]
    error = _ACCUMULATOR_EPS[accumulator] * (4 + np.sqrt(num_terms) + num_terms / 16) * size
    if scalar == FP32:
        error += 2.5 * _OPERAND_EPS[precision] * size
    if scalar in (FP8E4NV, FP8E5):
        error += _FP8_SUM_EPS * size
    return Approximate(x @ y, error)


def _silu(x: Array) -> Array:
    return x / (1.0 + np.exp(np.minimum(-x, 700.0)))  # above it exp overflows


def activate(x: Approximate, name: str) -> Approximate:
    """Return "none", "relu", "silu" or "gelu" of a result; no slope of these exceeds 1.13."""
    value = x.value
    functions = {
        "none": value,
        "relu": np.maximum(value, 0.0),
        "silu": _silu(value),
        "gelu": 0.5 * value * (1.0 + erf(value / np.sqrt(2.0))),
    }
    rounding = 0.0 if name in ("none", "relu") else EPS * (16 + 2 * np.abs(value)) * np.abs(value)
    return Approximate(functions[name], 1.13 * x.error + rounding)


def attention(
    q: Array, k: Array, v: Array, scale: float, scalar: ScalarType, *, causal: bool
) -> tuple[Expected, Expected]:
    """Return the output and the log-sum-exp of (batch, heads, n, d) tensors; fewer kv heads.

    An absolute error of a score is a relative error of its exponential. Rounding the weights to the
    type of `v` adds half an ulp.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(wide(tensor), group, axis=1) for tensor in (k, v))
    product = dot(q, keys.swapaxes(2, 3), scalar) * scale
    scores, score_error = product.value, product.error
    n_queries, n_keys = scores.shape[2:]
    if causal:
        seen = np.arange(n_keys) <= np.arange(n_queries)[:, None] + n_keys - n_queries
        scores = np.where(seen, scores, -np.inf)
        score_error = np.where(seen, score_error, 0.0)
    largest = np.max(scores, axis=3, keepdims=True, initial=-1e30)
    power = np.exp(scores - largest)
    total = np.sum(power, axis=3, keepdims=True)
    weights = power / np.where(total > 0, total, 1.0)
    value = weights @ values
    magnitude = np.where(np.isfinite(scores), np.abs(scores), 0.0) + np.abs(largest) * (total > 0)
    relative = 2 * score_error + EPS * (64 + 4 * magnitude + np.sqrt(n_keys))
    # The denominator sums the weights before rounding to the type of `v`.
    worst = np.sum(weights * relative, axis=3, keepdims=True)
    rounding = 2.0 ** -(scalar.mantissa_bits + 1) if scalar != FP32 else 2.5 * 2.0**-10
    error = (weights * (relative + worst + rounding)) @ np.abs(values)
    lse = np.where(total > 0, largest + np.log(np.where(total > 0, total, 1.0)), -np.inf)[..., 0]
    lse_error = 2 * worst[..., 0] + 8 * EPS * np.abs(np.where(np.isfinite(lse), lse, 0.0))
    return within(value, error, scalar), Expected(lse, lse_error)


def histogram(x: Array, before: Array) -> Expected:
    """Counts are exact; values without a bin count nowhere."""
    inside = x[(x >= 0) & (x < len(before))]
    return exact(before + np.bincount(inside, minlength=len(before)))


def atomic_row_sums(x: Array, before: Array) -> Expected:
    """Sums of a row in any order, in fp32."""
    values = wide(x)
    size = np.sum(np.abs(values), axis=1) + np.abs(wide(before))
    return Expected(np.sum(values, axis=1) + wide(before), 32 * EPS * size)


def embedding_bag(table: Array, index: Array, weight: Array, offset: Array) -> Expected:
    """Weighted sums of rows in order, in fp32; a negative index is none."""
    rows = wide(table)[index] * np.where(index < 0, 0, wide(weight))[:, None]
    bags = [rows[first:last] for first, last in pairwise(offset)]
    sums, sizes = ([terms.sum(axis=0) for terms in of] for of in (bags, [abs(b) for b in bags]))
    return Expected(np.stack(sums), 32 * EPS * np.stack(sizes))


def conv2d(
    x: Array,
    w: Array,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    scalar: ScalarType,
) -> Approximate:
    """`x` is (images, height, width, channels), `w` (kernel height, width, channels, filters)."""
    windows = im2col(x, w.shape[:2], stride, padding, dilation)
    flat = dot(windows.reshape(-1, w[..., 0].size), w.reshape(-1, w.shape[3]), scalar)
    shape = (*windows.shape[:3], w.shape[3])
    return Approximate(flat.value.reshape(shape), flat.error.reshape(shape))


def im2col(
    x: Array,
    window: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Array:
    """Return (images, out height, out width, window height, window width, channels) of `x`."""
    padded = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    extents = [
        (padded.shape[1 + axis] - dilation[axis] * (window[axis] - 1) - 1) // stride[axis] + 1
        for axis in range(2)
    ]
    y, x_at = (
        np.arange(extents[axis])[:, None] * stride[axis] + np.arange(window[axis]) * dilation[axis]
        for axis in range(2)
    )
    return padded[:, y[:, None, :, None], x_at[None, :, None, :], :]


def stencil(x: Array, weights: tuple[float, float, float], scalar: ScalarType) -> Expected:
    """`x` is (rows, 1 + columns + 1), its halo included: three products and their sum."""
    values = [wide(x)[:, shift : x.shape[1] - 2 + shift] for shift in range(3)]
    terms = [weight * value for weight, value in zip(weights, values, strict=True)]
    size = sum((np.abs(term) for term in terms), start=np.zeros(values[0].shape))
    return within(sum(terms, start=np.zeros(values[0].shape)), 4 * EPS * size, scalar)
