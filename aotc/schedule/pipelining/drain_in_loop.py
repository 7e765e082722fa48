"""Wait for the dots that a loop leaves in flight in the loop, where it waits for those of other iterations.

Where the last dot of an iteration is in flight when the next one begins (`defer_waits`), and threads compute with the
results of others in between,

    for i: start s; wait for acc; wait for s; compute with s and acc; start acc
    wait for acc

the first wait that all paths from the last dot come to is the one after the loop. ptxas takes the dot to be in flight
until there, and serializes the MMAs, since threads compute in the loop (C7514). In

    while:  if there is no iteration i: wait for acc   else: start s; wait for acc; wait for s
            leave if there is none
            compute with s and acc; start acc

all paths meet right after the waits. Scalars are computed ahead of them, while dots are in flight: threads go on as soon
as these are done.

It leaves no counted loop, so it is one of the last passes.

Invariant: the same ops with effects run, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, wgmma
from aotc.ir.rewrite import Builder, copy_ops, is_pure
from aotc.ir.types import I1, ScalarType, Type
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.context import Schedule


def drain_in_loop(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite loops that wait for dots of the iteration before, and then for dots of their own."""
    del schedule
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        drained = _find(loop)
        if drained is not None:
            with at(loop.loc):
                _rewrite(drained)


@dataclass(frozen=True)
class _Drained:
    """A loop, its ops up to the wait for dots of its own, those after that, and those after it that drain it.

    `waits` has the result of a wait in the loop for what the drain's wait for the same variable returns.
    """

    loop: scf.For
    start: Sequence[Op]
    rest: Sequence[Op]
    drain: Sequence[Op]
    waits: dict[Value, Value]


def _find(loop: scf.For) -> _Drained | None:
    body = [op for op in loop.body if not op.terminator]
    waits = [op for op in body if isinstance(op, wgmma.WgmmaWait)]
    late = [op for op in waits if all(value in loop.carried for value in op.values)]
    drains = [op for op in waits[waits.index(late[-1]) + 1 :] if not op.pending] if late else []
    awaited = {
        loop.outs[value.index - 1]: out
        for op in late
        for value, out in zip(op.values, op.outs, strict=True)
    }
    carried_waits: dict[Value, Value] = {}
    drain: list[Op] = []
    op = loop.next
    while op is not None and len(carried_waits) < len(awaited):
        drain.append(op)
        if isinstance(op, wgmma.WgmmaWait):
            pairs = zip(op.values, op.outs, strict=True)
            carried_waits |= {out: awaited[value] for value, out in pairs if value in awaited}
        op = op.next
    if not drains or len(carried_waits) < len(awaited):
        return None
    end = body.index(drains[0]) + 1
    return _Drained(loop, body[:end], body[end:], drain, carried_waits)


