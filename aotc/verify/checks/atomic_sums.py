"""What atomic additions of floats give in another order, address by address.

Hardware adds in any order. Each addition is rounded by up to half a step of the sum so far, which in
some order is nearly that of all magnitudes, however small what is added and what comes of it. So
each address keeps what was added to it: how often, the sum of magnitudes, and the lowest bit that
any of it has. If all magnitudes together fit above that bit, no order rounds, and the sum is exact.
If they exceed the largest number, some order overflows, and then an infinity meets what is added
later: the result is an infinity, a number or NaN, unless NaN or both infinities were added.

Invariant: an address's deviation covers all that was added there so far, by whichever op.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotc.ir.types import FP32, ScalarType
from aotc.verify.arrays import Array
from aotc.verify.interpreter.numerics import round_to

_FLUSHED = 2.0**-126  # the smallest normal fp32: what atomics flush to zero

# Rows of the table that has a column for each address.
_SUM, _LEFT, _SIZE, _COUNT, _LOWEST, _INFINITE = range(6)


@dataclass(frozen=True, slots=True)
class Sums:
    """Hold sums in the order of the program, and of each how far another order is from it.

    `deviation` is a quarter of what may be rounded, and at least a `step` of the sum where any is:
    `compare.py` allows a multiple. `is_open` are those that may be anything.
    """

    total: Array
    deviation: Array
    step: Array
    is_open: Array


class AtomicSums:
    """Keep what was added at each address."""

    def __init__(self) -> None:
        self._addresses = np.empty(0, np.int64)
        self._table = np.empty((6, 0))

    def add(
        self, address: Array, before: Array, value: Array, element: ScalarType, largest: float
    ) -> Sums:
        """Return the sums at distinct addresses, each of which holds `before`, with `value` added.

        `largest` is the largest finite number of `element`.
        """
        old, new = before.astype(np.float64), value.astype(np.float64)
        places = self._places(address, old)
        held = self._table[:, places]
        # Other ops may have changed what was left here.
        is_other = ~((held[_LEFT] == old) | (np.isnan(held[_LEFT]) & np.isnan(old)))
        if is_other.any():
            change = _magnitude(old - held[_LEFT])
            held[_SIZE] += np.where(is_other, change, 0.0)
            held[_LOWEST] = np.where(
                is_other, np.minimum(held[_LOWEST], _lowest(old)), held[_LOWEST]
            )
            held[_SUM] = np.where(is_other, old, held[_SUM])
        with np.errstate(all="ignore"):
            total = np.asarray(round_to(held[_SUM] + new, element)).astype(np.float64)
            held[_INFINITE] += np.where(np.isfinite(new), 0.0, new)
        held[_SUM] = total
        held[_SIZE] += _magnitude(new)
        held[_COUNT] += new != 0.0
        held[_LOWEST] = np.minimum(held[_LOWEST], _lowest(new))
        self._table[:, places] = held
        return _deviating(held, total, element, largest)

    def leave(self, address: Array, stored: Array) -> None:
        """Take note of what is stored at addresses to which something was added."""
        self._table[_LEFT, np.searchsorted(self._addresses, address)] = stored.astype(np.float64)

    def _places(self, address: Array, old: Array) -> Array:
        """Return the columns of addresses; those that are new hold `old`."""
        places = np.searchsorted(self._addresses, address)
        is_known = np.zeros(address.shape, np.bool_)
        if self._addresses.size:
            at = np.minimum(places, self._addresses.size - 1)
            is_known = self._addresses[at] == address
        if is_known.all():
            return places
        order = np.argsort(address[~is_known])
        fresh, first = address[~is_known][order], old[~is_known][order]
        columns = np.zeros((6, fresh.size))
        columns[_SUM] = columns[_LEFT] = first
        columns[_SIZE], columns[_LOWEST] = _magnitude(first), _lowest(first)
        columns[_INFINITE] = np.where(np.isfinite(first), 0.0, first)
        at = np.searchsorted(self._addresses, fresh)
        self._addresses = np.insert(self._addresses, at, fresh)
        self._table = np.insert(self._table, at, columns, axis=1)
        return np.searchsorted(self._addresses, address)


def _deviating(held: Array, total: Array, element: ScalarType, largest: float) -> Sums:
    bits = element.mantissa_bits
    size, count, lowest = held[_SIZE], held[_COUNT], held[_LOWEST]
    is_exact = size <= lowest * 2.0 ** (bits + 1)
    rounded = np.maximum(count - 1.0, 0.0) * 2.0 ** -(bits + 1) * size
    number = np.where(np.isfinite(total), np.abs(total), 0.0)
    step = np.ldexp(1.0, np.frexp(np.maximum(number, 2.0**-1000))[1] - 1 - bits)
    if element == FP32:
        may_be_flushed = lowest < _FLUSHED
        is_exact &= ~may_be_flushed
        step = np.where(may_be_flushed, np.maximum(step, _FLUSHED), step)
    is_open = ~np.isnan(held[_INFINITE]) & (size + rounded > largest)
    moves = np.where(is_exact | ~np.isfinite(total), 0.0, 1.0)
    return Sums(total, moves * 0.25 * rounded, moves * step, is_open)


def _magnitude(value: Array) -> Array:
    return np.where(np.isfinite(value), np.abs(value), 0.0)


def _lowest(value: Array) -> Array:
    """Return the value of the lowest bit that is set in a number; infinity if there is none."""
    fraction, exponent = np.frexp(_magnitude(value))
    whole = np.ldexp(fraction, 53).astype(np.int64)
    lowest = np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    return np.where(whole == 0, np.inf, lowest)
