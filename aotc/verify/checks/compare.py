"""Compare what a compiled kernel left in a buffer with what it must be.

Where a result is exact it must be the same to the bit (of NaNs, any will do). Elsewhere an element
may be off by

    tight   4 x what the noisy interpretations moved it, those of single ops added up
            + 4 x the median relative move of the buffer's elements x its magnitude
    loose   one step of the buffer's type beyond that: what is off by less than a step before it is
            rounded to the type may be one step off after it; an infinity is the number after the
            largest there

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
from aotc.verify.arrays import Array, view
from aotc.verify.checks.reference import Buffer, Bytes

NOISE_FACTOR = 4.0
MEDIAN_FACTOR = 4.0
LOOSE_SHARE = 0.02
_LOOSE_FACTOR = 4.0
_LOOSE_COUNT = 2
_FLUSHED = 2.0**-126
_OVERFLOWS_AT = {"fp16": 16, "bf16": 128, "fp32": 128}


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
    differs: Array = np.flatnonzero(_bits(expected) != _bits(got))
    if not differs.size:
        return None
    written = _written(buffer)
    stray = differs[~written[differs]]
    if stray.size:
        reason = "are written, which the kernel does not do"
        return _mismatch(buffer, stray, got, np.zeros(1), reason)
    # From here on all is asked of the elements that differ, and of those that noise moves: in a
    # large result these are few.
    wide, wide_got = _wide(expected[differs]), _wide(got[differs])
    with np.errstate(all="ignore"):
        equal = np.isnan(wide) & np.isnan(wide_got)
        is_to_the_bit = buffer.is_exact and not tolerance
        if not is_to_the_bit:  # where it is, zeros have signs
            equal |= wide == wide_got
        differs, wide, wide_got = differs[~equal], wide[~equal], wide_got[~equal]
        if not differs.size:
            return None
        if is_to_the_bit:
            return _mismatch(buffer, differs, got, np.zeros(1))
        moved = _moved_anywhere(buffer, expected)
        num_moved = np.count_nonzero(_spread(buffer, moved[written[moved]]) > 0)
        wide, wide_got = _bounded(wide, buffer.pointee), _bounded(wide_got, buffer.pointee)
        finite = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        tight = (
            NOISE_FACTOR * _spread(buffer, differs)
            + MEDIAN_FACTOR * _median_move(buffer, expected, written, moved) * finite
            + tolerance * (1.0 + finite)
        )
        loose = tight + _step(wide, buffer.pointee)
        distance = np.abs(wide - wide_got)
        wrong = ~_is_within(distance, loose)
        if wrong.any():
            return _mismatch(buffer, differs[wrong], got, loose[wrong])
        beyond = ~_is_within(distance, tight)
        allowed = LOOSE_SHARE * np.count_nonzero(written) + _LOOSE_FACTOR * num_moved
        if np.count_nonzero(beyond) > max(_LOOSE_COUNT, allowed):
            reason = "are off by one step, more than rounding explains"
            return _mismatch(buffer, differs[beyond], got, tight[beyond], reason)
    return None


def _written(buffer: Buffer) -> Array:
    """Return which elements the kernel writes any byte of."""
    marks = np.ascontiguousarray(buffer.writable)
    return view(marks, f"u{buffer.pointee.size_bytes}") != 0


def _moved_anywhere(buffer: Buffer, expected: Array) -> Array:
    """Return the elements whose bits any noisy interpretation changed, in order."""
    moved = np.zeros(expected.shape, bool)
    for run in (*buffer.upward, *buffer.random, *buffer.flipped):
        moved |= _bits(expected) != _bits(buffer.elements(run))
    found: Array = np.flatnonzero(moved)
    return found


def _spread(buffer: Buffer, at: Array) -> Array:
    """Return how far noise moves the elements `at`: single ops added up, and all ops at random.

    Of the runs with flipped roundings each rounding is in two, on average, so half of them count.
    """
    wide = _wide(buffer.elements(buffer.expected)[at])
    spread = np.zeros(wide.shape)
    for run in buffer.upward:
        spread += _moved(wide, _wide(buffer.elements(run)[at]))
    for run in buffer.flipped:
        spread += 0.5 * _moved(wide, _wide(buffer.elements(run)[at]))
    at_random = np.zeros(wide.shape)
    for run in buffer.random:
        at_random = np.maximum(at_random, _moved(wide, _wide(buffer.elements(run)[at])))
    return spread + at_random


def _moved(wide: Array, run: Array) -> Array:
    """Return how far noise moved each element; infinite where only one of the two is a number."""
    moved = np.abs(run - wide)
    same = (run == wide) | (np.isnan(run) & np.isnan(wide))
    return np.where(same, 0.0, np.where(np.isnan(moved), np.inf, moved))


def _median_move(buffer: Buffer, expected: Array, written: Array, moved: Array) -> float:
    """Return the median relative move of the elements that are written, finite and not zero.

    Elements that noise does not move count as well; they are not looked at one by one.
    """
    moved = moved[written[moved]]
    wide, spread = _wide(expected[moved]), _spread(buffer, moved)
    is_known = np.isfinite(wide) & (wide != 0) & np.isfinite(spread)
    relative = spread[is_known] / np.abs(wide[is_known])
    num_known = _num_numbers(_wide(expected[written])) - _num_numbers(wide) + relative.size
    num_unmoved = num_known - relative.size
    if not num_known or num_unmoved > num_known // 2:
        return 0.0
    return float(np.median(np.concatenate([np.zeros(num_unmoved), relative])))


def _bounded(wide: Array, element: ScalarType) -> Array:
    """Return values with the number after the largest in place of infinities, which is rounded to one.

    So a result that is rounded to the largest number is one step from one that overflows.
    """
    exponent = _OVERFLOWS_AT.get(element.name)
    if exponent is None:
        return wide
    return np.where(np.isinf(wide), np.copysign(2.0**exponent, wide), wide)


def _is_within(distance: Array, bound: Array) -> Array:
    """Return what is in bounds; without a bound anything is, the distance to a NaN too."""
    return (distance <= bound) | np.isposinf(bound)


def _num_numbers(wide: Array) -> int:
    """Return how many are finite and not zero."""
    return int(np.count_nonzero(np.isfinite(wide) & (wide != 0)))


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
    buffer: Buffer, wrong: Array, got: Array, bounds: Array, reason: str = ""
) -> Mismatch:
    """Describe the elements `wrong`, in order; `bounds` is the bound of each, or of all."""
    at = int(wrong[0])
    return Mismatch(
        buffer=buffer.name,
        index=buffer.element_at(at),
        expected=_text(buffer.elements(buffer.expected)[at]),
        actual=_text(got[at]),
        bound=float(bounds[0]),
        num_wrong=wrong.size,
        num_written=int(np.count_nonzero(buffer.writable)) // buffer.pointee.size_bytes,
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
