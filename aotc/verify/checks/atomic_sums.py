"""Bounds for float sums of atomic additions in any order, address by address.

Hardware adds in any order, and each addition is rounded by up to half a step of the partial
sum. In some orders the partial sum is nearly the sum of all magnitudes, however small the final
sum. So each address tracks its additions: their count, their sum of magnitudes, and their
lowest set bit. If the sum of magnitudes fits above that bit, no order rounds, and the sum is
exact. If it exceeds the largest number, some order overflows to an infinity and then adds more.
The result is then an infinity, a number or NaN, unless NaN or both infinities were added.

Invariant: an address's deviation covers all additions there so far, by any op.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotc.ir.types import FP32, ScalarType
from aotc.verify.arrays import Array, view
from aotc.verify.interpreter.numerics import round_to

_FLUSHED = 2.0**-126  # the smallest normal fp32: atomics flush smaller numbers to zero

_MANTISSA = (1 << 52) - 1  # stored bits of fp64

# Rows of the table; it has a column for each address.
_SUM, _LEFT, _SIZE, _COUNT, _LOWEST, _INFINITE = range(6)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums in program order, each with its distance from the sums of other orders.

    `deviation` is a quarter of the possible rounding, and at least one `step` of the sum where
    rounding is possible: `compare.py` allows a multiple. Where `is_open`, any sum is right.
    """

    total: Array
    deviation: Array
    step: Array
    is_open: Array


class AtomicSums:
    """Record the additions at each address."""

    def __init__(self) -> None:
        self._addresses = np.empty(0, np.int64)
        self._table = np.empty((6, 0))
        self._added: tuple[Array, Array | slice] | None = None  # addresses, and their columns

    def add(
        self, address: Array, before: Array, value: Array, element: ScalarType, largest: float
    ) -> Sums:
        """Add `value` to `before` at distinct addresses, and return the sums.

        `largest` is the largest finite number of `element`.
        """
        old, new = before.astype(np.float64), value.astype(np.float64)
        columns = self._places(address, old)
        self._added = address, columns
        rows = self._table[:, columns]
        # Other ops may have stored here since the last addition.
        is_other = ~((rows[_LEFT] == old) | (np.isnan(rows[_LEFT]) & np.isnan(old)))
        if is_other.any():
            change = _magnitude(old - rows[_LEFT])
            rows[_SIZE] += np.where(is_other, change, 0.0)
            rows[_LOWEST] = np.where(
                is_other, np.minimum(rows[_LOWEST], _lowest(old)), rows[_LOWEST]
            )
            rows[_SUM] = np.where(is_other, old, rows[_SUM])
        with np.errstate(all="ignore"):
            total = np.asarray(round_to(rows[_SUM] + new, element)).astype(np.float64)
            rows[_INFINITE] += np.where(np.isfinite(new), 0.0, new)
        rows[_SUM] = total
        rows[_SIZE] += _magnitude(new)
        rows[_COUNT] += new != 0.0
        rows[_LOWEST] = np.minimum(rows[_LOWEST], _lowest(new))
        self._table[:, columns] = rows
        return _deviating(rows, total, element, largest)

    def leave(self, address: Array, stored: Array) -> None:
        """Record the values stored at the addresses of the last addition."""
        if self._added is not None and self._added[0] is address:
            columns = self._added[1]
        else:
            columns = np.searchsorted(self._addresses, address)
        self._table[_LEFT, columns] = stored.astype(np.float64)

    def _places(self, address: Array, old: Array) -> Array | slice:
        """Return the columns of addresses; new addresses start with `old`."""
        if not address.size:
            return slice(0)
        # Fast paths: a run of known addresses, or a new run between two of them.
        start = int(np.searchsorted(self._addresses, address[:1])[0])
        run = slice(start, start + address.size)
        if np.array_equal(self._addresses[run], address):
            return run
        is_ascending = bool((address[1:] > address[:-1]).all())
        if is_ascending and (start == self._addresses.size or self._addresses[start] > address[-1]):
            rest = slice(start, None)
            parts = self._addresses[:start], address, self._addresses[rest]
            self._addresses = np.concatenate(parts)
            columns = self._table[:, :start], _columns(old), self._table[:, rest]
            self._table = np.concatenate(columns, axis=1)
            return run
        indices = np.searchsorted(self._addresses, address)
        is_known = np.zeros(address.shape, np.bool_)
        if self._addresses.size:
            start = np.minimum(indices, self._addresses.size - 1)
            is_known = self._addresses[start] == address
        if is_known.all():
            return indices
        order = np.argsort(address[~is_known])
        fresh, first = address[~is_known][order], old[~is_known][order]
        indices = np.searchsorted(self._addresses, fresh)
        self._addresses = np.insert(self._addresses, indices, fresh)
        self._table = np.insert(self._table, indices, _columns(first), axis=1)
        return np.searchsorted(self._addresses, address)


def _columns(first: Array) -> Array:
    """Return the columns of addresses with the value `first` and no additions."""
    columns = np.zeros((6, first.size))
    columns[_SUM] = columns[_LEFT] = first
    columns[_SIZE], columns[_LOWEST] = _magnitude(first), _lowest(first)
    columns[_INFINITE] = np.where(np.isfinite(first), 0.0, first)
    return columns


def _deviating(rows: Array, total: Array, element: ScalarType, largest: float) -> Sums:
    bits = element.mantissa_bits
    size, count, lowest = rows[_SIZE], rows[_COUNT], rows[_LOWEST]
    is_exact = size <= lowest * 2.0 ** (bits + 1)
    rounded = np.maximum(count - 1.0, 0.0) * 2.0 ** -(bits + 1) * size
    number = np.where(np.isfinite(total), np.abs(total), 0.0)
    step = np.ldexp(1.0, np.frexp(np.maximum(number, 2.0**-1000))[1] - 1 - bits)
    if element == FP32:
        may_be_flushed = lowest < _FLUSHED
        is_exact &= ~may_be_flushed
        step = np.where(may_be_flushed, np.maximum(step, _FLUSHED), step)
    is_open = ~np.isnan(rows[_INFINITE]) & (size + rounded > largest)
    moves = np.where(is_exact | ~np.isfinite(total), 0.0, 1.0)
    return Sums(total, moves * 0.25 * rounded, moves * step, is_open)


def _magnitude(value: Array) -> Array:
    return np.where(np.isfinite(value), np.abs(value), 0.0)


def _lowest(value: Array) -> Array:
    """Return the value of a number's lowest set bit; infinity for zero."""
    size = _magnitude(value)
    bits = view(size, np.int64)
    # The size with its lowest bit cleared, or 0 if it is the implicit leading bit.
    rest = np.where(bits & _MANTISSA != 0, view(bits & (bits - 1), np.float64), 0.0)
    return np.where(size == 0.0, np.inf, size - rest)
