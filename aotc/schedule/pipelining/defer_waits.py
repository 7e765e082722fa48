"""Leave the last dots of an iteration in flight until the first ones of the next are issued.

Threads compute with the first dots of an iteration, as with the scores of attention, and the last ones read what
they compute. In between the tensor cores have nothing to do. So the loop

    for i: s = dot i; wait for s; p = weights of s; acc = scale acc; acc += p @ values i; wait for acc; release values i

waits for the last dot, and gives back what it read, an iteration later:

    for i: start s = dot i; wait for acc; release values i - 1; wait for s
           p = weights of s; acc = scale acc; start acc += p @ values i
    wait for acc; release the last values

The tensor cores have both dots in a row, as if the first one were issued an iteration ahead, and each stands in the
code once: no iteration begins before the loop, and none is peeled. What takes ptxas most of its time is dots.

Invariant: nothing uses or adds to a dot's result, or writes the registers it reads, before the wait that covers it;
each stage is released once, after the wait for its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Op, Value, build
from aotc.ir.dialects import arith, gpu, mbarrier, scf, wgmma
from aotc.ir.rewrite import Builder, is_inside, is_pure
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import stage_of
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.analysis.register_writers import register_writers


@dataclass(frozen=True)
class LateWaits:
    """Waits that end an iteration of a loop, with arrivals, which may come after `issued` in the next one.

    `issued` are its first dots. `accs` has the carried variable that is the result of each wait.
    """

    loop: scf.For
    issued: Sequence[wgmma.Wgmma]
    waits: Sequence[wgmma.WgmmaWait]
    arrivals: Sequence[mbarrier.MbarrierArrive]
    accs: dict[Value, Value]


def find_late_waits(
    loop: scf.For, issued: Sequence[wgmma.Wgmma], last: Sequence[wgmma.Wgmma]
) -> LateWaits | None:
    """Return the waits for the last dots of a loop if nothing else comes after them, and before `issued`."""
    if not last:
        return None
    body = list(loop.body)
    ends = [op for op in body[body.index(last[-1]) + 1 :] if not op.terminator and not is_pure(op)]
    waits = [op for op in ends if isinstance(op, wgmma.WgmmaWait)]
    arrivals = [op for op in ends if isinstance(op, mbarrier.MbarrierArrive)]
    results = [out for wait in waits for out in wait.outs]
    awaited = [value for wait in waits for value in wait.values]
    if len(waits) + len(arrivals) < len(ends) or not all(_counts(op, loop) for op in arrivals):
        return None
    if {dot.out for dot in last} != {*awaited}:
        return None  # a sum of several dots is waited for as the last one
    yields, accs = loop.body.terminator.operands, dict[Value, Value]()
    for out in results:
        indices = [index for index, value in enumerate(yields) if value is out]
        if list(out.users) != [loop.body.terminator] or len(indices) > 1:
            return None
        accs[out] = loop.carried[indices[0]]
    early = body[: body.index(issued[-1]) + 1]
    if any(acc in free_operands(op) for acc in accs.values() for op in early):
        return None
    if any(_is_written(dot.a, loop, early) for dot in last):
        return None
    return LateWaits(loop, issued, waits, arrivals, accs)


def _is_written(operand: Value, loop: scf.For, early: Sequence[Op]) -> bool:
    """Return whether an iteration writes an operand's registers by the end of `early`, or as it begins."""
    if isinstance(operand.type, SharedType):
        return False
    owners = [owner for owner in register_writers(operand) if is_inside(owner, loop)]
    return any(
        owner is loop.body or any(owner is op or is_inside(owner, op) for op in early)
        for owner in owners
    )


def _counts(op: mbarrier.MbarrierArrive, loop: scf.For) -> bool:
    """Return whether an arrival is at a stage that each iteration moves by one, and may be at that of the last."""
    stage = stage_of(op.barrier)
    if op.enabled is not None or stage is None or stage.index not in loop.carried:
        return False
    following, ring = loop.body.terminator.operands[stage.index.index - 1].op, stage.buffer.type
    return (
        isinstance(following, gpu.NextStage)
        and isinstance(ring, SharedType)
        and following.index is stage.index
        and (following.ahead, following.num_stages) == (1, ring.num_stages)
    )


def defer_waits(late: LateWaits) -> None:
    """Rewrite a loop. One that may run no iteration becomes an arm of a branch, with the waits after it.

    An edge around the loop that joins before the last wait would make ptxas serialize the MMAs (C7515).
    """
    loop = late.loop
    builder = Builder.after_op(late.issued[-1])
    not_first = builder(arith.Compare(loop.induction, loop.lower, "ne")).out
    for wait in late.waits:
        args = [late.accs[out] for out in wait.outs]
        users = [[*arg.users] for arg in args]
        pending = wait.pending + len(late.issued)
        deferred = builder(wgmma.WgmmaWait(args, pending, wait.num_columns))
        for arg, out, uses in zip(args, deferred.outs, users, strict=True):
            out.hint = arg.hint
            for user in uses:
                user.replace_operand(arg, out)
    for arrival in late.arrivals:
        _release(arrival, None, builder, not_first)
    _drain(late)
    for op in (*late.arrivals, *late.waits):
        op.erase()


def _drain(late: LateWaits) -> None:
    """Let the loop pass on dots in flight, and wait for them after it, if there is an iteration."""
    loop = late.loop
    for wait in late.waits:
        for out, value in zip(wait.outs, wait.values, strict=True):
            out.replace_all_uses_with(value)
    outer, then, otherwise = Builder.before_op(loop), Block(), Block()
    runs = outer(arith.Compare(loop.lower, loop.upper, "lt")).out
    Builder(otherwise)(scf.Yield(list(loop.init)))
    builder = Builder(then)
    blocks, loop.blocks = loop.blocks, ()
    attributes = {**loop.attributes, "unroll": loop.unroll or scf.NEVER_UNROLLED}
    rewritten = builder(build(scf.For, loop.slots, attributes, blocks, loop.loc))
    outs = list(rewritten.outs)
    for wait in late.waits:
        ends = [late.accs[out].index - 1 for out in wait.outs]
        drained = builder(
            wgmma.WgmmaWait([rewritten.outs[end] for end in ends], wait.pending, wait.num_columns)
        )
        for end, out in zip(ends, drained.outs, strict=True):
            outs[end] = out
    for arrival in late.arrivals:
        _release(arrival, rewritten, builder, None)
    builder(scf.Yield(outs))
    branch = outer(build(scf.If, [runs], {}, [then, otherwise], loop.loc))
    loop.replace_with(branch.results)


def _release(
    arrival: mbarrier.MbarrierArrive, after: scf.For | None, builder: Builder, enabled: Value | None
) -> None:
    """Arrive at the stage of the iteration before, or of the last one `after` the loop."""
    stage = stage_of(arrival.barrier)
    assert stage is not None
    assert isinstance(stage.buffer.type, SharedType)
    index = stage.index if after is None else after.outs[stage.index.index - 1]
    ahead = (stage.ahead - 1) % stage.buffer.type.num_stages
    barrier = builder(gpu.SharedStage(stage.buffer, index, ahead)).out
    builder(mbarrier.MbarrierArrive(barrier, arrival.count, enabled, arrival.num_ctas))
