"""Compare a buffer after a compiled kernel with its expected contents.

An exact result must be the same to the bit (any NaN equals any other). Elsewhere an element may
be off by

    tight   4 x its moves in the noisy interpretations, single ops added up
            + 4 x the median relative move of the buffer's elements x its magnitude
    loose   one step of the buffer's type beyond that: an error below a step before the
            final rounding may become a whole step; an infinity counts as the number
            after the largest

and only so many elements may need the loose bound: 2 in 100, or four times the share that
rounding also changed under noise. An off-by-one mask moves an element by its own size; a
wrong rounding mode moves half of them by one step. The first breaks the bound, the second the
share.

Invariant: comparing a result with itself finds no mismatch, and a mismatch names the first
element out of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array, view
from aotc.verify.checks.reference import Buffer, Bytes
from aotc.verify.interpreter.numerics import step_of

NOISE_FACTOR = 4.0
MEDIAN_FACTOR = 4.0
LOOSE_SHARE = 0.02
_LOOSE_FACTOR = 4.0
_LOOSE_COUNT = 2
_OVERFLOWS_AT = {"fp16": 16, "bf16": 128, "fp32": 128}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A wrong result; `index` is the first wrong element, counted from the pointer.

    `bound` is the allowed distance of `actual` from `expected`, 0.0 for to the bit. `num_wrong`
    of the `num_written` elements are out of bounds. `reason` explains mismatches beyond
    the values.
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
    """Compare `actual`, the bytes of `buffer` after a launch; return None if it is right.

    `tolerance` is an additional absolute and relative error.
    """
    expected, actual_elements = buffer.elements(buffer.expected), buffer.elements(actual)
    differs: Array = np.flatnonzero(_bits(expected) != _bits(actual_elements))
    if not differs.size:
        return None
    written = _written(buffer)
    stray = differs[~written[differs]]
    if stray.size:
        reason = "are written, which the kernel does not do"
        return _mismatch(buffer, stray, actual_elements, np.zeros(1), reason)
    # From here on, look only at elements with a difference or moved by noise: in a large result these
    # are few.
    wide, wide_got = _wide(expected[differs]), _wide(actual_elements[differs])
    with np.errstate(all="ignore"):
        equal = np.isnan(wide) & np.isnan(wide_got)
        is_to_the_bit = buffer.is_exact and not tolerance
        if not is_to_the_bit:  # exact zeros differ by sign
            equal |= wide == wide_got
        differs, wide, wide_got = differs[~equal], wide[~equal], wide_got[~equal]
        if not differs.size:
            return None
        if is_to_the_bit:
            return _mismatch(buffer, differs, actual_elements, np.zeros(1))
        noisy = _noisy_elements(buffer, expected)
        num_moved = np.count_nonzero(_spread(buffer, noisy[written[noisy]]) > 0)
        wide, wide_got = _bounded(wide, buffer.pointee), _bounded(wide_got, buffer.pointee)
        finite = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        tight = (
            NOISE_FACTOR * _spread(buffer, differs)
            + MEDIAN_FACTOR * _median_move(buffer, expected, written, noisy) * finite
            + tolerance * (1.0 + finite)
        )
        loose = tight + step_of(wide, buffer.pointee)
        distance = np.abs(wide - wide_got)
        wrong = ~_is_within(distance, loose)
        if wrong.any():
            return _mismatch(buffer, differs[wrong], actual_elements, loose[wrong])
        beyond = ~_is_within(distance, tight)
        allowed = LOOSE_SHARE * np.count_nonzero(written) + _LOOSE_FACTOR * num_moved
        if np.count_nonzero(beyond) > max(_LOOSE_COUNT, allowed):
            reason = "are off by one step, more than rounding explains"
            return _mismatch(buffer, differs[beyond], actual_elements, tight[beyond], reason)
    return None


def _written(buffer: Buffer) -> Array:
    """Return whether the kernel writes any byte of an element, for each element."""
    marks = np.ascontiguousarray(buffer.writable)
    return view(marks, f"u{buffer.pointee.size_bytes}") != 0


def _noisy_elements(buffer: Buffer, expected: Array) -> Array:
    """Return the indices of elements with bits changed by any noisy interpretation."""
    is_moved = np.zeros(expected.shape, bool)
    for run in (*buffer.upward, *buffer.random, *buffer.flipped):
        is_moved |= _bits(expected) != _bits(buffer.elements(run))
    indices: Array = np.flatnonzero(is_moved)
    return indices


def _spread(buffer: Buffer, indices: Array) -> Array:
    """Return how far noise moves the elements: single ops added up, plus all ops at random.

    Each rounding is flipped in two of the runs with flipped roundings, on average: each run
    counts half.
    """
    wide = _wide(buffer.elements(buffer.expected)[indices])
    spread = np.zeros(wide.shape)
    for run in buffer.upward:
        spread += _move_distance(wide, _wide(buffer.elements(run)[indices]))
    for run in buffer.flipped:
        spread += 0.5 * _move_distance(wide, _wide(buffer.elements(run)[indices]))
    at_random = np.zeros(wide.shape)
    for run in buffer.random:
        at_random = np.maximum(
            at_random, _move_distance(wide, _wide(buffer.elements(run)[indices]))
        )
    return spread + at_random


def _move_distance(wide: Array, run: Array) -> Array:
    """Return how far noise moved each element; infinity where only one side is a number."""
    distance = np.abs(run - wide)
    same = (run == wide) | (np.isnan(run) & np.isnan(wide))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _median_move(buffer: Buffer, expected: Array, written: Array, noisy: Array) -> float:
    """Return the median relative move of written, finite and nonzero elements.

    Unmoved elements count as zero moves without being visited.
    """
    noisy = noisy[written[noisy]]
    wide, spread = _wide(expected[noisy]), _spread(buffer, noisy)
    is_known = np.isfinite(wide) & (wide != 0) & np.isfinite(spread)
    relative = spread[is_known] / np.abs(wide[is_known])
    num_known = _num_numbers(_wide(expected[written])) - _num_numbers(wide) + relative.size
    num_unmoved = num_known - relative.size
    if not num_known or num_unmoved > num_known // 2:
        return 0.0
    return float(np.median(np.concatenate([np.zeros(num_unmoved), relative])))


def _bounded(wide: Array, element: ScalarType) -> Array:
    """Replace infinities by the number after the type's largest.

    So a result rounded to the largest number is one step from an overflow.
    """
    exponent = _OVERFLOWS_AT.get(element.name)
    if exponent is None:
        return wide
    return np.where(np.isinf(wide), np.copysign(2.0**exponent, wide), wide)


def _is_within(distance: Array, bound: Array) -> Array:
    """Return whether distances are in bounds; an infinite bound allows a NaN too."""
    return (distance <= bound) | np.isposinf(bound)


def _num_numbers(wide: Array) -> int:
    """Return the number of finite, nonzero elements."""
    return int(np.count_nonzero(np.isfinite(wide) & (wide != 0)))


def _mismatch(
    buffer: Buffer, wrong: Array, actual: Array, bounds: Array, reason: str = ""
) -> Mismatch:
    """Describe the wrong elements, by ascending index.

    `bounds` has one bound for all or one for each.
    """
    first = int(wrong[0])
    return Mismatch(
        buffer=buffer.name,
        index=buffer.element_at(first),
        expected=_text(buffer.elements(buffer.expected)[first]),
        actual=_text(actual[first]),
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
