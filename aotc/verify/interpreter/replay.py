"""Interpret a kernel again without computing anew what has not changed.

A kernel is interpreted once exactly and then several times with noise in some of its ops. Most of
each further run is as it was: addresses, masks, what is loaded, and all that comes before the first
op that is off. So the first run records operands and results of each op without effects, and in the
later ones an op whose operands are the very arrays that it had then gives the very results.

A load reads what it read before if neither the first run nor this one, up to here, has written to
the buffers it reads. An op that made undefined values gives the same ones only under the same seed.

Invariant: a run that replays gives, to the bit, what it would give without.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from aotc.ir.core import Op
from aotc.ir.effects import Resource, Trait
from aotc.verify.arrays import Array
from aotc.verify.interpreter.program import Program, Rule, Rules

DEFAULT_MAX_BYTES = 1 << 28
"""How much a recording holds; what is run after that is not recorded."""
_MAX_COMPARED = 16  # elements, of scalars and descriptors

_Operands: TypeAlias = "tuple[Array | None, ...]"
_Outs: TypeAlias = "Array | tuple[Array, ...]"


@dataclass(frozen=True, slots=True)
class _Record:
    """Hold what an op was given and gave, which buffers it read, whether it made poison."""

    operands: _Operands
    outs: _Outs
    buffers: frozenset[int]
    made_poison: bool


@dataclass(slots=True)
class Recording:
    """Hold the ops of a run, by program and op, in the order in which they ran."""

    max_bytes: int = DEFAULT_MAX_BYTES
    num_replayed: int = 0
    """How many times an op was not computed again, in all runs so far."""
    _programs: list[dict[Op, list[_Record]]] = field(default_factory=list[dict[Op, list[_Record]]])
    _written: set[int] = field(default_factory=set[int])
    _num_bytes: int = 0

    def recording(self, rules: Rules) -> Rules:
        """Return the rules of the first run."""
        current: list[Program] = []
        nested = _Nesting()

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                if nested.depth or self._num_bytes > self.max_bytes:
                    return base(program, op, *operands)
                if not current or current[-1] is not program:
                    current[:] = [program]
                    self._programs.append({})
                    self._written = program.memory.buffers_written
                poison, memory = program.poison, program.memory
                had_poison, poison.was_asked = poison.was_asked, False
                memory.buffers_read.clear()
                with nested:
                    outs = _settled(base(program, op, *operands))
                read, made_poison = frozenset(memory.buffers_read), poison.was_asked
                poison.was_asked |= had_poison
                record = _Record(operands, outs, read, made_poison)
                self._programs[-1].setdefault(op, []).append(record)
                self._num_bytes += _size_of(outs)
                return outs

            return rule

        return _wrapping(rules, wrapped)

    def replaying(self, rules: Rules, live: Collection[Op], *, same_poison: bool) -> Rules:
        """Return the rules of a later run, in which `live` ops are computed in any case.

        All others are to have the rules of the first run. `same_poison` says whether undefined values
        are made from the seed of that run.
        """
        is_live = dict.fromkeys(live)
        current: list[Program] = []
        counts: dict[Op, int] = {}
        programs = iter(self._programs)
        nothing: dict[Op, list[_Record]] = {}
        known = nothing
        nested = _Nesting()

        def wrapped(base: Rule) -> Rule:
            def rule(program: Program, op: Op, *operands: Array | None) -> Any:
                nonlocal known
                if nested.depth:
                    return base(program, op, *operands)
                if not current or current[-1] is not program:
                    current[:] = [program]
                    counts.clear()
                    known = next(programs, nothing)
                number = counts.get(op, 0)
                counts[op] = number + 1
                records = known.get(op, ())
                if number >= len(records):
                    with nested:
                        return base(program, op, *operands)
                record = records[number]
                if (
                    op not in is_live
                    and (same_poison or not record.made_poison)
                    and all(map(_is_same, operands, record.operands))
                    and not (record.buffers and self._is_written(record.buffers, program))
                ):
                    self.num_replayed += 1
                    return record.outs
                with nested:
                    outs = _settled(base(program, op, *operands))
                # What did not move after all is what it was: ops that use it need not run.
                return record.outs if _are_equal(outs, record.outs) else outs

            return rule

        return _wrapping(rules, wrapped)

    def _is_written(self, buffers: frozenset[int], program: Program) -> bool:
        written = program.memory.buffers_written
        return not (buffers.isdisjoint(self._written) and buffers.isdisjoint(written))


class _Nesting:
    """Tell ops of combine blocks, which belong to the op around them, from others."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


def _wrapping(rules: Rules, wrapped: Any) -> Rules:
    return {cls: wrapped(rule) if _is_replayable(cls) else rule for cls, rule in rules.items()}


def _is_replayable(cls: type[Op]) -> bool:
    """Return whether what ops of a class give depends on operands, and on global memory, alone."""
    if cls.traits & {Trait.CONTROL_FLOW, Trait.TERMINATOR}:
        return False
    return all(e.access == "read" and e.resource is Resource.GLOBAL for e in cls.effects)


def _settled(outs: Any) -> Any:
    """Return results as arrays, so that those that are bound are those that are recorded."""
    return np.asarray(outs) if hasattr(outs, "dtype") else tuple(outs)


def _size_of(outs: _Outs) -> int:
    each = outs if isinstance(outs, tuple) else (outs,)
    return sum(out.nbytes for out in each if 0 not in out.strides)


def _is_same(a: Array | None, b: Array | None) -> bool:
    """Return whether an operand is the array that it was, or a small one of the same bits.

    Arguments and induction variables are made again in each run.
    """
    if a is b:
        return True
    if a is None or b is None or a.size > _MAX_COMPARED or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.tobytes() == b.tobytes()


def _are_equal(outs: _Outs, known: _Outs) -> bool:
    if isinstance(outs, tuple) or isinstance(known, tuple):
        return False
    if outs.shape != known.shape or outs.dtype != known.dtype:
        return False
    if outs.size and outs.item(0) != known.item(0):
        return False  # as NaN may be, which then is computed with again
    return outs.tobytes() == known.tobytes()
