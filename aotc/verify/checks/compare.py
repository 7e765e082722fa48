"""Compare what a compiled kernel left in a buffer with what it must be.

Where a result is exact it must be the same to the bit (of NaNs, any will do). Elsewhere an element
may be off by

    tight   4 x what the noisy interpretations moved it, those of single ops added up
            + 4 x the median relative move of the buffer's elements x its magnitude
    loose   one step of the buffer's type beyond that: what is off by less than a step before it is
            rounded to the type may be one step off after it

and only so many elements may need the loose bound: 2 in 100, or four times the share that rounding
also changed under noise. A mask that is off by one moves an element by its own size; a wrong
rounding mode moves half of them by one step: the first breaks the bound, the second the share.

Invariant: comparing a result with itself finds nothing, and a mismatch names the first element
that is out of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.ir.types import FP32, ScalarType
from aotc.verify.arrays import Array, reshape, view
from aotc.verify.checks.reference import Buffer, Bytes

NOISE_FACTOR = 4.0
MEDIAN_FACTOR = 4.0
LOOSE_SHARE = 0.02
_LOOSE_FACTOR = 4.0
_LOOSE_COUNT = 2
_FLUSHED = 2.0**-126


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Say where a buffer is wrong: `index` is the first such element, counted from the pointer.

    `bound` is how far `actual` may be from `expected`, 0.0 for to the bit; `num_wrong` elements
    of the `num_written` are out of bounds. `reason` says more where values alone do not.
    """

    buffer: str
    index: int
    expected: str
    actual: str
    bound: float
    num_wrong: int
    num_written: int
    reason: str = ""


def compare(buffer: Buffer, actual: Bytes, tolerance: float = 0.0) -> Mismatch | None:
    """Return how `actual`, the bytes of `buffer` after a launch, differs; None if it is right.

    `tolerance` is an absolute and relative error that is allowed besides.
    """
    expected, got = buffer.elements(buffer.expected), buffer.elements(actual)
    cells = reshape(buffer.writable, -1, buffer.pointee.size_bytes)
    written: Array = np.asarray(cells.any(axis=1))
    differs = _bits(expected) != _bits(got)
    if not differs.any():
        return None
    stray = differs & ~written
    if stray.any():
        return _mismatch(buffer, stray, got, 0.0, "are written, which the kernel does not do")
    wide, wide_got = _wide(expected), _wide(got)
    with np.errstate(all="ignore"):
        equal = (wide == wide_got) | (np.isnan(wide) & np.isnan(wide_got))
        if buffer.is_exact and not tolerance:
            same = ~differs | (np.isnan(wide) & np.isnan(wide_got))
            return None if same.all() else _mismatch(buffer, ~same, got, 0.0)
        runs = [_wide(buffer.elements(run)) for run in (*buffer.upward, *buffer.random)]
        moves = [_moved(wide, run) for run in runs]
        num_upward = len(buffer.upward)
        spread = sum(moves[:num_upward], np.zeros(wide.shape))
        spread += np.max([np.zeros(wide.shape), *moves[num_upward:]], axis=0)
        finite = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        tight = _tight_bound(wide, spread, written) + tolerance * (1.0 + finite)
        loose = tight + _step(wide, buffer.pointee)
        distance = np.abs(wide - wide_got)
        wrong = ~equal & ~_is_within(distance, loose)
        if wrong.any():
            return _mismatch(buffer, wrong, got, loose)
        beyond = ~equal & ~_is_within(distance, tight)
        allowed = _loose_share(spread[written] > 0) * np.count_nonzero(written)
        if np.count_nonzero(beyond) > max(_LOOSE_COUNT, allowed):
            return _mismatch(
                buffer, beyond, got, tight, "are off by one step, more than rounding explains"
            )
    return None


def _moved(wide: Array, run: Array) -> Array:
    """Return how far noise moved each element; infinite where only one of the two is a number."""
    moved = np.abs(run - wide)
    same = (run == wide) | (np.isnan(run) & np.isnan(wide))
    return np.where(same, 0.0, np.where(np.isnan(moved), np.inf, moved))


def _is_within(distance: Array, bound: Array) -> Array:
    """Return what is in bounds; without a bound anything is, the distance to a NaN too."""
    return (distance <= bound) | np.isposinf(bound)


def _tight_bound(wide: Array, spread: Array, written: Array) -> Array:
    """Return what the noise allows."""
    known = written & np.isfinite(wide) & (wide != 0) & np.isfinite(spread)
    relative = float(np.median(spread[known] / np.abs(wide[known]))) if known.any() else 0.0
    pooled = np.where(np.isfinite(wide), MEDIAN_FACTOR * relative * np.abs(wide), 0.0)
    return NOISE_FACTOR * spread + pooled


def _loose_share(moved: Array) -> float:
    return LOOSE_SHARE + _LOOSE_FACTOR * float(np.mean(moved)) if moved.size else LOOSE_SHARE


def _step(wide: Array, element: ScalarType) -> Array:
    """Return the distance to the next value of the type; what is flushed counts for fp32."""
    if element.is_int:
        return np.ones(wide.shape)
    finite = np.where(np.isfinite(wide), np.abs(wide), 0.0)
    exponent = np.frexp(np.maximum(finite, 2.0**-1000))[1] - 1
    # Half the smallest normal of each type is enough for its subnormals too.
    smallest = {16: 2.0**-24, 8: 2.0**-9}.get(element.bits, 0.0)
    step = np.ldexp(1.0, exponent - element.mantissa_bits)
    step = np.maximum(step, _FLUSHED if element == FP32 else smallest)
    if element.name == "bf16":
        step = np.maximum(np.ldexp(1.0, exponent - element.mantissa_bits), _FLUSHED)
    return step


def _mismatch(
    buffer: Buffer, wrong: Array, got: Array, bound: Array | float, reason: str = ""
) -> Mismatch:
    at = int(np.flatnonzero(wrong)[0])
    expected = buffer.elements(buffer.expected)
    size = buffer.pointee.size_bytes
    limits = np.broadcast_to(np.asarray(bound), wrong.shape)
    return Mismatch(
        buffer=buffer.name,
        index=buffer.element_at(at),
        expected=_text(expected[at]),
        actual=_text(got[at]),
        bound=float(limits[at]),
        num_wrong=int(np.count_nonzero(wrong)),
        num_written=int(np.count_nonzero(buffer.writable)) // size,
        reason=reason,
    )


def _text(value: Any) -> str:
    number = int(value) if np.asarray(value).dtype.kind in "iu" else float(value)
    return repr(number)


def _wide(values: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        return values.astype(np.float64)


def _bits(values: Array) -> Array:
    return view(np.ascontiguousarray(values), f"u{values.dtype.itemsize}")
