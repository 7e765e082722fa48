"""Interpret warps of different roles, in turn.

A group of consumers runs until it waits for a full stage, then the next group, then the
producer until it waits for an empty one, and so on. So each role lags as far behind the others
as possible, which exposes a stage read late or written early. All are generators, and yield at
waits. Loops and branches are stepped through here; any other op has its usual rule.

Invariant: the schedule depends on the program alone, never on the threads of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.dialects import cluster, grid, mbarrier, roles, scf
from aotc.verify.arrays import Array
from aotc.verify.interpreter import mbarriers
from aotc.verify.interpreter.program import Program, Rule, scalar


@dataclass(frozen=True)
class Wait:
    """A wait for the end of a phase, with its mbarrier."""

    op: mbarrier.MbarrierWait
    barrier: mbarriers.Mbarrier
    parity: int

    @property
    def is_over(self) -> bool:
        return self.barrier.has_ended(self.parity)


@dataclass(frozen=True)
class ClusterWait:
    """A wait for all CTAs of the cluster."""

    op: Op


@dataclass(frozen=True)
class GridWait:
    """A wait for all programs of the grid."""

    op: grid.GridBarrier


COLLECTIVES = (
    grid.ClusterReduce,
    cluster.ClusterPermute,
    cluster.ClusterRead,
    cluster.ClusterTranspose,
)
"""Exchanges of all CTAs of a cluster, each with the others' posted values."""

Steps = Generator[Wait | ClusterWait | GridWait, None, list[Array]]


def _specialize(program: Program, op: roles.Specialize) -> None:
    """Run all roles to their ends. Raises: InterpretError if they wait for each other."""
    kernel = None if op.block is None else op.block.parent
    assert isinstance(kernel, Kernel)
    groups = [
        _Role(program.beside(has_roles=True, group=number), op.consumers)
        for number in range(kernel.num_consumer_groups)
    ]
    producer = _Role(program.beside(is_producer=True), op.producer)
    first = op.producer.first
    makers = [first.body] if isinstance(first, roles.Beside) else []
    issuing = [producer, *(_Role(program.beside(is_producer=True), maker) for maker in makers)]
    everybody = [*groups, *issuing]
    while any(role.may_run for role in everybody):
        for role in everybody:
            if role not in issuing:
                program.shared.run_group(role.program.group, kernel.num_warps)
            role.run()
    program.shared.run_group(0)
    for role in everybody:
        if role.wait is not None:
            reason = "the consumers have come to their end"
            if role not in issuing:
                phases = f"{role.wait.barrier.phases} phases have ended"
                reason = f"{phases}, and the producer {producer.place}"
            raise program.error(role.wait.op, f"waits for ever: {reason}")


class _Role:
    """The progress of one role: a group of consumers, or the producer."""

    def __init__(self, program: Program, block: Block) -> None:
        self.program = program
        self.wait: Wait | None = None
        self._steps = steps_of(program, block, ())
        self._is_done = False

    @property
    def may_run(self) -> bool:
        """Whether there are steps left, and nothing to wait for."""
        return not self._is_done and (self.wait is None or self.wait.is_over)

    def run(self) -> None:
        """Run to the next wait, unless already waiting."""
        if self.may_run:
            wait = next(self._steps, None)
            # CTAs with roles exchange nothing, and wait for no others.
            assert not isinstance(wait, ClusterWait | GridWait)
            self.wait = wait
            self._is_done = self.wait is None

    @property
    def place(self) -> str:
        """The role's location, for another role's error."""
        return "has come to its end" if self.wait is None else f"waits at {self.wait.op.loc}"


# ---- control flow -----------------------------------------------------------------------------


def steps_of(program: Program, block: Block, args: Sequence[Array]) -> Steps:
    """Run a block, and yield each pending wait, for a phase, the cluster or the grid."""
    program.bind(block.args, args)
    for op in block:
        operands = [operand for operand in program.operands(op) if operand is not None]
        if op.terminator:
            return operands
        if isinstance(op, mbarrier.MbarrierWait):
            barrier = mbarriers.find(program, op, operands[0])
            wait = Wait(op, barrier, scalar(operands[1]))
            while not wait.is_over:
                yield wait
        if program.peers and isinstance(op, grid.ClusterBarrier | grid.ClusterWait):
            yield ClusterWait(op)
        if program.peers and isinstance(op, COLLECTIVES):
            program.posted = operands
            yield ClusterWait(op)
            program.run_op(op)
            yield ClusterWait(op)  # until the others have read the posted values
            continue
        steps = _STEPS.get(type(op))
        if isinstance(op, grid.GridBarrier):
            program.run_op(op)
            yield GridWait(op)
        elif steps is None:
            program.run_op(op)
        else:
            results = yield from steps(program, op, *operands)
            program.bind(op.results, results)
    raise AssertionError("a block has no terminator")


def _for(
    program: Program, op: scf.For, lower: Array, upper: Array, step: Array, *init: Array
) -> Steps:
    carried = list(init)
    for index in range(scalar(lower), scalar(upper), scalar(step)):
        args = [np.array(index, lower.dtype), *carried]
        carried = yield from steps_of(program, op.body, args)
    return carried


def _if(program: Program, op: scf.If, condition: Array) -> Steps:
    return (yield from steps_of(program, op.then if scalar(condition) else op.orelse, ()))


def _while(program: Program, op: scf.While, *init: Array) -> Steps:
    carried = list(init)
    while True:
        proceed, *passed = yield from steps_of(program, op.before, carried)
        if not scalar(proceed):
            return passed
        carried = yield from steps_of(program, op.after, passed)


_STEPS: dict[type[Op], Callable[..., Generator[Any, None, list[Array]]]] = {
    scf.For: _for,
    scf.If: _if,
    scf.While: _while,
}


def _beside(program: Program, op: roles.Beside) -> None:
    """Skip the block: another warp runs it."""
    del program, op


def _consumer_group(program: Program, op: roles.ConsumerGroup) -> Array:
    del op
    return np.array(program.group, np.int32)


ROLE_RULES: dict[type[Op], Rule] = {
    roles.Specialize: _specialize,
    roles.Beside: _beside,
    roles.ConsumerGroup: _consumer_group,
}
