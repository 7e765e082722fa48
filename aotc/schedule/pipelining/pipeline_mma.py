"""Issue a dot an iteration ahead of the ops that use its result.

Where threads compute with the result of each dot of a loop (scale and add it, say), the tensor
cores wait for the threads, and then the threads for the tensor cores. So the loop

    for i: p = dot i; wait for p; compute with p

becomes, unrolled by two so that each of the two dots in flight keeps its registers,

    p = dot 0
    for i: q = dot i + 1; wait for p; compute with p
           p = dot i + 2; wait for q; compute with q
    the last one or two

The ops that issue a dot, with the waits for its operands, run an iteration ahead of the rest;
the stage indices that both need are computed twice.

Where the result goes to another dot of the loop, threads compute ahead as well: see `chained_dots`.

A loop may have dots besides whose results its iteration uses, as the backward pass of attention has. Their
registers are taken when the next iteration begins, so its first dot alone is issued ahead, after the last one
of this iteration, and is complete at the end:

    s = dot 0; wait for s
    for i: compute with s; start t = other dots; start s = dot i + 1; wait for t; compute with t; wait for s
    compute with s; t = other dots; compute with t

so that the tensor cores have a dot while threads compute with the others.

Loops that keep a reference of exponents (`mark_references`) compute little else than exponentials, but keep scores
until these are known to be small enough, and have no registers for weights of two iterations. There nothing runs
ahead: the last dot is in flight when the next iteration issues its first one (`defer_waits`).

It is opt-in (`mma_stages = 2`), since the second accumulator takes registers.

Invariant: each iteration computes what it did, in the same order; its dots are issued after
all that it waited for, and a stage is released after the wait for its readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import gpu, mbarrier, roles, scf, tma, wgmma
from aotc.ir.rewrite import is_pure, is_unobserved
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import is_written_by_threads
from aotc.schedule.analysis.references import has_room_for_scores, keeps_reference
from aotc.schedule.analysis.register_budget import (
    DOT_CHAIN_RESERVE,
    DOTS_AHEAD_RESERVE,
    ORDER_RESERVE,
    registers_of_tiles,
    reserve_registers,
)
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.chained_dots import find_chain, keeps_all_stages
from aotc.schedule.pipelining.defer_waits import defer_waits, find_late_waits
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule
from aotc.schedule.pipelining.overlap_wgmma import begins_sum
from aotc.schedule.remarks import Reason, Remark


def pipeline_mma(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop whose dots can be issued ahead, if the config asks for it."""
    if schedule.config.mma_stages < 2 or schedule.awaits_dots:
        return
    roles_ = [op for op in kernel.body if isinstance(op, roles.Specialize)]
    if not roles_:
        text = Remark.MMA_NOT_PIPELINED(reason=Reason.NO_PRODUCER())
        schedule.remark(kernel.loc, text)
    for role in roles_:
        for loop in [op for op in role.consumers.walk() if isinstance(op, scf.For)]:
            dots = [op for op in loop.body if isinstance(op, wgmma.Wgmma)]
            if dots:
                start = _find(loop, dots)
                if isinstance(start, _Start):
                    start = _advance(start, role, kernel, schedule)
                remark = Remark.MMA_NOT_PIPELINED if start else Remark.MMA_PIPELINED
                schedule.remark(loop.loc, remark(reason=start))


