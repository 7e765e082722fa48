"""Bugs of attention: weights computed an iteration ahead, and branches around masks and scales."""

from __future__ import annotations

from typing import Any

from aotc.backend import nvvm
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, mbarrier, roles, scf, wgmma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1, I64
from tests.support.mutations.plant import Mutation, Plant, after_pass, found, replacing

_CHAIN = "pipeline_mma"
_MASKS = "branch_on_masks"


def _dots_ahead(kernel: Kernel) -> list[Op]:
    """Return the ops of the loop with its scores an iteration ahead."""
    loops = [op for op in found(kernel, scf.For) if any(map(_is_pending, op.body))]
    return list(loops[0].body) if loops else []


def _is_pending(op: Op) -> bool:
    return isinstance(op, wgmma.WgmmaWait) and op.pending > 0


def _give_back_in_flight(kernel: Kernel) -> None:
    """Release the stage of V before the wait for the dot on it.

    An early release of K is harmless: the producer refills the previous V first.
    """
    body = _dots_ahead(kernel)
    waits = [op for op in body if isinstance(op, wgmma.WgmmaWait)]
    after = body[body.index(waits[-1]) :] if waits else []
    for arrive in [
        op for op in after if isinstance(op, mbarrier.MbarrierArrive) and not op.enabled
    ][:1]:
        for op in (arrive.barrier.op, arrive):
            assert op is not None
            op.remove()
            Builder.before_op(waits[-1])(op)


def _use_values_unawaited(kernel: Kernel) -> None:
    """Start the second dot before its values are there."""
    for wait in [op for op in _dots_ahead(kernel) if isinstance(op, mbarrier.MbarrierWait)][-1:]:
        wait.erase()


def _wait_for_scores_alone(kernel: Kernel) -> None:
    """Store the accumulator while the last dot still adds to it."""
    for role in found(kernel, roles.Specialize):
        waits = [op for op in role.consumers.walk() if isinstance(op, wgmma.WgmmaWait)]
        for wait in waits[-1:]:
            wait.pending = 1


def _factor_of_the_first(kernel: Kernel) -> None:
    """Scale the accumulator by the factor of the first weights in every iteration."""
    for loop in [op for op in found(kernel, scf.For) if any(map(_is_pending, op.body))]:
        (acc,) = (arg for arg in loop.carried if arg.hint == "acc")
        for arg, init in zip(loop.carried, loop.init, strict=True):
            if arg is not acc and _multiplies(arg, acc):
                arg.replace_all_uses_with(init)


def _multiplies(factor: Value, value: Value) -> bool:
    """Return whether a value is multiplied by a factor, through any broadcast."""
    for user in factor.users:
        if isinstance(user, arith.Mul) and value in user.operands:
            return True
        is_same = user.has(Trait.SHAPE_ONLY) or isinstance(user, gpu.Convert)
        if is_same and _multiplies(user.results[0], value):
            return True
    return False


def _end_too_early(kernel: Kernel) -> None:
    """Take the last element of a tile to be one before it."""
    for op in found(kernel, arith.Constant):
        if op.type == I64 and op.value == 63:
            build = Builder.before_op(op)
            op.replace_with([build(arith.Constant(62, I64)).out])


def _any_scale(kernel: Kernel) -> None:
    """Move a scale past the maximum without a check of its sign."""
    for op in found(kernel, arith.Compare):
        if op.rhs.hint.startswith("scale"):
            build = Builder.before_op(op)
            op.replace_with([build(arith.Constant(True, I1)).out])


def _scale_twice(kernel: Kernel) -> None:
    """Rescale an accumulator again after its branch has rescaled it."""
    for branch in found(kernel, scf.If):
        then, otherwise = branch.blocks
        fast, slow = then.terminator, otherwise.terminator
        if len(fast.operands) == 2 and fast.operands[1].hint.startswith("scale"):
            slow.set_slots([slow.operands[0], fast.operands[1]])


