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
from aotc.verify.arrays import Array, view
from aotc.verify.interpreter.numerics import round_to

_FLUSHED = 2.0**-126  # the smallest normal fp32: what atomics flush to zero

_MANTISSA = (1 << 52) - 1  # of fp64, as it is written

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
        self._added: tuple[Array, Array | slice] | None = None  # addresses, and their columns

    def add(
        self, address: Array, before: Array, value: Array, element: ScalarType, largest: float
    ) -> Sums:
        """Return the sums at distinct addresses, each of which holds `before`, with `value` added.

        `largest` is the largest finite number of `element`.
        """
        old, new = before.astype(np.float64), value.astype(np.float64)
        places = self._places(address, old)
        self._added = address, places
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
        if self._added is not None and self._added[0] is address:
            places = self._added[1]
        else:
            places = np.searchsorted(self._addresses, address)
        self._table[_LEFT, places] = stored.astype(np.float64)

    def _places(self, address: Array, old: Array) -> Array | slice:
        """Return the columns of addresses; those that are new hold `old`."""
        if not address.size:
            return slice(0)
        # Mostly they are a run that is known, or lies between two that are.
        at = int(np.searchsorted(self._addresses, address[:1])[0])
        run = slice(at, at + address.size)
        if np.array_equal(self._addresses[run], address):
            return run
        is_ascending = bool((address[1:] > address[:-1]).all())
        if is_ascending and (at == self._addresses.size or self._addresses[at] > address[-1]):
            rest = slice(at, None)
            parts = self._addresses[:at], address, self._addresses[rest]
            self._addresses = np.concatenate(parts)
            columns = self._table[:, :at], _columns(old), self._table[:, rest]
            self._table = np.concatenate(columns, axis=1)
            return run
        places = np.searchsorted(self._addresses, address)
        is_known = np.zeros(address.shape, np.bool_)
        if self._addresses.size:
            at = np.minimum(places, self._addresses.size - 1)
            is_known = self._addresses[at] == address
        if is_known.all():
            return places
        order = np.argsort(address[~is_known])
        fresh, first = address[~is_known][order], old[~is_known][order]
        places = np.searchsorted(self._addresses, fresh)
        self._addresses = np.insert(self._addresses, places, fresh)
        self._table = np.insert(self._table, places, _columns(first), axis=1)
        return np.searchsorted(self._addresses, address)


def _columns(first: Array) -> Array:
    """Return the columns of addresses that hold `first`, to which nothing was added yet."""
    columns = np.zeros((6, first.size))
    columns[_SUM] = columns[_LEFT] = first
    columns[_SIZE], columns[_LOWEST] = _magnitude(first), _lowest(first)
    columns[_INFINITE] = np.where(np.isfinite(first), 0.0, first)
    return columns


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
    size = _magnitude(value)
    bits = view(size, np.int64)
    # Less without its lowest bit, unless that is the one that is not written.
    rest = np.where(bits & _MANTISSA != 0, view(bits & (bits - 1), np.float64), 0.0)
    return np.where(size == 0.0, np.inf, size - rest)