def _rewrite(plan: _Drained) -> None:
    loop = plan.loop
    outer = Builder.before_op(loop)
    bound = lowered_bounds(loop, 1, outer)[1]
    is_empty = outer(arith.Compare(loop.lower, loop.upper, "ge")).out
    scalars = _scalars_of_state([*plan.start, *plan.rest], loop)
    start, rest = ([op for op in ops if op not in scalars] for ops in (plan.start, plan.rest))
    tests = [*dict.fromkeys(op.condition for op in rest if isinstance(op, scf.If))]
    tests = [value for value in tests if value.op in scalars]
    ahead = _needed(tests, scalars)
    state = [loop.induction, *loop.carried]
    uses = {operand: None for op in (*rest, loop.body.terminator) for operand in free_operands(op)}
    repeated = _needed(uses, [op for op in start if is_pure(op)])
    uses |= {operand: None for op in repeated for operand in op.operands}
    live = [*state, *(out for op in scalars for out in op.results if out in uses)]
    joined = _joined(plan, start, uses)

    before = Block([state[0].type, I1, *(value.type for value in (*tests, *loop.carried))])
    first, is_over, *carried = before.args
    test_values, carried = carried[: len(tests)], carried[len(tests) :]
    builder = Builder(before)
    now = copy_ops(scalars, dict(zip(state, (first, *carried), strict=True)), builder)
    now |= dict(zip(tests, test_values, strict=True))
    is_last = builder(arith.Compare(first, bound, "ge")).out
    ends = dict(zip(loop.outs, carried, strict=True))
    arms = Builder(Block()), Builder(Block())
    for arm, ops, values in zip(arms, (plan.drain, start), (ends, now), strict=True):
        copies = copy_ops(ops, values, arm)
        column = [pair[arms.index(arm)] for pair in joined]
        types = [next(value.type for value in pair if value is not None) for pair in joined]
        arm(
            scf.Yield(
                [_known(*operand, copies, arm) for operand in zip(column, types, strict=True)]
            )
        )
    branch = builder(scf.If(is_over, *(arm.block for arm in arms)))
    goes_on = builder(arith.Xor(is_over, builder(arith.Constant(value=True, type=I1)).out)).out
    passed = [*branch.outs, is_last, *(now[value] for value in live)]
    builder(scf.Condition(goes_on, passed))

    after = Block([value.type for value in passed])
    ours = [ours for _, ours in joined]
    names = dict(zip([*ours, None, *live], after.args, strict=True))
    inside = {value: arg for value, arg in names.items() if value is not None}
    builder = Builder(after)
    inside = copy_ops([*repeated, *rest], inside, builder)
    following = builder(arith.Add(inside[loop.induction], loop.step)).out
    yielded = [inside.get(value, value) for value in loop.body.terminator.operands]
    later = copy_ops(ahead, dict(zip(state, (following, *yielded), strict=True)), builder)
    builder(
        scf.Yield([following, after.args[len(joined)], *map(later.__getitem__, tests), *yielded])
    )

    begins = [loop.lower, *loop.init]
    starts = copy_ops(ahead, dict(zip(state, begins, strict=True)), outer)
    inits = [loop.lower, is_empty, *map(starts.__getitem__, tests), *loop.init]
    copies = outer(build(scf.While, inits, {}, [before, after], loop.loc))
    for (drained, _), out in zip(joined, copies.outs, strict=False):
        if drained is not None:
            drained.replace_all_uses_with(out)
    for op in reversed(plan.drain):
        op.erase()
    results = copies.outs[len(joined) + 2 :]
    loop.replace_with(results[: len(loop.outs)])


def _scalars_of_state(ops: Sequence[Op], loop: scf.For) -> list[Op]:
    """Return the ops that compute scalars from what the loop carries alone."""
    scalars: dict[Op, None] = {}
    for op in ops:
        makes_scalars = all(isinstance(value.type, ScalarType) for value in op.results)
        if makes_scalars and op.pure and not op.blocks:
            sources = [value.op for value in op.operands if value.op is not None]
            if all(source in scalars for source in sources if source.block is loop.body):
                scalars[op] = None
    return list(scalars)


def _needed(values: Iterable[Value], ops: Sequence[Op]) -> list[Op]:
    """Return those of ops that values are computed by, in order."""
    producers = dict.fromkeys(value.op for value in values)
    for op in reversed(ops):
        if op in producers:
            producers |= dict.fromkeys(value.op for value in op.operands)
    return [op for op in ops if op in producers]


def _joined(
    drained: _Drained, start: Sequence[Op], uses: dict[Value, None]
) -> list[tuple[Value | None, Value | None]]:
    """Return what the branch passes on, of the drain and of the start of an iteration; None if one has no such."""
    waited = drained.waits.values()
    outs = [out for op in start if not is_pure(op) for out in op.results if out in uses]
    ends = [out for op in drained.drain for out in op.results]
    after = [out for out in ends if any(user not in drained.drain for user in out.users)]
    return [
        *drained.waits.items(),
        *((None, value) for value in outs if value not in waited),
        *((value, None) for value in after if value not in drained.waits),
    ]


def _known(value: Value | None, kind: Type, copies: dict[Value, Value], arm: Builder) -> Value:
    return arm(gpu.Undefined(kind)).out if value is None else copies[value]
