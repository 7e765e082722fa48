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
        found = _find(loop)
        if found is not None:
            with at(loop.loc):
                _rewrite(found)


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
    own = [op for op in waits[waits.index(late[-1]) + 1 :] if not op.pending] if late else []
    awaited = {
        loop.outs[value.index - 1]: out
        for op in late
        for value, out in zip(op.values, op.outs, strict=True)
    }
    found: dict[Value, Value] = {}
    drain: list[Op] = []
    op = loop.next
    while op is not None and len(found) < len(awaited):
        drain.append(op)
        if isinstance(op, wgmma.WgmmaWait):
            pairs = zip(op.values, op.outs, strict=True)
            found |= {out: awaited[value] for value, out in pairs if value in awaited}
        op = op.next
    if not own or len(found) < len(awaited):
        return None
    end = body.index(own[0]) + 1
    return _Drained(loop, body[:end], body[end:], drain, found)


def _rewrite(found: _Drained) -> None:
    loop = found.loop
    outer = Builder.before_op(loop)
    bound = lowered_bounds(loop, 1, outer)[1]
    is_empty = outer(arith.Compare(loop.lower, loop.upper, "ge")).out
    scalars = _scalars_of_state([*found.start, *found.rest], loop)
    start, rest = ([op for op in ops if op not in scalars] for ops in (found.start, found.rest))
    tests = [*dict.fromkeys(op.condition for op in rest if isinstance(op, scf.If))]
    tests = [value for value in tests if value.op in scalars]
    ahead = _needed(tests, scalars)
    state = [loop.induction, *loop.carried]
    used = {each: None for op in (*rest, loop.body.terminator) for each in free_operands(op)}
    repeated = _needed(used, [op for op in start if is_pure(op)])
    used |= {each: None for op in repeated for each in op.operands}
    kept = [*state, *(out for op in scalars for out in op.results if out in used)]
    joined = _joined(found, start, used)

    before = Block([state[0].type, I1, *(value.type for value in (*tests, *loop.carried))])
    first, is_over, *carried = before.args
    held, carried = carried[: len(tests)], carried[len(tests) :]
    place = Builder(before)
    now = copy_ops(scalars, dict(zip(state, (first, *carried), strict=True)), place)
    now |= dict(zip(tests, held, strict=True))
    is_last = place(arith.Compare(first, bound, "ge")).out
    ends = dict(zip(loop.outs, carried, strict=True))
    arms = Builder(Block()), Builder(Block())
    for arm, ops, values in zip(arms, (found.drain, start), (ends, now), strict=True):
        made = copy_ops(ops, values, arm)
        column = [pair[arms.index(arm)] for pair in joined]
        types = [next(value.type for value in pair if value is not None) for pair in joined]
        arm(scf.Yield([_known(*each, made, arm) for each in zip(column, types, strict=True)]))
    branch = place(scf.If(is_over, *(arm.block for arm in arms)))
    goes_on = place(arith.Xor(is_over, place(arith.Constant(value=True, type=I1)).out)).out
    passed = [*branch.outs, is_last, *(now[value] for value in kept)]
    place(scf.Condition(goes_on, passed))

    after = Block([value.type for value in passed])
    ours = [ours for _, ours in joined]
    names = dict(zip([*ours, None, *kept], after.args, strict=True))
    inside = {value: arg for value, arg in names.items() if value is not None}
    place = Builder(after)
    inside = copy_ops([*repeated, *rest], inside, place)
    following = place(arith.Add(inside[loop.induction], loop.step)).out
    yielded = [inside.get(value, value) for value in loop.body.terminator.operands]
    later = copy_ops(ahead, dict(zip(state, (following, *yielded), strict=True)), place)
    place(scf.Yield([following, after.args[len(joined)], *map(later.__getitem__, tests), *yielded]))

    begins = [loop.lower, *loop.init]
    starts = copy_ops(ahead, dict(zip(state, begins, strict=True)), outer)
    inits = [loop.lower, is_empty, *map(starts.__getitem__, tests), *loop.init]
    made = outer(build(scf.While, inits, {}, [before, after], loop.loc))
    for (drained, _), out in zip(joined, made.outs, strict=False):
        if drained is not None:
            drained.replace_all_uses_with(out)
    for op in reversed(found.drain):
        op.erase()
    results = made.outs[len(joined) + 2 :]
    loop.replace_with(results[: len(loop.outs)])


def _scalars_of_state(ops: Sequence[Op], loop: scf.For) -> list[Op]:
    """Return the ops that compute scalars from what the loop carries alone."""
    found: dict[Op, None] = {}
    for op in ops:
        makes_scalars = all(isinstance(value.type, ScalarType) for value in op.results)
        if makes_scalars and op.pure and not op.blocks:
            needed = [value.op for value in op.operands if value.op is not None]
            if all(each in found for each in needed if each.block is loop.body):
                found[op] = None
    return list(found)


def _needed(values: Iterable[Value], ops: Sequence[Op]) -> list[Op]:
    """Return those of ops that values are computed by, in order."""
    found = dict.fromkeys(value.op for value in values)
    for op in reversed(ops):
        if op in found:
            found |= dict.fromkeys(value.op for value in op.operands)
    return [op for op in ops if op in found]


def _joined(
    found: _Drained, start: Sequence[Op], used: dict[Value, None]
) -> list[tuple[Value | None, Value | None]]:
    """Return what the branch passes on, of the drain and of the start of an iteration; None if one has no such."""
    waited = found.waits.values()
    own = [out for op in start if not is_pure(op) for out in op.results if out in used]
    ends = [out for op in found.drain for out in op.results]
    after = [out for out in ends if any(user not in found.drain for user in out.users)]
    return [
        *found.waits.items(),
        *((None, value) for value in own if value not in waited),
        *((value, None) for value in after if value not in found.waits),
    ]


def _known(value: Value | None, kind: Type, made: dict[Value, Value], arm: Builder) -> Value:
    return arm(gpu.Undefined(kind)).out if value is None else made[value]
