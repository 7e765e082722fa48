"""Warps of different roles, while a kernel is interpreted: they take turns.

The consumers run until they wait for what has not been brought, then the producer until it waits
for room, and so on: each is as far behind the other as it can be, which shows a slot that is read
late or written early. The producer is a generator, which yields where it has to wait; its loops and
branches are stepped through here, any other op of it has the rule that it has everywhere.

Invariant: what the two do depends on the program alone, never on the threads of this process.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from aotc.ir.core import Block, Op
from aotc.ir.dialects import roles, scf, tma
from aotc.verify import mbarriers
from aotc.verify.numerics import Array
from aotc.verify.program import Program, Rule, scalar

_Steps = Generator["tma.MbarrierWait", None, list[Array]]


def _specialize(program: Program, op: roles.Specialize) -> None:
    """Run both roles to their ends. Raises: InterpretError if they wait for each other."""
    producer = _Producer(program, op.producer)
    program.has_roles, program.run_producer = True, producer.run
    program.run_block(op.consumers, ())
    producer.run()
    program.has_roles, program.run_producer = False, str
    if producer.waits_at is not None:
        wait = producer.waits_at
        raise program.error(wait, "waits for ever: the consumers have come to their end")


class _Producer:
    """Hold where the producer of a program is."""

    def __init__(self, program: Program, block: Block) -> None:
        self.program = program
        self.waits_at: tma.MbarrierWait | None = None
        self._steps = _steps_of(program, block, ())

    def run(self) -> str:
        """Run until the producer has to wait; say where it is, for an error of the others'."""
        program = self.program
        program.is_producer, program.run_producer = True, str
        try:
            self.waits_at = next(self._steps, None)
        finally:
            program.is_producer, program.run_producer = False, self.run
        wait = self.waits_at
        return ", and the producer " + (
            "has come to its end" if wait is None else f"waits at {wait.loc}"
        )


# ---- the producer's control flow --------------------------------------------------------------


def _steps_of(program: Program, block: Block, args: Sequence[Array]) -> _Steps:
    """Run a block, and yield each wait as long as its phase has not ended."""
    program.bind(block.args, args)
    for op in block:
        operands = [each for each in program.operands(op) if each is not None]
        if op.terminator:
            return operands
        if isinstance(op, tma.MbarrierWait):
            state = mbarriers.find(program, op, operands[0])
            while not state.has_ended(scalar(operands[1])):
                yield op
        steps = _STEPS.get(type(op))
        if steps is None:
            program.run_op(op)
        else:
            results = yield from steps(program, op, *operands)
            program.bind(op.results, results)
    raise AssertionError("a block has no terminator")


def _for(
    program: Program, op: scf.For, lower: Array, upper: Array, step: Array, *init: Array
) -> _Steps:
    carried = list(init)
    for index in range(scalar(lower), scalar(upper), scalar(step)):
        args = [np.array(index, lower.dtype), *carried]
        carried = yield from _steps_of(program, op.body, args)
    return carried


def _if(program: Program, op: scf.If, condition: Array) -> _Steps:
    return (yield from _steps_of(program, op.then if scalar(condition) else op.orelse, ()))


def _while(program: Program, op: scf.While, *init: Array) -> _Steps:
    carried = list(init)
    while True:
        proceed, *passed = yield from _steps_of(program, op.before, carried)
        if not scalar(proceed):
            return passed
        carried = yield from _steps_of(program, op.after, passed)


_STEPS: dict[type[Op], Callable[..., Generator[Any, None, list[Array]]]] = {
    scf.For: _for,
    scf.If: _if,
    scf.While: _while,
}

ROLE_RULES: dict[type[Op], Rule] = {roles.Specialize: _specialize}
