"""Wait for the last dots of a loop in the loop, where it waits for those of other iterations.

Where dots stay in flight to the next iteration, and threads compute with the results of others meanwhile,

    for i: start s; wait for acc; wait for s; compute with s and acc; start acc
    wait for acc

ptxas takes the dots that are in flight at the end to be so until the wait after the loop, since that is the
first which every path from them comes to, and serializes them (C7514). In

    while:  if there is no iteration i: wait for acc   else: start s; wait for acc; wait for s
            if there is none: leave
            compute with s and acc; start acc

all paths meet behind the waits.

It leaves no counted loop, so it is one of the last passes.

Invariant: the same ops run, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, wgmma
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import I1, ScalarType
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
    """A loop; its ops up to the wait for its own dots, and after it; those that drain it.

    `results` has what the drain returns for each result of a wait in the loop.
    """

    loop: scf.For
    start: Sequence[Op]
    rest: Sequence[Op]
    drain: Sequence[Op]
    results: dict[Value, Value]


def _find(loop: scf.For) -> _Drained | None:
    body = [op for op in loop.body if not op.terminator]
    waits = [op for op in body if isinstance(op, wgmma.WgmmaWait)]
    late = [op for op in waits if all(value in loop.carried for value in op.values)]
    own = [op for op in waits[waits.index(late[-1]) + 1 :] if not op.pending] if late else []
    if not own:
        return None
    drain: list[Op] = []
    drained: dict[Value, Value] = {}
    op = loop.next
    while op is not None and len(drained) < sum(len(wait.values) for wait in late):
        drain.append(op)
        if isinstance(op, wgmma.WgmmaWait):
            drained.update(zip(op.values, op.outs, strict=True))
        op = op.next
    pairs = {
        out: drained.get(loop.outs[value.index - 1])
        for wait in late
        for value, out in zip(wait.values, wait.outs, strict=True)
    }
    results = {out: value for out, value in pairs.items() if value is not None}
    if len(results) < len(pairs):
        return None
    end = body.index(own[0]) + 1
    return _Drained(loop, body[:end], body[end:], drain, results)


def _rewrite(found: _Drained) -> None:
    loop = found.loop
    outer = Builder.before_op(loop)
    bounds = lowered_bounds(loop, 1, outer)
    none = outer(arith.Compare(loop.lower, loop.upper, "ge")).out
    state = [loop.induction, *loop.carried]
    before = Block([state[0].type, I1, *(value.type for value in state[1:])])
    first, ends, *others = before.args
    now = dict(zip(state, (first, *others), strict=True))
    place = Builder(before)
    # What is computed after the waits would be waited for: dots have nothing to do until threads are done.
    early = _scalars_of_state([*found.start, *found.rest], loop)
    now |= _copy(early, now, place)
    last = place(arith.Compare(first, bounds[1], "ge")).out
    start, rest = ([op for op in ops if op not in early] for ops in (found.start, found.rest))
    then, otherwise = Builder(Block()), Builder(Block())
    ended = {out: now[arg] for out, arg in zip(loop.outs, loop.carried, strict=True)}
    ended = _copy(found.drain, ended, then)
    started = _copy(start, now, otherwise)
    kept = [each for each in _used(start, [*rest, loop.body.terminator]) if each not in found.results]
    alone = [value for value in _used_after(found.drain) if value not in found.results.values()]
    passed = [
        *((ended[other], started[value]) for value, other in found.results.items()),
        *((_undefined(value, then), started[value]) for value in kept),
        *((ended[value], _undefined(value, otherwise)) for value in alone),
    ]
    for arm, values in zip((then, otherwise), zip(*passed, strict=True), strict=True):
        arm(scf.Yield(list(values)))
    branch = place(scf.If(ends, then.block, otherwise.block))
    more = place(arith.Xor(ends, place(arith.Constant(value=True, type=I1)).out)).out
    scalars = [out for op in early for out in op.results]
    known = [*state, *scalars]
    results = [*branch.outs, last, *(now[value] for value in known)]
    place(scf.Condition(more, results))
    after = Block([value.type for value in results])
    names = [*found.results, *kept]
    inside = dict(zip(names, after.args, strict=False))
    _, *args = after.args[len(branch.outs) :]
    inside |= dict(zip(known, args, strict=True))
    body = Builder(after)
    inside |= _copy([op for op in start if is_pure(op)], inside, body)
    inside = _copy(rest, inside, body)
    following = body(arith.Add(inside[loop.induction], loop.step)).out
    yielded = [inside.get(value, value) for value in loop.body.terminator.operands]
    body(scf.Yield([following, after.args[len(branch.outs)], *yielded]))
    inits = [loop.lower, none, *loop.init]
    made = outer(build(scf.While, inits, {}, [before, after], loop.loc))
    outs = list(made.outs)
    for old in (*found.results.values(), *(None for _ in kept), *alone):
        new = outs.pop(0)
        if old is not None:
            old.replace_all_uses_with(new)
    for op in reversed(found.drain):
        op.erase()
    loop.replace_with(outs[2 : 2 + len(loop.outs)])


def _scalars_of_state(ops: Sequence[Op], loop: scf.For) -> list[Op]:
    """Return the ops that compute scalars from what the loop carries alone."""
    found: dict[Op, None] = {}
    for op in ops:
        made = all(isinstance(value.type, ScalarType) for value in op.results)
        if made and op.pure and not op.blocks:
            inner = [value.op for value in op.operands if value.op and value.op.block is loop.body]
            if all(each in found for each in inner):
                found[op] = None
    return list(found)


def _copy(ops: Iterable[Op], mapping: dict[Value, Value], place: Builder) -> dict[Value, Value]:
    mapping = dict(mapping)
    for op in ops:
        made = place(op.clone(mapping))
        mapping.update(zip(op.results, made.results, strict=True))
    return mapping


def _used(ops: Sequence[Op], users: Sequence[Op]) -> list[Value]:
    """Return the results of ops with effects that others use."""
    needed = {value for user in users for value in free_operands(user)}
    return [out for op in ops if not is_pure(op) for out in op.results if out in needed]


def _used_after(ops: Sequence[Op]) -> list[Value]:
    return [out for op in ops for out in op.results if any(user not in ops for user in out.users)]


def _undefined(value: Value, place: Builder) -> Value:
    return place(gpu.Undefined(value.type)).out
