"""Roundings that noise may flip: casts to a narrower float within a kernel.

A value that hardware computes a little differently may lie on the other side of the middle between
two numbers of the narrower type, and is then off by a whole step of it: a relative error of 2e-6
becomes one of 5e-4. Noisy interpretations (`noise.py`) show that only where they happen to flip the
same value. So they are watched: how far they move the operand of each such cast. Then the kernel is
interpreted a few times more, and every cast whose operand can get across a middle rounds it to the
other side in some of these runs, upwards or downwards where there is a choice. In a row of a softmax
there may be many, and weighted by values of either sign they may cancel: no two that are close in a
row or a column are flipped in the same runs, so one of the runs has the one without the other, and what
moves is added up over them.

Casts whose results are only stored need none of that: a comparison allows for a step there.

Invariant: an operand that noise does not move is rounded as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, descriptor, tile
from aotc.ir.types import ScalarType, element_of
from aotc.ir.walks import reached
from aotc.verify.arrays import Array, reshape
from aotc.verify.checks.value_flow import SHAPES, backward
from aotc.verify.interpreter.program import Program, Rule, Rules

FACTOR = 4.0
"""How much further than watched an operand may be moved, as in `compare.py`."""

NUM_FLIPPED_RUNS = 4
"""In how many runs casts are flipped, each in one of the sets of runs that are not empty."""

_STORES = (tile.Store, descriptor.DescriptorStore)


def inner_casts(kernel: Kernel, is_inexact: Callable[[Op], bool]) -> list[arith.Cast]:
    """Return the casts to a narrower float of inexact values with which the kernel goes on."""
    return [
        op
        for op in kernel.walk()
        if isinstance(op, arith.Cast) and _narrows(op) and not _is_only_stored(op.out)
        if any(v.op is not None and is_inexact(v.op) for v in backward([op.value]))
    ]


def reads_by_rounding(kernel: Kernel, is_inexact: Callable[[Op], bool]) -> bool:
    """Return whether the addresses of loads depend on inexact values, as in a table that is searched."""
    addresses = [op.pointer for op in kernel.walk() if isinstance(op, tile.Load)]
    return any(value.op is not None and is_inexact(value.op) for value in backward(addresses))


def _narrows(op: arith.Cast) -> bool:
    source = element_of(op.value.type)
    if not isinstance(source, ScalarType) or not (source.is_float and op.dtype.is_float):
        return False
    return op.dtype.mantissa_bits < source.mantissa_bits


def _is_only_stored(value: Value) -> bool:
    users = reached(value.users, lambda op: op.results[0].users if isinstance(op, SHAPES) else ())
    return all(isinstance(user, (*_STORES, *SHAPES)) for user in users)


@dataclass(frozen=True, slots=True)
class _Sides:
    """Hold what a cast gives, what it gives of operands moved up and down, and where it may flip.

    `sets` has for each element the set of runs that flip it, as bits.
    """

    out: Array
    others: tuple[Array, Array]
    may_flip: Array
    sets: Array


class CastWatch:
    """Keep what the operands of casts are in an exact run and how far noisy ones move them."""

    def __init__(self, casts: list[arith.Cast]) -> None:
        self._exact: dict[Op, list[Array]] = {cast: [] for cast in casts}
        self._moved: dict[Op, list[Array]] = {cast: [] for cast in casts}
        self._reaches: dict[tuple[Op, int], Array] = {}
        self._sets: dict[tuple[Op, int], Array] = {}
        self._taken: dict[int, Array] = {}  # by how many columns a tile has
        self._sides: dict[tuple[Op, int], _Sides] = {}  # of operands that are as in the exact run

    @property
    def casts(self) -> Collection[Op]:
        """The casts that are watched."""
        return self._exact.keys()

    @property
    def has_moved(self) -> bool:
        """Whether noise moved the operand of any cast."""
        return any(moved.any() for each in self._moved.values() for moved in each)

    def recording(self, rules: Rules) -> Rules:
        """Return the rules of the exact run."""

        def watch(op: Op, number: int, value: Array) -> None:
            del number
            self._exact[op].append(value)
            self._moved[op].append(np.zeros(value.shape))

        return self._watched(rules, watch)

    def measuring(self, rules: Rules) -> Rules:
        """Return the rules of a noisy run, which are watched."""

        def watch(op: Op, number: int, value: Array) -> None:
            if number >= len(self._exact[op]) or self._exact[op][number].shape != value.shape:
                return  # the run took another way
            if value is self._exact[op][number]:
                return
            exact = self._exact[op][number].astype(np.float64)
            distance = np.abs(value.astype(np.float64) - exact)
            self._moved[op][number] += np.where(np.isfinite(distance), distance, 0.0)

        return self._watched(rules, watch)

    def flipping(self, rules: Rules, run: int) -> Rules:
        """Return the rules of one of the runs in which casts that noise may flip are flipped."""
        base = rules[arith.Cast]
        counts: dict[Op, int] = {}

        def rule(program: Program, op: arith.Cast, value: Array) -> Any:
            if op not in self._exact:
                return base(program, op, value)
            number = counts[op] = counts.get(op, -1) + 1
            if number >= len(self._moved[op]) or self._moved[op][number].shape != value.shape:
                return base(program, op, value)
            sides = self._sides.get((op, number)) if value is self._exact[op][number] else None
            if sides is None:
                sides = self._sides_of(base, program, op, number, value)
            first, second = sides.others[:: -1 if run % 2 else 1]
            flipped = np.where(first != sides.out, first, second)
            is_flipped = sides.may_flip & (sides.sets >> run & 1 != 0)
            return np.where(is_flipped, flipped, sides.out).astype(sides.out.dtype)

        return {**rules, arith.Cast: rule}

    def _sides_of(
        self, base: Rule, program: Program, op: arith.Cast, number: int, value: Array
    ) -> _Sides:
        """Return what the operand of a cast that noise may flip is rounded to."""
        exact = self._exact[op][number]
        if (op, number) not in self._reaches:
            self._reaches[op, number] = FACTOR * self._reach(exact, self._moved[op][number])
        reach = self._reaches[op, number]
        wide = value.astype(np.float64)
        out, up, down = (
            np.asarray(base(program, op, each))
            for each in (value, *((wide + s * reach).astype(value.dtype) for s in (1.0, -1.0)))
        )
        may_flip = ((up != out) | (down != out)) & ~(np.isnan(wide) | np.isnan(reach))
        place = [*self._exact].index(op)
        if (op, number) not in self._sets:
            columns = may_flip.shape[-1] if may_flip.ndim else 1
            taken = self._taken.setdefault(columns, np.zeros((NUM_SETS, columns), np.int32))
            self._sets[op, number] = sets_of_runs(may_flip, taken, seed=(place, number))
        sides = _Sides(out, (up, down), may_flip, self._sets[op, number])
        if value is exact:
            self._sides[op, number] = sides
        return sides

    def _reach(self, exact: Array, moved: Array) -> Array:
        """Return how far noise may move values: as watched, and as others of the tile relatively."""
        size = np.abs(exact.astype(np.float64))
        known = (moved > 0) & np.isfinite(size) & (size > 0)
        relative = float(np.median(moved[known] / size[known])) if known.any() else 0.0
        return np.where(moved > 0, np.maximum(moved, relative * size), 0.0)

    def _watched(self, rules: Rules, watch: Callable[[Op, int, Array], None]) -> Rules:
        base = rules[arith.Cast]
        counts: dict[Op, int] = {}

        def rule(program: Program, op: arith.Cast, value: Array) -> Any:
            if op in self._exact:
                number = counts[op] = counts.get(op, -1) + 1
                watch(op, number, np.asarray(value))
            return base(program, op, value)

        return {**rules, arith.Cast: rule}


NUM_SETS = 2**NUM_FLIPPED_RUNS - 1


def sets_of_runs(may_flip: Array, taken: Array, *, seed: tuple[int, int]) -> Array:
    """Return for each element the set of runs, as bits, that flip it.

    Those of a row take turns. A product may as well add up a column, and what one cast gives may meet
    what another does: so a row begins where few of it are in sets that its columns have, of which
    `taken`, (NUM_SETS, columns), counts the elements, these too afterwards.
    """
    rows = reshape(may_flip, (-1, taken.shape[1]))
    begins = np.random.default_rng(seed).integers(NUM_SETS, size=len(rows))
    for row in np.flatnonzero(rows.any(-1)):
        columns = np.flatnonzero(rows[row])
        turn = np.arange(len(columns))
        choices = (begins[row] + np.arange(NUM_SETS)) % NUM_SETS
        met = taken[(choices[:, None] + turn) % NUM_SETS, columns].sum(-1)
        begins[row] = choices[np.argmin(met)]
        taken[(begins[row] + turn) % NUM_SETS, columns] += 1
    turns = np.cumsum(rows, axis=-1) - 1 + begins[:, None]
    return reshape((1 + turns % NUM_SETS).astype(np.uint8), may_flip.shape)
