"""Interpret a kernel again, and reuse unchanged results.

A kernel is interpreted once exactly and then several times with noise in some ops. Most of each
further run is unchanged: addresses, masks, loads, and all ops before the first noisy one. So
the first run records the operands and results of each op without effects. In later runs an op
with the same array objects as operands returns the recorded results.

Ops that no later run changes need no lookup at all: in a block whose `moving` ops are known,
the values of all others are bound at once, and these ops do not run (`Steady`).

A load is replayed only if neither the first run nor the current one has written to the buffers
it reads. An op with undefined values is replayed only under the same seed.

Invariant: a run with replay gives the same bits as one without.
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
"""The size of a recording; later ops are not recorded and run again each time.

A persistent matmul on 132 SMs takes half of it.
"""
_MAX_COMPARED = 16  # elements, of scalars and descriptors

_Operands: TypeAlias = "tuple[Array | None, ...]"
_Outs: TypeAlias = "Array | tuple[Array, ...]"


def _no_program() -> Program | None:
    """Return None, like a weak reference to a dead program."""
    return None


@dataclass(slots=True)
class _Record:
    """The operands and results of one op, the buffers it read, and whether it made poison.

    `derived` caches a value computed from these.
    """

    operands: _Operands
    outs: _Outs
    buffers: frozenset[int]
    made_poison: bool
    derived: tuple[Array | None, ...] | None = None


@dataclass(slots=True)
class Recording:
    """The ops of a run, by program and op, in the order in which they ran."""

    max_bytes: int = DEFAULT_MAX_BYTES
    num_replayed: int = 0
    """Number of replayed ops in all runs so far."""
    kinds: Collection[type[Op]] = ()
    """The classes of ops in the kernel; empty for all."""
    _programs: list[dict[Op, list[_Record]]] = field(default_factory=list[dict[Op, list[_Record]]])
    _live: tuple[Op, _Record] | None = None  # the record of the op under computation
    _written: set[int] = field(default_factory=set[int])
    _num_bytes: int = 0

    def recording(self, rules: Rules) -> Rules:
        """Return the rules of the first run."""
        # Weak, because a program refers to its rules: a cycle would keep all its values alive.
        current: Callable[[], Program | None] = _no_program
        depth = 0  # of ops in combine blocks, which belong to the enclosing op

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
        """Return the rules of a later run, in which `live` ops are always computed.

        All others must have the rules of the first run. `same_poison` tells whether undefined
        values have that run's seed.
        """
        is_live = dict.fromkeys(live)
        current: Callable[[], Program | None] = _no_program
        programs = iter(self._programs)
        unused_records: dict[Op, Iterator[_Record]] = {}
        no_program: dict[Op, list[_Record]] = {}
        no_records: Iterator[_Record] = iter(())
        depth = 0

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                nonlocal current, depth, unused_records
                if depth:
                    return base(program, op, *operands)
                if current() is not program:
                    current = ref(program)
                    recorded = next(programs, no_program)
                    unused_records = {
                        record_op: iter(records) for record_op, records in recorded.items()
                    }
                record = next(unused_records.get(op, no_records), None)
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
                # Unchanged after all: return the recorded arrays, so users need not run.
                outs = _settled(outs)
                return record.outs if _are_equal(outs, record.outs) else outs

            return rule

        return _wrapping(rules, wrapped, self.kinds)

    def recalling(self, rules: Rules, kinds: Collection[type[Op]]) -> Rules:
        """Return rules to give live ops of some classes their recorded results, if unchanged.

        The rules of a later run call them, with the recorded operands or others.
        """

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                if self._live is not None:
                    live, record = self._live
                    if live is op and all(map(is_, operands, record.operands)):
                        return record.outs
                return base(program, op, *operands)

            return rule

        return {**rules, **{cls: wrapped(rules[cls]) for cls in kinds}}

    def derived(
        self, outs: Array, make: Callable[[], tuple[Array | None, ...]]
    ) -> tuple[Array | None, ...]:
        """Return the result of `make`, a function of a live op's operands and results `outs`.

        If these are as recorded, it is called once for all runs; a rule may derive one such
        value.
        """
        record = None if self._live is None else self._live[1]
        if record is None or record.outs is not outs:
            return make()
        if record.derived is not None:
            return record.derived
        arrays = make()
        if self._num_bytes <= self.max_bytes:
            record.derived = arrays
            self._num_bytes += sum(array.nbytes for array in arrays if array is not None)
        return arrays

    def unsteady(self) -> list[Op]:
        """Return the ops that may give other results for the same operands in later runs.

        They made undefined values, or read from written buffers.
        """
        return [
            op
            for program in self._programs
            for op, records in program.items()
            if any(
                record.made_poison or not record.buffers.isdisjoint(self._written)
                for record in records
            )
        ]

    def steady(self, moving: Collection[Op]) -> Steady:
        """Return the reusable results for later runs, given the `moving` ops."""
        return Steady(self._programs, moving)

    def _is_written(self, buffers: frozenset[int], program: Program) -> bool:
        written = program.memory.buffers_written
        return not (buffers.isdisjoint(self._written) and buffers.isdisjoint(written))


class Steady:
    """The results of unchanging ops, by program, block and execution.

    A block with a different record, or none, runs as usual.
    """

    def __init__(self, programs: list[dict[Op, list[_Record]]], moving: Collection[Op]) -> None:
        self._programs = programs
        self._moving = dict.fromkeys(moving)
        self._lines: dict[
            Block, tuple[list[Line], list[Line]]
        ] = {}  # lines to run, and lines to skip
        self._known: dict[tuple[int, Block], list[dict[Value | None, Any]]] = {}

    @property
    def num_programs(self) -> int:
        """Number of recorded programs."""
        return len(self._programs)

    def of(self, number: int) -> KnownValues:
        """Return the lookup of recorded values for the program of a number, in recorded order.

        Call it once for each execution of a block.
        """
        counts: dict[Block, int] = {}

        def next_execution(
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

        return next_execution

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
        if len({len(op_records) for op_records in records}) != 1:
            return []
        executions: list[dict[Value | None, Any]] = []
        for execution in zip(*records, strict=True):
            values: dict[Value | None, Any] = {}
            for (_, _, _, results), record in zip(steady, execution, strict=True):
                outs = _parts_of(record.outs)
                values.update((value, out) for (value, _), out in zip(results, outs, strict=True))
            executions.append(values)
        return executions


def _wrapping(rules: Rules, wrapped: Any, kinds: Collection[type[Op]]) -> Rules:
    chosen = [cls for cls in kinds or rules if cls in rules and _is_replayable(cls)]
    return {**rules, **{cls: wrapped(rules[cls]) for cls in chosen}}


@cache
def _is_replayable(cls: type[Op]) -> bool:
    """Return whether results of an op class depend only on operands and global memory."""
    if cls.traits & {Trait.CONTROL_FLOW, Trait.TERMINATOR}:
        return False
    return all(e.access == "read" and e.resource is Resource.GLOBAL for e in cls.effects)


def _settled(outs: Any) -> Any:
    """Convert results to arrays: the bound ones are the recorded ones."""
    return np.asarray(outs) if hasattr(outs, "dtype") else tuple(outs)


def _parts_of(outs: _Outs) -> tuple[Array, ...]:
    return outs if isinstance(outs, tuple) else (outs,)


def _size_of(outs: _Outs) -> int:
    return sum(out.nbytes for out in _parts_of(outs) if 0 not in out.strides)


def _are_same(operands: _Operands, recorded: _Operands) -> bool:
    """Return whether operands are the recorded arrays, or small ones with the same bits.

    Arguments and induction variables are new objects in each run.
    """
    for a, b in zip(operands, recorded, strict=True):
        if a is b:
            continue
        if a is None or b is None or a.size > _MAX_COMPARED:
            return False
        if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
            return False
    return True


def _are_equal(outs: _Outs, recorded: _Outs) -> bool:
    if isinstance(outs, tuple) or isinstance(recorded, tuple):
        return False
    if outs.shape != recorded.shape or outs.dtype != recorded.dtype:
        return False
    if outs.size and outs.item(0) != recorded.item(0):
        return False  # NaN differs from itself, and is computed again
    return outs.tobytes() == recorded.tobytes()
