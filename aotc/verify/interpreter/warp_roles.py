"""Warps of different roles, while a kernel is interpreted: they take turns.

A group of consumers runs until it waits for what has not been brought, then the next one, then the
producer until it waits for room, and so on: each is as far behind the others as it can be, which
shows a stage that is read late or written early. All are generators, which yield where they have to
wait; loops and branches are stepped through here, any other op has the rule that it has everywhere.

Invariant: what they do depends on the program alone, never on the threads of this process.
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
    """Name a wait for the end of a phase, and the mbarrier."""

    op: mbarrier.MbarrierWait
    barrier: mbarriers.Mbarrier
    parity: int

    @property
    def is_over(self) -> bool:
        return self.barrier.has_ended(self.parity)


@dataclass(frozen=True)
class ClusterWait:
    """Name a wait for all CTAs of the cluster."""

    op: Op


@dataclass(frozen=True)
class GridWait:
    """Name a wait for all programs of the grid."""

    op: grid.GridBarrier


COLLECTIVES = (
    grid.ClusterReduce,
    cluster.ClusterPermute,
    cluster.ClusterRead,
    cluster.ClusterTranspose,
)
"""What all CTAs of a cluster do together, each with what the others post."""

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
    issuing = [producer, *(_Role(program.beside(is_producer=True), each) for each in makers)]
    everybody = [*groups, *issuing]
    while any(role.may_run for role in everybody):
        for role in everybody:
            if role not in issuing:
                program.shared.run_group(role.program.group, kernel.num_warps)
            role.run()
    program.shared.run_group(0)
    for role in everybody:
        if role.wait is not None:
            others = "the consumers have come to their end"
            if role not in issuing:
                phases = f"{role.wait.barrier.phases} phases have ended"
                others = f"{phases}, and the producer {producer.place}"
            raise program.error(role.wait.op, f"waits for ever: {others}")


class _Role:
    """Hold where a group of consumers or the producer of a program is."""

    def __init__(self, program: Program, block: Block) -> None:
        self.program = program
        self.wait: Wait | None = None
        self._steps = steps_of(program, block, ())
        self._is_done = False

    @property
    def may_run(self) -> bool:
        """Whether there is more to do, and nothing to wait for."""
        return not self._is_done and (self.wait is None or self.wait.is_over)

    def run(self) -> None:
        """Run until there is something to wait for, if there is not already."""
        if self.may_run:
            wait = next(self._steps, None)
            # CTAs with roles exchange nothing, and wait for no others.
            assert not isinstance(wait, ClusterWait | GridWait)
            self.wait = wait
            self._is_done = self.wait is None

    @property
    def place(self) -> str:
        """Where the role is, for an error of another one."""
        return "has come to its end" if self.wait is None else f"waits at {self.wait.op.loc}"


# ---- control flow -----------------------------------------------------------------------------


def steps_of(program: Program, block: Block, args: Sequence[Array]) -> Steps:
    """Run a block, and yield each wait that is not over, and each for the cluster."""
    program.bind(block.args, args)
    for op in block:
        operands = [each for each in program.operands(op) if each is not None]
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
            yield ClusterWait(op)  # until the others have read what was posted
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
    """Pass over what another warp runs."""
    del program, op


def _consumer_group(program: Program, op: roles.ConsumerGroup) -> Array:
    del op
    return np.array(program.group, np.int32)


ROLE_RULES: dict[type[Op], Rule] = {
    roles.Specialize: _specialize,
    roles.Beside: _beside,
    roles.ConsumerGroup: _consumer_group,
}
