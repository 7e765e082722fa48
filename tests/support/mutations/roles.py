"""Bugs in loads ahead: in signals between warp roles, or between iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from aotc.backend import nvvm, nvvm_tensor
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, mbarrier, roles, scf, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1, I32
from aotc.schedule.pipelining import pipeline_loads
from tests.support.mutations.plant import (
    Edit,
    Mutation,
    Plant,
    after_pass,
    found,
    in_llvm,
    replacing,
    without,
    wrapping,
)

_LAST = "insert_barriers"


def _in_role(kernel: Kernel, role: str, cls: type[Op]) -> Iterator[Any]:
    """Yield the ops of a class in one role."""
    block = getattr(found(kernel, roles.Specialize)[0], role)
    return (op for op in block.walk() if isinstance(op, cls))


def _waits(role: str, change: Callable[[mbarrier.MbarrierWait, Builder], list[Value]]) -> Edit:
    """Give the waits of a role other operands."""

    def edit(kernel: Kernel) -> None:
        for wait in list(_in_role(kernel, role, mbarrier.MbarrierWait)):
            wait.set_slots(change(wait, Builder.before_op(wait)))

    return edit


def _other_parity(wait: mbarrier.MbarrierWait, build: Builder) -> list[Value]:
    unit = build(arith.Constant(1, I32)).out
    return [wait.barrier, build(arith.Xor(wait.parity, unit)).out]


def _slot_before(wait: mbarrier.MbarrierWait, build: Builder) -> list[Value]:
    return [_shifted(wait.barrier, -1, build), wait.parity]


def _shifted(buffer: Value, by: int, build: Builder) -> Value:
    """Return the stage `by` slots further on in its ring."""
    stage = buffer.op
    assert isinstance(stage, gpu.SharedStage)
    ring = stage.buffer.op
    assert isinstance(ring, gpu.SharedAlloc)
    return build(
        gpu.SharedStage(stage.buffer, stage.index, (stage.ahead + by) % ring.num_stages)
    ).out


def _release_too_early(kernel: Kernel) -> None:
    """Release a stage while a dot may still read it."""
    arrive = next(_in_role(kernel, "consumers", mbarrier.MbarrierArrive))
    build = Builder.before_op(arrive)
    build(mbarrier.MbarrierArrive(_shifted(arrive.barrier, 1, build), arrive.count))
    arrive.erase()


def _copy_to_the_next_stage(kernel: Kernel) -> None:
    load = next(_in_role(kernel, "producer", tma.TmaLoad))
    buffer = _shifted(load.buffer, 1, Builder.before_op(load))
    load.set_slots([load.tensor, buffer, load.barrier, *load.coords])


def _arrive_behind_the_first(kernel: Kernel) -> None:
    """Tell of the first copy of a group and of the last."""
    next(_in_role(kernel, "producer", tma.TmaLoad)).arrive = True


def _first_barrier(kernel: Kernel) -> None:
    barrier = next(op for op in kernel.body if isinstance(op, gpu.Barrier))
    barrier.erase()


def _one_warp_is_enough(kernel: Kernel) -> None:
    for op in found(kernel, mbarrier.MbarrierInit):
        op.count = 1


def _expecting(change: Callable[[int], int]) -> Plant:
    def make(expect: Any) -> Any:
        return lambda emit, barrier, num_bytes, issuer, **rest: expect(
            emit, barrier, str(change(int(num_bytes))), issuer, **rest
        )

    return wrapping(nvvm_tensor, "mbarrier_expect", make)


_PLANTS: tuple[tuple[str, str, Plant], ...] = (
    (
        "nobody gives a stage back",
        "the arrival of the consumers is left out",
        after_pass(_LAST, without(mbarrier.MbarrierArrive, 0)),
    ),
    (
        "a stage is given back while a product reads it",
        "the arrival is for this iteration, not for the one before",
        after_pass(_LAST, _release_too_early),
    ),
    (
        "the last stage of a loop is not given back",
        "nobody arrives behind the wait for the last product",
        after_pass(_LAST, without(mbarrier.MbarrierArrive, -1)),
    ),
    (
        "the consumers wait for the wrong phase",
        "parities begin with 1",
        after_pass(_LAST, _waits("consumers", _other_parity)),
    ),
    (
        "the producer waits for the wrong phase",
        "parities begin with 0",
        after_pass(_LAST, _waits("producer", _other_parity)),
    ),
    (
        "the producer is a stage too far ahead",
        "it waits for the stage before the one that it fills",
        after_pass(_LAST, _waits("producer", _slot_before)),
    ),
    (
        "a copy goes to the stage after",
        "the stage of a copy is off by one",
        after_pass(_LAST, _copy_to_the_next_stage),
    ),
    (
        "a phase ends with the first copy of a group",
        "every copy arrives",
        after_pass(_LAST, _arrive_behind_the_first),
    ),
    (
        "one warp gives a stage back for all",
        "a mbarrier expects one arrival",
        after_pass(_LAST, _one_warp_is_enough),
    ),
    (
        "a role begins before mbarriers are made",
        "the barrier in front of the roles is left out",
        after_pass(_LAST, _first_barrier),
    ),
    (
        "copies do not see that mbarriers were made",
        "the fence behind their making is left out",
        in_llvm(r"^.*fence\.mbarrier_init.*$", ""),
    ),
    ("too few bytes are announced", "boxes are counted for one", _expecting(lambda n: n // 2)),
    ("too many bytes are announced", "boxes are counted twice", _expecting(lambda n: 2 * n)),
    (
        "the consumers' barrier is one of all threads",
        "a barrier that the producer does not come to",
        wrapping(nvvm, "barrier", lambda barrier: lambda emit, *_: barrier(emit)),
    ),
)

# ---- where all warps are alike ----------------------------------------------------------------


def _issue_a_slot_further(kernel: Kernel) -> None:
    for load in _ahead(kernel):
        buffer = _shifted(load.buffer, 1, Builder.before_op(load))
        load.set_slots([load.tensor, buffer, load.barrier, *load.coords])


def _issue_unasked(kernel: Kernel) -> None:
    """Leave out the barrier after all threads' reads of a stage."""
    first = next(_ahead(kernel))
    assert isinstance(first.prev, gpu.Barrier)
    first.prev.erase()


