"""Interpret a kernel again without computing anew what has not changed.

A kernel is interpreted once exactly and then several times with noise in some of its ops. Most of
each further run is as it was: addresses, masks, what is loaded, and all that comes before the first
op that is off. So the first run records operands and results of each op without effects, and in the
later ones an op whose operands are the very arrays that it had then gives the very results.

What no later run changes need not even be looked at: of a block whose `moving` ops are known, the values
of all others are bound at once, and the others do not run (`Steady`).

A load reads what it read before if neither the first run nor this one, up to here, has written to
the buffers it reads. An op that made undefined values gives the same ones only under the same seed.

Invariant: a run that replays gives, to the bit, what it would give without.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from operator import is_
from typing import Any, TypeAlias
from weakref import ref

import numpy as np

from aotc.ir.core import Block, Op, Value
from aotc.ir.effects import Resource, Trait
from aotc.verify.arrays import Array
from aotc.verify.interpreter.program import KnownValues, Line, Program, Rule, Rules

DEFAULT_MAX_BYTES = 1 << 30
"""How much a recording holds; what is run after that is not recorded, and computed anew each time.

A persistent matmul on 132 SMs takes half of it.
"""
_MAX_COMPARED = 16  # elements, of scalars and descriptors

_Operands: TypeAlias = "tuple[Array | None, ...]"
_Outs: TypeAlias = "Array | tuple[Array, ...]"


def _nobody() -> Program | None:
    """Return what a reference to no program gives."""
    return None


@dataclass(slots=True)
class _Record:
    """Hold what an op was given and gave, which buffers it read, whether it made poison.

    `derived` follows from that, once somebody has asked for it.
    """

    operands: _Operands
    outs: _Outs
    buffers: frozenset[int]
    made_poison: bool
    derived: tuple[Array | None, ...] | None = None


@dataclass(slots=True)
class Recording:
    """Hold the ops of a run, by program and op, in the order in which they ran."""

    max_bytes: int = DEFAULT_MAX_BYTES
    num_replayed: int = 0
    """How many times an op was not computed again, in all runs so far."""
    kinds: Collection[type[Op]] = ()
    """The classes of ops that a kernel has; empty for all."""
    _programs: list[dict[Op, list[_Record]]] = field(default_factory=list[dict[Op, list[_Record]]])
    _live: tuple[Op, _Record] | None = None  # what is computed again, as it was recorded
    _written: set[int] = field(default_factory=set[int])
    _num_bytes: int = 0

    def recording(self, rules: Rules) -> Rules:
        """Return the rules of the first run."""
        # A program has its rules, and a cycle would keep all its values.
        current: Callable[[], Program | None] = _nobody
        depth = 0  # of ops of combine blocks, which belong to the op around them

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                nonlocal current, depth
                if depth or self._num_bytes > self.max_bytes:
                    return base(program, op, *operands)
                if current() is not program:
                    current = ref(program)
                    self._programs.append({})
                    self._written = program.memory.buffers_written
                poison, memory = program.poison, program.memory
                had_poison, poison.was_asked = poison.was_asked, False
                memory.buffers_read.clear()
                depth = 1
                try:
                    outs = _settled(base(program, op, *operands))
                finally:
                    depth = 0
                read, made_poison = frozenset(memory.buffers_read), poison.was_asked
                poison.was_asked |= had_poison
                record = _Record(operands, outs, read, made_poison)
                self._programs[-1].setdefault(op, []).append(record)
                self._num_bytes += _size_of(outs)
                return outs

            return rule

        return _wrapping(rules, wrapped, self.kinds)

    def replaying(self, rules: Rules, live: Collection[Op], *, same_poison: bool) -> Rules:
        """Return the rules of a later run, in which `live` ops are computed in any case.

        All others are to have the rules of the first run. `same_poison` says whether undefined values
        are made from the seed of that run.
        """
        is_live = dict.fromkeys(live)
        current: Callable[[], Program | None] = _nobody
        programs = iter(self._programs)
        known: dict[Op, Iterator[_Record]] = {}
        nobody: dict[Op, list[_Record]] = {}
        nothing: Iterator[_Record] = iter(())
        depth = 0

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                nonlocal current, depth, known
                if depth:
                    return base(program, op, *operands)
                if current() is not program:
                    current = ref(program)
                    recorded = next(programs, nobody)
                    known = {each: iter(records) for each, records in recorded.items()}
                record = next(known.get(op, nothing), None)
                if record is not None and (
                    (
                        all(map(is_, operands, record.operands))
                        or _are_same(operands, record.operands)
                    )
                    and (same_poison or not record.made_poison)
                    and not (record.buffers and self._is_written(record.buffers, program))
                ):
                    if op not in is_live:
                        self.num_replayed += 1
                        return record.outs
                    self._live = op, record
                depth = 1
                try:
                    outs = base(program, op, *operands)
                finally:
                    depth = 0
                    self._live = None
                if record is None:
                    return outs
                # What did not move after all is what it was: ops that use it need not run.
                outs = _settled(outs)
                return record.outs if _are_equal(outs, record.outs) else outs

            return rule

        return _wrapping(rules, wrapped, self.kinds)

    def recalling(self, rules: Rules, kinds: Collection[type[Op]]) -> Rules:
        """Return rules for live ops of some classes that give what is recorded where it is the same.

        They are for what the rules of a later run call, with operands as they were or others.
        """

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                if self._live is not None:
                    live, known = self._live
                    if live is op and all(map(is_, operands, known.operands)):
                        return known.outs
                return base(program, op, *operands)

            return rule

        return {**rules, **{cls: wrapped(rules[cls]) for cls in kinds}}

    def derived(
        self, outs: Array, make: Callable[[], tuple[Array | None, ...]]
    ) -> tuple[Array | None, ...]:
        """Return what `make` gives of what a live op was given and gives: `outs`.

        Where that is as recorded it is made once for all runs; a rule may ask for one such thing.
        """
        record = None if self._live is None else self._live[1]
        if record is None or record.outs is not outs:
            return make()
        if record.derived is not None:
            return record.derived
        made = make()
        if self._num_bytes <= self.max_bytes:
            record.derived = made
            self._num_bytes += sum(each.nbytes for each in made if each is not None)
        return made

    def unsteady(self) -> list[Op]:
        """Return the ops that may give other results for the same operands in later runs.

        They made undefined values, or have read from buffers that were written.
        """
        return [
            op
            for program in self._programs
            for op, records in program.items()
            if any(
                each.made_poison or not each.buffers.isdisjoint(self._written) for each in records
            )
        ]

    def steady(self, moving: Collection[Op]) -> Steady:
        """Return what later runs need not compute, whose results may change with `moving` ops alone."""
        return Steady(self._programs, moving)

    def _is_written(self, buffers: frozenset[int], program: Program) -> bool:
        written = program.memory.buffers_written
        return not (buffers.isdisjoint(self._written) and buffers.isdisjoint(written))


class Steady:
    """Hold what the ops of blocks that no run changes gave, by program, block and execution.

    A block in which something else was recorded, or nothing, runs as ever.
    """

    def __init__(self, programs: list[dict[Op, list[_Record]]], moving: Collection[Op]) -> None:
        self._programs = programs
        self._moving = dict.fromkeys(moving)
        self._lines: dict[Block, tuple[list[Line], list[Line]]] = {}  # that run, and that do not
        self._known: dict[tuple[int, Block], list[dict[Value | None, Any]]] = {}

    @property
    def num_programs(self) -> int:
        """How many programs were recorded."""
        return len(self._programs)

    def of(self, number: int) -> KnownValues:
        """Return what is known in the program of a number, counted in the order of the first run.

        It is asked once for each execution of a block.
        """
        counts: dict[Block, int] = {}

        def known(
            block: Block, lines: list[Line]
        ) -> tuple[dict[Value | None, Any], list[Line]] | None:
            if (number, block) not in self._known:
                self._known[number, block] = self._executions(number, block, lines)
            executions = self._known[number, block]
            count = counts.get(block, 0)
            counts[block] = count + 1
            if count >= len(executions):
                return None
            return executions[count], self._lines[block][0]

        return known

    def _executions(
        self, number: int, block: Block, lines: list[Line]
    ) -> list[dict[Value | None, Any]]:
        if block not in self._lines:
            is_steady = [_is_replayable(line[1]) and line[0] not in self._moving for line in lines]
            self._lines[block] = (
                [line for line, steady in zip(lines, is_steady, strict=True) if not steady],
                [line for line, steady in zip(lines, is_steady, strict=True) if steady],
            )
        steady = self._lines[block][1]
        records = [self._programs[number].get(line[0], []) for line in steady]
        if len({len(each) for each in records}) != 1:
            return []
        found: list[dict[Value | None, Any]] = []
        for execution in zip(*records, strict=True):
            values: dict[Value | None, Any] = {}
            for (_, _, _, results), record in zip(steady, execution, strict=True):
                outs = _parts_of(record.outs)
                values.update((value, out) for (value, _), out in zip(results, outs, strict=True))
            found.append(values)
        return found


def _wrapping(rules: Rules, wrapped: Any, kinds: Collection[type[Op]]) -> Rules:
    chosen = [cls for cls in kinds or rules if cls in rules and _is_replayable(cls)]
    return {**rules, **{cls: wrapped(rules[cls]) for cls in chosen}}


@cache
def _is_replayable(cls: type[Op]) -> bool:
    """Return whether what ops of a class give depends on operands, and on global memory, alone."""
    if cls.traits & {Trait.CONTROL_FLOW, Trait.TERMINATOR}:
        return False
    return all(e.access == "read" and e.resource is Resource.GLOBAL for e in cls.effects)


def _settled(outs: Any) -> Any:
    """Return results as arrays, so that those that are bound are those that are recorded."""
    return np.asarray(outs) if hasattr(outs, "dtype") else tuple(outs)


def _parts_of(outs: _Outs) -> tuple[Array, ...]:
    return outs if isinstance(outs, tuple) else (outs,)


def _size_of(outs: _Outs) -> int:
    return sum(out.nbytes for out in _parts_of(outs) if 0 not in out.strides)


def _are_same(operands: _Operands, known: _Operands) -> bool:
    """Return whether operands are the arrays that they were, or small ones of the same bits.

    Arguments and induction variables are made again in each run.
    """
    for a, b in zip(operands, known, strict=True):
        if a is b:
            continue
        if a is None or b is None or a.size > _MAX_COMPARED:
            return False
        if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
            return False
    return True


def _are_equal(outs: _Outs, known: _Outs) -> bool:
    if isinstance(outs, tuple) or isinstance(known, tuple):
        return False
    if outs.shape != known.shape or outs.dtype != known.dtype:
        return False
    if outs.size and outs.item(0) != known.item(0):
        return False  # as NaN may be, which then is computed with again
    return outs.tobytes() == known.tobytes()
