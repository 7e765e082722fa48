"""Bugs in dots issued an iteration ahead: iteration numbers, stages and waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, gpu, mbarrier, roles, wgmma
from aotc.ir.rewrite import Builder
from aotc.schedule.pipelining import expand_loop
from tests.support.mutations.plant import Mutation, Plant, after_pass, found, wrapping

_PASS = "pipeline_mma"
_REGION = expand_loop._Region


def _wait_for_one_less(kernel: Kernel) -> None:
    """Let results be looked at while their product is still in flight."""
    for wait in found(kernel, wgmma.WgmmaWait):
        wait.pending += 1


def _wait_for_nothing_fetched(kernel: Kernel) -> None:
    """Start the first product of a loop before its operands are there."""
    product = found(kernel, wgmma.Wgmma)[0]
    op = product
    while not isinstance(op, mbarrier.MbarrierWait):
        op = op.prev
    op.erase()


def _give_back_the_next(kernel: Kernel) -> None:
    """Release the stages still read by the dot in flight."""
    consumers = found(kernel, roles.Specialize)[0].consumers
    for arrive in [op for op in consumers.walk() if isinstance(op, mbarrier.MbarrierArrive)]:
        stage = arrive.barrier.op
        ring = stage.buffer.op
        ahead = (stage.ahead + 1) % ring.num_stages
        next_stage = Builder.before_op(arrive)(
            gpu.SharedStage(stage.buffer, stage.index, ahead)
        ).out
        arrive.set_slots([next_stage, *arrive.slots[1:]])


def _one_iteration_more(lowered_bounds: Any) -> Callable[..., Any]:
    """Run one iteration past the end."""

    def wrong(loop: Any, count: int, build: Builder) -> list[Value]:
        bounds = lowered_bounds(loop, count, build)
        return [bounds[0], *bounds[:-1]]

    return wrong


def _same_again(later_stage: Any) -> Callable[..., Any]:
    """Issue a dot on the stages of the one before."""

    def wrong(self: Any, op: Any, offset: int, distance: int) -> Any:
        is_stage = isinstance(op, gpu.SharedStage)
        return later_stage(self, op, offset - is_stage, distance)

    return wrong


def _finish_the_next(index: Any) -> Callable[..., Any]:
    """Run the rest of an iteration with the number of the dot in flight."""

    def wrong(self: Any, offset: int) -> Any:
        right = index(self, offset)
        return right if offset else self.place(arith.Add(right, self.loop.step)).out

    return wrong


_PLANTS: tuple[tuple[str, str, Plant], ...] = (
    (
        "results are looked at in flight",
        "of the products begun since, one too many is left pending",
        after_pass(_PASS, _wait_for_one_less),
    ),
    (
        "the first product does not wait",
        "waits for operands stay behind, with the rest of the iteration",
        after_pass(_PASS, _wait_for_nothing_fetched),
    ),
    (
        "a stage is given back an iteration early",
        "the rest of an iteration counts stages as its start does",
        after_pass(_PASS, _give_back_the_next),
    ),
    (
        "a product of no iteration is started",
        "the bound of the pairs is off by one",
        wrapping(expand_loop, "lowered_bounds", _one_iteration_more),
    ),
    (
        "a product is started twice",
        "the dot of the next iteration is given the stages of this one",
        wrapping(_REGION, "_later_stage", _same_again),
    ),
    (
        "the rest of an iteration counts one too far",
        "the induction variable of the next iteration is that of the rest, too",
        wrapping(_REGION, "_index", _finish_the_next),
    ),
)

MUTATIONS = tuple(
    Mutation(name, stands_for, "multiply_and_scale", plant, "sm_90a")
    for name, stands_for, plant in _PLANTS
)
