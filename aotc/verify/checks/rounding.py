"""Flip roundings within reach of noise: casts to a narrower float, operands of tf32 dots.

A slightly different value may lie on the other side of a tie between two numbers of the
narrower type, and is then off by a whole step: a relative error of 2e-6 becomes one of 5e-4.
Noisy interpretations (`noise.py`) show this only where they happen to flip the same value. So
they measure how far they move the operand of each such cast, and each fp32 operand of a dot that
truncates it to tf32. Then a few more interpretations
flip every cast whose operand can cross a tie, in some of these runs, upwards or downwards where
both are possible. A row of a softmax may have many such casts, and their errors may cancel when
weighted by values of either sign. So no two that are close in a row or a column are flipped in
the same runs: some run has one without the other, and the moves are added up.

Casts whose results are only stored need no flips: a comparison allows for a step there.

Weights of an online softmax may also be rounded after another scale than the source's, and so at
any place between two numbers of the narrower type. Their casts flip in either direction.

Invariant: an operand unmoved by noise is rounded as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.types import FP32, ScalarType, element_of
from aotc.ir.walks import reached
from aotc.verify.arrays import Array, reshape
from aotc.verify.checks.value_flow import SHAPES, backward
from aotc.verify.interpreter.dot import truncate_to_tf32
from aotc.verify.interpreter.numerics import step_of
from aotc.verify.interpreter.program import Program, Rule, Rules

FACTOR = 4.0
"""Allowed move of an operand relative to the measured one, as in `compare.py`."""

NUM_FLIPPED_RUNS = 4
"""Number of runs with flipped casts; a cast is flipped in one nonempty set of them."""

_STORES = (tile.Store, descriptor.DescriptorStore)
_EXPONENTIALS = (arith.Exp, arith.Exp2)
_ROW_OPS = (*SHAPES, arith.Mul, arith.Select)

Rounding: TypeAlias = "tuple[Op, int]"
"""An op, and the number of the operand that it rounds to a narrower float."""


def inner_roundings(kernel: Kernel, is_inexact: Callable[[Op], bool]) -> list[Rounding]:
    """Return the roundings of inexact values to a narrower float used further in the kernel."""
    candidates = [(op, index) for op in kernel.walk() for index in _rounded_operands(op)]
    return [
        (op, index)
        for op, index in candidates
        if any(v.op is not None and is_inexact(v.op) for v in backward([op.operands[index]]))
    ]


def _rounded_operands(op: Op) -> Sequence[int]:
    if isinstance(op, arith.Cast):
        return (0,) if _narrows(op) and not _is_only_stored(op.out) else ()
    is_tf32 = isinstance(op, tile.Dot) and op.input_precision == "tf32"
    return (0, 1) if is_tf32 and element_of(op.operands[0].type) == FP32 else ()


def weight_casts(kernel: Kernel) -> list[arith.Cast]:
    """Return the casts of an online softmax's weights: exponentials shifted by a running maximum."""
    shifts = [
        op.body.terminator.operands[arg.index - 1]
        for op in kernel.walk()
        if isinstance(op, scf.For)
        for arg in op.carried
    ]
    maxima = [value.op for value in shifts if isinstance(value.op, arith.Max)]
    differences = _users(maxima, SHAPES, arith.Sub)
    weights = _users(_users(differences, _ROW_OPS, *_EXPONENTIALS), _ROW_OPS, arith.Cast)
    return [op for op in weights if isinstance(op, arith.Cast) and _narrows(op)]


def _users(ops: Iterable[Op], through: tuple[type[Op], ...], *kinds: type[Op]) -> list[Op]:
    """Return the users of these kinds, direct ones or behind ops of `through`."""
    users = [user for op in ops for value in op.results for user in value.users]
    behind = reached(users, lambda op: op.results[0].users if isinstance(op, through) else ())
    return [op for op in behind if isinstance(op, kinds)]


