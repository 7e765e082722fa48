"""Bugs in loops, branches and prefetches across iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotc.backend.rules import control
from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1
from aotc.schedule.cleanup import hoist_invariants
from aotc.schedule.pipelining import expand_loop
from tests.support.mutations.plant import (
    Mutation,
    after_pass,
    each,
    found,
    replacing,
    without,
    wrapping,
)

_FIRST, _LAST = "legalize_dots", "insert_barriers"


def _step_more(last: Any, times: int) -> Any:
    def made(ctx: Any, op: Any, kind: Any) -> Any:
        name, typed = last(ctx, op, kind), f"i{kind.bits}"
        step = ctx.scalar(op.step)
        opcode = "add" if times > 0 else "sub"
        return ctx.emit.value(f"{opcode} {typed} {name}, {step}")

    return made


def _carried_swapped(loop: scf.For) -> None:
    first, second, *rest = loop.body.terminator.operands
    loop.body.terminator.set_slots([second, first, *rest])


def _condition_turned(op: scf.If) -> None:
    build = Builder.before_op(op)
    true = build(arith.Constant(value=True, type=op.condition.type)).out
    op.set_slots([build(arith.Xor(op.condition, true)).out])


def _always(self: Any, offset: int) -> Any:
    if offset not in self._exists:
        self._exists[offset] = self.place(arith.Constant(value=True, type=I1)).out
    return self._exists[offset]


def _rest_left_out(kernel: Kernel) -> None:
    rest = found(kernel, scf.For)[-1]
    rest.set_slots([rest.lower, rest.lower, *rest.slots[2:]])


def _reading_slot(change: int) -> Any:
    def edit(op: gpu.SharedStage) -> None:
        if any(isinstance(user, gpu.SharedLoad) for user in op.out.users):
            op.ahead = (op.ahead + change) % op.buffer.type.num_stages

    return edit


def _always_exists(exists: Any) -> Any:
    def made(self: Any, offset: int) -> Any:
        answer = exists(self, offset)
        return self.place(arith.Constant(value=True, type=answer.type)).out

    return made


def _too_far(exists: Any) -> Any:
    return lambda self, offset: exists(self, offset - 1)


def _address_late(carry: Any) -> Any:
    def made(self: Any, value: Any, offset: int) -> Any:
        is_new = (value, offset) not in self.carried
        arg = carry(self, value, offset)
        if is_new and offset and value.op is None:
            self.inits[arg.index - 1] = self.prologue.get(value, offset - 1, offset - 1)
        return arg

    return made


def _unmasked_copy(op: gpu.AsyncCopy) -> None:
    op.set_slots([op.pointer, op.buffer, None, op.enabled])


def _wait_less(op: gpu.AsyncWait) -> None:
    if isinstance(op.parent_op, scf.For):
        op.pending += 1


def _not_ahead(op: gpu.SharedStage) -> None:
    if op.ahead == 1 and any(isinstance(user, gpu.SharedLoad) for user in op.out.users):
        op.ahead = 0


def _into_the_slot_read(op: gpu.SharedStage) -> None:
    """Copy into the stage read by the current iteration."""
    if isinstance(op.parent_op, scf.For) and op.ahead:
        op.ahead = 0


MUTATIONS: Sequence[Mutation] = (
    Mutation(
        "loads ahead of the iteration after the last",
        "what is loaded ahead is not asked whether its iteration exists; no mask of its own hides it",
        "add_far_rows",
        replacing(expand_loop._Region, "_exists_at", _always),
    ),
    Mutation(
        "copies ahead of the iteration after the last",
        "what is copied ahead is not asked whether its iteration exists; no mask of its own hides it",
        "turn_all_ahead",
        replacing(expand_loop._Region, "_exists_at", _always),
    ),
    Mutation(
        "one iteration too many",
        "the test at the bottom of a loop compares after the step as before it",
        "walk",
        wrapping(control, "_last_start", lambda last: _step_more(last, 1)),
    ),
    Mutation(
        "one iteration too few",
        "the bound is lowered by the step twice",
        "walk",
        wrapping(control, "_last_start", lambda last: _step_more(last, -1)),
    ),
    Mutation(
        "loop that runs at least once",
        "the guard before a loop is left out though its bounds are not known",
        "turn_all",
        replacing(control, "_runs_surely", lambda lower, upper: True),
    ),
    Mutation(
        "carried values swapped",
        "a loop yields two values in each other's place",
        "walk",
        after_pass(_FIRST, each(scf.For, _carried_swapped)),
    ),
    Mutation(
        "arms of a branch swapped",
        "a condition is turned round, its arms are not",
        "above",
        after_pass(_LAST, each(scf.If, _condition_turned)),
    ),
    Mutation(
        "while loop with another condition",
        "`>` became `>=` in the condition of a loop",
        "halve",
        after_pass(_FIRST, each(arith.Compare, lambda op: setattr(op, "predicate", "ge"))),
    ),
    Mutation(
        "rest of an unrolled loop missing",
        "iterations that do not fill an unrolled one are left out",
        "unrolled",
        after_pass("unroll_loops", _rest_left_out),
    ),
    Mutation(
        "load hoisted out of a loop that stores",
        "reading memory is taken for invariant",
        "fold_in_place",
        wrapping(
            hoist_invariants,
            "is_pure",
            lambda is_pure: lambda op: isinstance(op, tile.Load) or is_pure(op),
        ),
    ),
    Mutation(
        "waits for one group too few",
        "the count of a wait leaves the group in flight that is read next",
        "multiply",
        after_pass(_LAST, each(gpu.AsyncWait, _wait_less)),
    ),
    Mutation(
        "first commit missing",
        "copies of two iterations are in one group",
        "turn_all_ahead",
        after_pass(_LAST, without(gpu.AsyncCommit, 0)),
    ),
    Mutation(
        "commit in the loop missing",
        "what a loop copies is in no group that is waited for",
        "turn_all_ahead",
        after_pass(_LAST, without(gpu.AsyncCommit, 2)),
    ),
    Mutation(
        "no wait in the loop",
        "copies are read without a wait",
        "turn_all_ahead",
        after_pass(_LAST, without(gpu.AsyncWait, 0)),
    ),
    Mutation(
        "reads the next stage",
        "the index of a stage is one too high",
        "turn_all_ahead",
        after_pass(_LAST, each(gpu.SharedStage, _reading_slot(1))),
    ),
    Mutation(
        "fragments carried from the wrong stage",
        "what a loop reads for its next iteration is that of the current one",
        "multiply_to_fp16",
        after_pass(_LAST, each(gpu.SharedStage, _not_ahead)),
    ),
    Mutation(
        "copies to the stage that is read",
        "the distance at which copies are issued is lost from their stage",
        "turn_all_ahead",
        after_pass(_LAST, each(gpu.SharedStage, _into_the_slot_read)),
    ),
    Mutation(
        "loads for iterations that do not exist",
        "what runs ahead is not under the condition that its iteration comes",
        "turn_all_ahead",
        wrapping(expand_loop._Region, "_exists_at", _always_exists),
    ),
    Mutation(
        "one load beyond the loop",
        "the last iteration still loads for the one after it",
        "turn_all_ahead",
        wrapping(expand_loop._Region, "_exists_at", _too_far),
    ),
    Mutation(
        "addresses that run ahead are late",
        "a pointer that a loop moves starts an iteration too early",
        "multiply",
        wrapping(expand_loop._Expansion, "carry", _address_late),
    ),
    Mutation(
        "copy without zero fill",
        "masked-off elements of an asynchronous copy are read",
        "multiply",
        after_pass(_LAST, each(gpu.AsyncCopy, _unmasked_copy)),
    ),
)