def _keep_accumulators(kernel: Kernel) -> None:
    """Leave accumulators as they are where the reference moves."""
    votes = [op.parent_op for op in found(kernel, gpu.WarpAll)]
    for branch in [op for op in found(kernel, scf.If) if op.condition.op in votes]:
        then, otherwise = (block.terminator for block in branch.blocks)
        accumulators = [
            old if isinstance(new.op, arith.Mul) and old in new.op.operands else new
            for old, new in zip(then.operands, otherwise.operands, strict=True)
        ]
        otherwise.set_slots(accumulators)


def _late(kernel: Kernel, cls: type[Op]) -> list[Any]:
    """Return the loop's ops of a class from the previous iteration."""
    loops = [op for op in found(kernel, scf.For) if any(map(_is_pending, op.body))]
    return [
        op
        for loop in loops
        for op in loop.body
        if isinstance(op, cls)
        and (op.enabled is not None if isinstance(op, mbarrier.MbarrierArrive) else _is_pending(op))
    ]


def _wait_for_two_less(kernel: Kernel) -> None:
    """Scale the accumulator while the dot of the iteration before adds to it."""
    for wait in _late(kernel, wgmma.WgmmaWait):
        wait.pending += 1


def _give_back_the_next_values(kernel: Kernel) -> None:
    """Give back the values of this iteration, not of the one before."""
    for arrive in _late(kernel, mbarrier.MbarrierArrive):
        arrive.barrier.op.ahead = 0


def _give_back_in_the_first(kernel: Kernel) -> None:
    """Give back values of an iteration before the first."""
    for arrive in _late(kernel, mbarrier.MbarrierArrive):
        barrier, _ = arrive.slots
        arrive.set_slots([barrier, None])


_PLANTS: tuple[tuple[str, str, Plant], ...] = (
    (
        "values are given back in flight",
        "the arrival stays where it was, the wait moves below it",
        after_pass(_CHAIN, _give_back_in_flight),
    ),
    (
        "values are not waited for",
        "the wait for the next values is taken for one that was done",
        after_pass(_CHAIN, _use_values_unawaited),
    ),
    (
        "the accumulator is stored in flight",
        "scores of no iteration are counted as a newer dot",
        after_pass(_CHAIN, _wait_for_scores_alone),
    ),
    (
        "rows are scaled by the first factor",
        "factors are computed ahead and not carried",
        after_pass(_CHAIN, _factor_of_the_first),
    ),
    (
        "the end of a tile is off by one",
        "a mask that hides the last column alone is taken to hide nothing",
        after_pass(_MASKS, _end_too_early),
    ),
    (
        "a negative scale passes the maximum",
        "the condition on the scale is left out",
        after_pass(_MASKS, _any_scale),
    ),
    (
        "a score is scaled twice",
        "the branch with the mask hands on the scale that it applied",
        after_pass(_MASKS, _scale_twice),
    ),
)

_KEPT: tuple[tuple[str, str, Plant], ...] = (
    (
        "accumulators keep the reference before",
        "what is computed ahead of the branch is taken for what it hands on",
        after_pass("rescale_lazily", _keep_accumulators),
    ),
    (
        "the accumulator is scaled in flight",
        "the dot before is counted as newer than the scores",
        after_pass(_CHAIN, _wait_for_two_less),
    ),
    (
        "values are given back an iteration early",
        "an arrival that moves to the next iteration keeps its stage",
        after_pass(_CHAIN, _give_back_the_next_values),
    ),
    (
        "values of no iteration are given back",
        "an arrival that moves to the next iteration is made in the first, too",
        after_pass(_CHAIN, _give_back_in_the_first),
    ),
    (
        "a thread answers for its warp",
        "the vote is left out, since most warps agree",
        replacing(nvvm, "vote_all", lambda _, value: value),
    ),
)

MUTATIONS = tuple(
    Mutation(name, stands_for, kernel, plant, "sm_90a")
    for kernel, plants in (("attend", _PLANTS), ("attend_whole", _KEPT))
    for name, stands_for, plant in plants
)
