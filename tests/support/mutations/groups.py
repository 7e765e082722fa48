"""Bugs in consumer groups on alternate tiles: buffers and turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aotc.backend import nvvm
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, mbarrier, roles, scf
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1
from tests.support.mutations.plant import (
    Mutation,
    Plant,
    after_pass,
    each,
    found,
    in_llvm,
    wrapping,
)

_LAST = "insert_barriers"


def _consumers(kernel: Kernel, cls: type[Op]) -> Iterator[Any]:
    """Yield the consumers' ops of a class."""
    block = found(kernel, roles.Specialize)[0].consumers
    return (op for op in block.walk() if isinstance(op, cls))


def _branch(kernel: Kernel) -> scf.If:
    """Return the branch of a group's turns."""
    group = found(kernel, roles.ConsumerGroup)[0].out
    for branch in _consumers(kernel, scf.If):
        condition = branch.condition.op
        if isinstance(condition, arith.Compare) and condition.rhs is group:
            assert isinstance(branch, scf.If)
            return branch
    raise AssertionError("no branch depends on the group")


def _own(alloc: gpu.SharedAlloc) -> None:
    alloc.group_bytes = 0


def _keep_the_order(kernel: Kernel) -> None:
    """Leave out the signal to the next group to multiply."""
    order = _order(kernel)
    for arrive in list(_consumers(kernel, mbarrier.MbarrierArrive)):
        if _ring(arrive.barrier) is order:
            arrive.erase()


def _take_no_order(kernel: Kernel) -> None:
    order = _order(kernel)
    for wait in list(_consumers(kernel, mbarrier.MbarrierWait)):
        if _ring(wait.barrier) is order:
            wait.erase()


def _order(kernel: Kernel) -> Value:
    """Return the mbarriers indexed by the number of the group."""
    group = found(kernel, roles.ConsumerGroup)[0].out
    stage = next(op for op in group.users if isinstance(op, gpu.SharedStage))
    return stage.buffer


def _ring(barrier: Value) -> Value | None:
    return barrier.op.buffer if isinstance(barrier.op, gpu.SharedStage) else None


def _begin_with_the_second(kernel: Kernel) -> None:
    group = found(kernel, roles.ConsumerGroup)[0].out
    for compare in group.users:
        if isinstance(compare, arith.Compare) and compare.lhs is group:
            compare.predicate = "ne"


def _count_nothing(kernel: Kernel) -> None:
    """Keep a group's loop-carried counts unchanged in the turns of other groups."""
    branch = _branch(kernel)
    loop = branch.parent_op
    assert isinstance(loop, scf.For)
    count = len(branch.outs)
    branch.orelse.terminator.set_slots(loop.carried[-count:])


def _run_everything(kernel: Kernel) -> None:
    branch = _branch(kernel)
    branch.set_slots([Builder.before_op(branch)(arith.Constant(value=True, type=I1)).out])


_PLANTS: tuple[tuple[str, str, Plant], ...] = (
    (
        "groups share the buffers of their results",
        "a buffer of consumers is placed once",
        after_pass(_LAST, each(gpu.SharedAlloc, _own)),
    ),
    (
        "groups share a barrier",
        "the barriers of all groups have one number",
        wrapping(nvvm, "barrier", lambda barrier: lambda emit, n=0, _="": barrier(emit, n)),
    ),
    (
        "threads of the second group count from its end",
        "a thread's number is not that in its group",
        in_llvm(r"= and i32 (%v\d+), 127$", r"= and i32 \1, 255"),
    ),
    (
        "a group keeps the order",
        "the arrival behind the last product is left out",
        after_pass(_LAST, _keep_the_order),
    ),
    (
        "a group multiplies out of order",
        "the wait ahead of the first product is left out",
        after_pass(_LAST, _take_no_order),
    ),
    (
        "the order begins with the second group",
        "the first group's first turn waits, the second's does not",
        after_pass(_LAST, _begin_with_the_second),
    ),
    (
        "a group does not count what others take",
        "the state of shared rings is carried over their turns",
        after_pass(_LAST, _count_nothing),
    ),
    (
        "every group runs every tile",
        "nobody asks whose turn it is",
        after_pass(_LAST, _run_everything),
    ),
)

MUTATIONS = tuple(
    Mutation(name, stands_for, "multiply_in_groups", plant, "sm_90a")
    for name, stands_for, plant in _PLANTS
)