def reads_by_rounding(kernel: Kernel, is_inexact: Callable[[Op], bool]) -> bool:
    """Return whether load addresses depend on inexact values, as in a table search."""
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
    """A rounded operand, the results for it moved up and down, and where it may flip.

    `sets` has for each element the set of runs that flip it, as bits.
    """

    out: Array
    alternatives: tuple[Array, Array]
    may_flip: Array
    sets: Array


class RoundingWatch:
    """Record the operands of roundings in an exact run, and how far noisy runs move them."""

    def __init__(self, roundings: Collection[Rounding], rescaled: Collection[Op] = ()) -> None:
        """Watch `roundings`; operands of the casts `rescaled` may move by a whole step."""
        self._rescaled = rescaled
        self._exact: dict[Rounding, list[Array]] = {rounding: [] for rounding in roundings}
        self._distances: dict[Rounding, list[Array]] = {rounding: [] for rounding in roundings}
        self._reaches: dict[tuple[Rounding, int], Array] = {}
        self._sets: dict[tuple[Rounding, int], Array] = {}
        self._set_counts: dict[int, Array] = {}  # by the number of a tile's columns
        self._sides: dict[tuple[Rounding, int], _Sides] = {}  # of operands equal to the exact run's

    @property
    def ops(self) -> Collection[Op]:
        """The ops with recorded operands."""
        return dict.fromkeys(op for op, _ in self._exact)

    @property
    def has_moved(self) -> bool:
        """Whether noise moved the operand of any rounding."""
        return any(
            distance.any() for distances in self._distances.values() for distance in distances
        )

    def recording(self, rules: Rules) -> Rules:
        """Return the rules of the exact run."""

        def watch(rounding: Rounding, number: int, value: Array) -> None:
            del number
            self._exact[rounding].append(value)
            self._distances[rounding].append(np.zeros(value.shape))

        return self._watched(rules, watch)

    def measuring(self, rules: Rules) -> Rules:
        """Return the rules of a measured noisy run."""

        def watch(rounding: Rounding, number: int, value: Array) -> None:
            operands = self._exact[rounding]
            if number >= len(operands) or operands[number].shape != value.shape:
                return  # control flow diverged from the exact run
            if value is operands[number]:
                return
            exact = operands[number].astype(np.float64)
            distance = np.abs(value.astype(np.float64) - exact)
            self._distances[rounding][number] += np.where(np.isfinite(distance), distance, 0.0)

        return self._watched(rules, watch)

    def flipping(self, rules: Rules, run: int) -> Rules:
        """Return the rules of one of the runs with flipped roundings."""
        counts: dict[Op, int] = {}

        def cast(program: Program, op: arith.Cast, value: Array) -> Any:
            base = rules[arith.Cast]
            number = counts[op] = counts.get(op, -1) + 1
            if (op, 0) not in self._exact:
                return base(program, op, value)
            return self._flipped(
                (op, 0), number, value, lambda operand: np.asarray(base(program, op, operand)), run
            )

        def dot(program: Program, op: tile.Dot, a: Array, b: Array, acc: Array) -> Any:
            number = counts[op] = counts.get(op, -1) + 1
            a, b = (
                self._flipped((op, index), number, value, truncate_to_tf32, run)
                if (op, index) in self._exact
                else value
                for index, value in enumerate((a, b))
            )
            return rules[tile.Dot](program, op, a, b, acc)

        return {**rules, arith.Cast: cast, tile.Dot: dot}

    def _flipped(
        self,
        rounding: Rounding,
        number: int,
        value: Array,
        rounded: Callable[[Array], Array],
        run: int,
    ) -> Array:
        """Return a rounded operand, flipped where this run flips it."""
        distances = self._distances[rounding]
        if number >= len(distances) or distances[number].shape != value.shape:
            return rounded(value)
        is_exact = value is self._exact[rounding][number]
        sides = self._sides.get((rounding, number)) if is_exact else None
        if sides is None:
            sides = self._sides_of(rounding, number, value, rounded)
        first, second = sides.alternatives[:: -1 if run % 2 else 1]
        flipped = np.where(first != sides.out, first, second)
        is_flipped = sides.may_flip & (sides.sets >> run & 1 != 0)
        return np.where(is_flipped, flipped, sides.out).astype(sides.out.dtype)

    def _sides_of(
        self, rounding: Rounding, number: int, value: Array, rounded: Callable[[Array], Array]
    ) -> _Sides:
        """Return an operand rounded, and rounded after moving it up and down."""
        key = rounding, number
        exact = self._exact[rounding][number]
        if key not in self._reaches:
            reach = FACTOR * self._reach(exact, self._distances[rounding][number])
            op, _ = rounding
            if isinstance(op, arith.Cast) and op in self._rescaled:
                step = step_of(exact.astype(np.float64), op.dtype)
                reach = np.where(exact != 0, np.maximum(reach, step), reach)
            self._reaches[key] = reach
        reach = self._reaches[key]
        wide = value.astype(np.float64)
        out, up, down = (
            np.asarray(rounded(operand))
            for operand in (value, *((wide + s * reach).astype(value.dtype) for s in (1.0, -1.0)))
        )
        may_flip = ((up != out) | (down != out)) & ~(np.isnan(wide) | np.isnan(reach))
        position = [*self._exact].index(rounding)
        if key not in self._sets:
            columns = may_flip.shape[-1] if may_flip.ndim else 1
            counts = self._set_counts.setdefault(columns, np.zeros((NUM_SETS, columns), np.int32))
            self._sets[key] = sets_of_runs(may_flip, counts, seed=(position, number))
        sides = _Sides(out, (up, down), may_flip, self._sets[key])
        if value is exact:
            self._sides[key] = sides
        return sides

    def _reach(self, exact: Array, distance: Array) -> Array:
        """Return how far noise may move values: as measured, and by the tile's median ratio."""
        size = np.abs(exact.astype(np.float64))
        is_measured = (distance > 0) & np.isfinite(size) & (size > 0)
        relative = (
            float(np.median(distance[is_measured] / size[is_measured]))
            if is_measured.any()
            else 0.0
        )
        return np.where(distance > 0, np.maximum(distance, relative * size), 0.0)

    def _watched(self, rules: Rules, watch: Callable[[Rounding, int, Array], None]) -> Rules:
        counts: dict[Op, int] = {}

        def watched(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array) -> Any:
                number = counts[op] = counts.get(op, -1) + 1
                for index, value in enumerate(operands):
                    if (op, index) in self._exact:
                        watch((op, index), number, np.asarray(value))
                return base(program, op, *operands)

            return rule

        return {**rules, **{cls: watched(rules[cls]) for cls in (arith.Cast, tile.Dot)}}


NUM_SETS = 2**NUM_FLIPPED_RUNS - 1


def sets_of_runs(may_flip: Array, counts: Array, *, seed: tuple[int, int]) -> Array:
    """Return for each element the set of runs, as bits, that flip it.

    Elements of a row cycle through the sets. A dot may also sum along columns and combine the
    results of several casts. So each row begins at the rarest set of its columns;
    `counts`, (NUM_SETS, columns), counts the elements of each set and is updated.
    """
    rows = reshape(may_flip, (-1, counts.shape[1]))
    begins = np.random.default_rng(seed).integers(NUM_SETS, size=len(rows))
    for row in np.flatnonzero(rows.any(-1)):
        columns = np.flatnonzero(rows[row])
        turn = np.arange(len(columns))
        choices = (begins[row] + np.arange(NUM_SETS)) % NUM_SETS
        met = counts[(choices[:, None] + turn) % NUM_SETS, columns].sum(-1)
        begins[row] = choices[np.argmin(met)]
        counts[(begins[row] + turn) % NUM_SETS, columns] += 1
    turns = np.cumsum(rows, axis=-1) - 1 + begins[:, None]
    return reshape((1 + turns % NUM_SETS).astype(np.uint8), may_flip.shape)