def _advance(start: _Start, role: roles.Specialize, kernel: Kernel, schedule: Schedule) -> str:
    """Rewrite a loop, or return why not."""
    issued = [op for op in start.ops if not is_pure(op)]
    chain = find_chain(start.loop, start.dots, issued)
    later_dots = [
        op for op in start.loop.body if isinstance(op, wgmma.Wgmma) and op not in start.dots
    ]
    if chain is None and any(map(begins_sum, later_dots)):
        return _advance_first(start, later_dots, role, kernel, schedule)
    if chain and keeps_reference(start.loop):
        live = [start.dots[-1].out, *(dot.a for dot in chain.seconds)]
        if has_room_for_scores(start.loop, live, role, kernel, schedule):
            reason = _advance_first(start, later_dots, role, kernel, schedule)
            if not reason:
                return ""
    if chain and keeps_all_stages(start.dots, chain.seconds):
        return Reason.NO_STAGE_LEFT()
    reserve = DOT_CHAIN_RESERVE if chain else DOTS_AHEAD_RESERVE
    registers = _needed_registers(start, num_results=1 if chain else 2) + reserve
    if not reserve_registers(registers, role, kernel, schedule):
        return Reason.TWO_RESULTS(registers=registers)
    if chain:
        expand_loop(chain.schedule(start.loop))
        return ""
    ahead = LoopSchedule.in_order(start.loop)
    ahead.unroll = 2
    rest = [step.op for step in ahead.steps if step.op not in issued]
    ahead.move(issued, before=rest[0], distance=1)
    expand_loop(ahead)
    return ""


def _advance_first(
    start: _Start,
    later_dots: Sequence[wgmma.Wgmma],
    role: roles.Specialize,
    kernel: Kernel,
    schedule: Schedule,
) -> str:
    """Issue the first dot of the next iteration after the last dot of this one, or return why not.

    Where only waits and releases come after that, these move to the next iteration instead (`defer_waits`). Else the
    dot ahead is waited for in the same iteration: ptxas serializes the MMAs (C7514) if one of the others is in flight
    at the wait for a dot of the iteration before.
    """
    loop, body = start.loop, list(start.loop.body)
    first = _start_of(loop, _awaited_sum(start.dots[0], loop))
    if not isinstance(first, _Start):
        return first
    last = body.index(later_dots[-1])
    late = [op for op in body[last:] if isinstance(op, wgmma.WgmmaWait)]
    dots = [dot for dot in later_dots if any(dot.out in wait.values for wait in late)]
    live = [*loop.carried, first.dots[-1].out, *(dot.a for dot in dots)]
    live += [dot.out for dot in dots if begins_sum(dot)]
    registers = registers_of_tiles(live) + ORDER_RESERVE
    if not reserve_registers(registers, role, kernel, schedule):
        return Reason.TWO_RESULTS(registers=registers)
    deferred = find_late_waits(loop, first.dots, dots)
    if deferred is not None:
        defer_waits(deferred)
        return ""
    issued = [op for op in first.ops if not is_pure(op)]
    (wait,) = first.dots[-1].out.users
    ahead = LoopSchedule.in_order(loop)
    ahead.reorders_dots = True
    ahead.move(issued, before=body[last + 1], distance=1)
    ahead.move([wait], before=None, distance=1)
    expand_loop(ahead)
    return ""


# ---- where ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Start:
    """The dots of a loop, and the ops that issue them: waits, and what is computed twice.

    `state` are the indices of the carried variables that they need. The ops that compute these for
    the next iteration are among `ops`, too.
    """

    loop: scf.For
    dots: Sequence[wgmma.Wgmma]
    ops: Mapping[Op, None]
    state: Sequence[int]


def _find(loop: scf.For, dots: Sequence[wgmma.Wgmma]) -> _Start | str:
    """Return how to issue ahead the dots of a loop whose results are used in it, or why not."""
    awaited = [terms for op in dots if (terms := _awaited_sum(op, loop))]
    if not awaited:
        return Reason.NO_FRESH_ACCUMULATOR()
    # What runs ahead comes first in the iteration, too.
    free = list(takewhile(lambda terms: not _operands_reason(terms, loop), awaited))
    ahead = [op for terms in free for op in terms]
    return _start_of(loop, ahead) if free else _operands_reason(awaited[0], loop)


def _operands_reason(dots: Sequence[wgmma.Wgmma], loop: scf.For) -> str:
    return next(filter(None, (_operand_reason(op, loop) for op in dots)), "")