def _issue_always(kernel: Kernel) -> None:
    """Prefetch also for an iteration past the end."""
    branch = next(_ahead(kernel)).parent_op
    assert isinstance(branch, scf.If)
    yes = Builder.before_op(branch)(arith.Constant(value=True, type=I1)).out
    branch.set_slots([yes])


def _ahead(kernel: Kernel) -> Iterator[tma.TmaLoad]:
    """Yield the prefetches of an iteration."""
    for op in list(kernel.walk()):
        stage = op.buffer.op if isinstance(op, tma.TmaLoad) else None
        if isinstance(stage, gpu.SharedStage) and stage.ahead:
            assert isinstance(op, tma.TmaLoad)
            yield op


_PLANTS_ALIKE: tuple[tuple[str, str, Plant], ...] = (
    (
        "an iteration loads to the stage after",
        "the distance of a load is off by one",
        after_pass(_LAST, _issue_a_slot_further),
    ),
    (
        "a stage is loaded to while others read it",
        "one thread issues without a barrier",
        after_pass(_LAST, _issue_unasked),
    ),
    (
        "the last iterations load, too",
        "nobody asks whether there is such an iteration",
        after_pass(_LAST, _issue_always),
    ),
    (
        "a loop begins with the phases of the one before",
        "the loop around does not carry them",
        replacing(pipeline_loads, "carry_phases", lambda *_: None),
    ),
)


MUTATIONS = tuple(
    Mutation(name, stands_for, kernel, plant, "sm_90a")
    for kernel, plants in (("multiply_blocks", _PLANTS), ("multiply_blocks_alike", _PLANTS_ALIKE))
    for name, stands_for, plant in plants
)