def _operand_reason(op: wgmma.Wgmma, loop: scf.For) -> str:
    """Return why the operands of a dot are not there before its iteration, "" if they are."""
    if not isinstance(op.a.type, SharedType):
        return Reason.OPERAND_IN_REGISTERS()
    is_written = any(is_written_by_threads(value, loop) for value in (op.a, op.b))
    return Reason.OPERAND_WRITTEN() if is_written else ""


def _start_of(loop: scf.For, dots: Sequence[wgmma.Wgmma]) -> _Start | str:
    """Return what issues dots, or why that cannot run ahead."""
    body = list(loop.body)
    before = body[: body.index(dots[-1]) + 1]
    waits = [op for op in before if isinstance(op, mbarrier.MbarrierWait)]
    if not all(_takes_turns(op.barrier, loop) for op in waits):
        return Reason.ONE_STAGE()
    # A fence for the dots of what has been waited for goes with the wait.
    fences = [op for op in before if isinstance(op, tma.ProxyFence) and op.prev in waits]
    addressing = _slice(loop, [*dots, *waits, *fences])
    if addressing is None:
        return Reason.STAGE_OF_LATER_STEPS()
    for op in addressing.ops:
        if op not in (*dots, *waits, *fences) and not is_pure(op):
            return Reason.STAGE_DEPENDS(op=op.opcode)
    # The dots pass these ops. A load that runs an iteration late reads the same.
    for op in before:
        if op not in addressing.ops and not is_unobserved(op):
            return Reason.NOT_REORDERED(op=op.opcode)
    return replace(addressing, dots=dots)


def _awaited_sum(first: wgmma.Wgmma, loop: scf.For) -> list[wgmma.Wgmma]:
    """Return the dots of a sum with a fresh accumulator that is waited for in its iteration.

    Those are `first` and what adds to it while it is in flight; none if there is no such sum.
    """
    if not isinstance(first.acc.op, gpu.Undefined) or first.acc.op.block is loop.body:
        return []
    terms = [first]
    while True:
        users = list(terms[-1].out.users)
        if len(users) != 1 or users[0].block is not loop.body:
            return []
        if isinstance(users[0], wgmma.WgmmaWait):
            return terms if len(users[0].values) == 1 else []
        if not isinstance(users[0], wgmma.Wgmma):
            return []
        terms.append(users[0])


def _takes_turns(stage: Value, loop: scf.For) -> bool:
    """Return whether the stage of a ring is another one in the next iteration.

    A ring may have several stages of which this loop uses one, where each consumer group owns one.
    """
    if stage.op is None or stage.op.block is not loop.body:
        return False
    addressing = _slice(loop, [stage.op])
    return addressing is None or bool(addressing.state)


def _slice(loop: scf.For, roots: Sequence[Op]) -> _Start | None:
    """Return what ops of a loop need, in this iteration and to be ready for the next one."""
    sources: dict[Op, None] = {}
    state: dict[int, None] = {}
    worklist: list[Op] = list(roots)
    while worklist:
        op = worklist.pop()
        if op in sources:
            continue
        if op.blocks:
            return None
        sources[op] = None
        for value in op.operands:
            source = value
            if value.owner is loop.body and value.index > 0:
                if value.index - 1 in state:
                    continue
                state[value.index - 1] = None
                source = loop.body.terminator.operands[value.index - 1]
            if source.op is not None and source.op.block is loop.body:
                worklist.append(source.op)
            elif source.owner is loop.body and source.index - 1 not in state and source.index:
                return None  # yielded from another variable
    ordered = {op: None for op in loop.body if op in sources}
    return _Start(loop, (), ordered, sorted(state))


def _needed_registers(start: _Start, num_results: int) -> int:
    """Return the registers that a thread holds in carried values, fragments, and results of dots."""
    added_to = [op.acc for op in start.dots]
    dots = [op.out for op in start.dots if op.out not in added_to]
    live = [*start.loop.carried, *(dots * num_results)]
    live += [op.a for op in start.loop.body if isinstance(op, wgmma.Wgmma)]
    return registers_of_tiles(live)
