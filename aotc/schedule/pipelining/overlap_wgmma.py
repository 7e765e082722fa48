"""Keep the dots of a loop in flight across iterations, and let the first one zero the accumulator.

A dot that only adds to a carried accumulator need not be complete when its iteration ends. The
wait after it then leaves it in flight and completes the one before:

    for i: acc = wait 0 (wgmma a[i], b[i], acc)
    for i: acc = wait 1 (wgmma a[i], b[i], acc) ... wait 0

so the tensor cores have the next dot before they are done with this one. It is issued as soon
as its operands are there, and copies for later iterations are issued while it runs. Its operands
must stay until the wait: they are stages of a ring, which no copy of the next iteration overwrites
(`load_pipeline` sees to that), or nothing in the loop writes them.

An accumulator that is initially zero is instead initialized by the first dot (scale-d of 0),
which ignores what it holds. A loop that may run no iteration becomes the arm of a branch whose
other arm yields the zeros: an edge around the loop that joins before the last wait would make ptxas
serialize the MMAs (C7515).

A dot whose result is used in its iteration is waited for there, but as late as possible: scales
are loaded while it runs.

No op moves to another iteration, so there is no schedule to expand (`loop_schedule`): only which dots
the wait of an iteration is for changes.

Invariant: results are used only after a wait that covers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build, clone_block
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tma, wgmma
from aotc.ir.effects import Resource
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import SharedType, element_of
from aotc.schedule.analysis.alias import allocation_of, stage_of, views_of
from aotc.schedule.analysis.global_order import fences, free_operands
from aotc.schedule.analysis.register_budget import REGISTER_BITS
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.slice_fragments import (
    is_computed_in,
    keeps_registers,
    slice_fragments,
)
from aotc.schedule.remarks import Remark


@dataclass(frozen=True)
class _Accumulation:
    """A dot that accumulates into a carried variable of its loop, the variable's index, the wait."""

    dot: wgmma.Wgmma
    wait: wgmma.WgmmaWait
    index: int


def overlap_wgmma(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop that contains a wgmma; see the module docstring."""
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        dots = [op for op in loop.body if isinstance(op, wgmma.Wgmma)]
        if not dots:
            continue
        accumulations, loc = accumulations_of(loop), loop.loc
        in_flight = (
            not schedule.awaits_dots
            and may_stay_in_flight(loop)
            and all(_stays(value, loop) for op in dots for value in op.operands)
        )
        remark = Remark.WGMMA_IN_FLIGHT if in_flight else Remark.WGMMA_AWAITED
        schedule.remark(loc, remark())
        with at(loc):
            _issue_early(loop, dots if in_flight else dots[:1])
            if in_flight:
                _defer_waits(accumulations)
            fresh = [
                accumulation
                for accumulation in accumulations
                if _is_zero(loop.init[accumulation.index])
            ]
            for accumulation in fresh:
                _begin_with_dot(loop, accumulation)
            for op in list(loop.body):
                if isinstance(op, wgmma.WgmmaWait) and not schedule.awaits_dots:
                    _wait_late(op)
            if in_flight:
                slice_fragments(loop)
            if fresh or in_flight:
                _guard(loop, accumulations, fresh, drain=in_flight)


def accumulations_of(loop: scf.For) -> list[_Accumulation]:
    """Return the dots of a loop that only accumulate into a carried variable."""
    accumulations: list[_Accumulation] = []
    for op in loop.body:
        if not isinstance(op, wgmma.Wgmma) or op.acc not in loop.carried:
            continue
        wait, index = next(iter(op.out.users), None), op.acc.index - 1
        if not isinstance(wait, wgmma.WgmmaWait) or len(wait.values) > 1 or wait.pending:
            continue
        alone = list(op.acc.users) == [op] and list(wait.outs[0].users) == [loop.body.terminator]
        if alone and loop.body.terminator.operands[index] is wait.outs[0]:
            accumulations.append(_Accumulation(op, wait, index))
    return accumulations


def may_stay_in_flight(loop: scf.For) -> bool:
    """Return whether the loop's dots may be in flight at the end of an iteration.

    All of them must be such accumulations. An operand that the loop computes must not be computed anew
    while the last dot still reads its registers. A 16-bit result, half a register, cannot be carried.
    """
    dots = [op for op in loop.body.walk() if isinstance(op, wgmma.Wgmma)]
    # Counted first: the slices of an operand are looked for in the whole body.
    return 0 < len(dots) == len(accumulations_of(loop)) and all(
        element_of(op.acc.type).bits == REGISTER_BITS
        and (not is_computed_in(op, loop) or keeps_registers(op, loop))
        for op in dots
    )


def _defer_waits(accumulations: Sequence[_Accumulation]) -> None:
    """Replace the last wait by one that leaves this iteration's dots in flight."""
    builder = Builder.before_op(accumulations[-1].wait)
    outs = [accumulation.dot.out for accumulation in accumulations]
    wait = builder(
        wgmma.WgmmaWait(outs, pending=len(accumulations), num_columns=_columns(accumulations))
    )
    for accumulation, value in zip(accumulations, wait.outs, strict=True):
        accumulation.wait.replace_with([value])


def _columns(accumulations: Sequence[_Accumulation]) -> tuple[int, ...]:
    return tuple(accumulation.dot.num_columns for accumulation in accumulations)


def _stays(value: Value, loop: scf.For) -> bool:
    """Return whether an operand is not overwritten before the end of the next iteration."""
    if not isinstance(value.type, SharedType):
        return True
    stage, buffer = stage_of(value), allocation_of(value)
    if buffer.op is None or buffer.op.block is loop.body:
        return False
    for op in loop.body.walk():
        for effect in op.effects_on(Resource.SHARED, "write"):
            if not effect.of:
                continue  # assembly, which is given no buffers
            target = getattr(op, effect.of)
            if allocation_of(target) is buffer and not _is_other_stage(stage_of(target), stage):
                return False
    return True


def _is_other_stage(written: gpu.SharedStage | None, read: gpu.SharedStage | None) -> bool:
    """Return whether a stage is not the one that is read in this iteration or the next one."""
    if written is None or read is None or written.index is not read.index:
        return False
    kind = read.buffer.type
    assert isinstance(kind, SharedType)
    return written.ahead != (read.ahead - 1) % kind.num_stages


def _issue_early(loop: scf.For, dots: Sequence[wgmma.Wgmma]) -> None:
    """Issue dots right after the loop's wait for copies, before the copies that it issues.

    The tensor loads of their operands are issued there, too.
    """
    order = {op: number for number, op in enumerate(loop.body)}
    waits = [op for op in order if op.orders(Resource.COPIES) or op.orders(Resource.MBARRIER)]
    target = waits[-1].next if waits else None
    if target is None or order[waits[-1]] > order[dots[0]]:
        return
    hoisted: dict[Op, None] = {}
    worklist: list[Op] = list(dots)
    while worklist:
        op = worklist.pop()
        if order.get(op, 0) >= order[target] and op not in hoisted:
            if not is_pure(op) and not isinstance(op, wgmma.Wgmma | tma.SyncLoad):
                return
            hoisted[op] = None
            worklist += [value.op for value in free_operands(op) if value.op is not None]
            worklist += _loads_to(op)
    loads = [order[op] for op in hoisted if isinstance(op, tma.SyncLoad)]
    passed = [op for op in order if order[target] <= order[op] < max(loads, default=0)]
    if any(op not in hoisted for op in fences(passed)):
        return
    for op in sorted(hoisted, key=order.__getitem__):
        if op is target:
            assert op.next is not None
            target = op.next
            continue
        op.remove()
        loop.body.insert(op, before=target)


def _wait_late(wait: wgmma.WgmmaWait) -> None:
    """Sink a wait below the ops and loads that the first user of its result also needs."""
    target = wait.next
    while target is not None and not target.blocks and not target.terminator:
        if any(value in wait.outs for value in target.operands):
            break
        if target.effects_on(None, "write", "order", "start") and not isinstance(
            target, tma.SyncLoad
        ):
            break
        target = target.next
    if target is not None and target is not wait.next:
        block = wait.block
        assert block is not None
        wait.remove()
        block.insert(wait, before=target)


def _loads_to(op: Op) -> list[Op]:
    """Return the tensor loads that bring the operands of a dot; none for other ops."""
    if not isinstance(op, wgmma.Wgmma):
        return []
    loads: list[Op] = []
    for value in (op.a, op.b):
        for buffer in views_of(value):
            loads += [user for user in buffer.users if isinstance(user, tma.SyncLoad)]
    return loads


def begins_sum(dot: wgmma.Wgmma) -> bool:
    """Return whether a dot adds to nothing, and so has registers of its own for the result."""
    return isinstance(dot.acc.op, gpu.Undefined)


def _is_zero(value: Value | None) -> bool:
    op = None if value is None else value.op
    return isinstance(op, arith.Constant) and op.value == 0


def _begin_with_dot(loop: scf.For, accumulation: _Accumulation) -> None:
    dot = accumulation.dot
    builder = Builder.before_op(dot)
    later = builder(arith.Compare(loop.induction, loop.lower, "ne")).out
    slots = [dot.a, dot.b, dot.acc, later]
    first_dot = builder(build(wgmma.Wgmma, slots, dot.attributes, (), dot.loc))
    dot.replace_with(first_dot.results)


def _guard(
    loop: scf.For,
    accumulations: Sequence[_Accumulation],
    fresh: Sequence[_Accumulation],
    *,
    drain: bool,
) -> None:
    """Run the loop, and drain what it leaves in flight, only if there is an iteration."""
    outer = Builder.before_op(loop)
    runs = outer(arith.Compare(loop.lower, loop.upper, "lt")).out
    then, otherwise = Block(), Block()
    inits = list(loop.init)
    Builder(otherwise)(scf.Yield(inits))
    builder = Builder(then)
    starts = list(inits)
    for accumulation in fresh:
        starts[accumulation.index] = builder(gpu.Undefined(inits[accumulation.index].type)).out
    bounds = [loop.lower, loop.upper, loop.step]
    attributes = {**loop.attributes, "unroll": loop.attributes["unroll"] or scf.NEVER_UNROLLED}
    new = builder(
        build(scf.For, [*bounds, *starts], attributes, [clone_block(loop.body, {})], loop.loc)
    )
    outs = list(new.results)
    if drain:
        promised = [outs[accumulation.index] for accumulation in accumulations]
        waited = builder(wgmma.WgmmaWait(promised, num_columns=_columns(accumulations)))
        for accumulation, value in zip(accumulations, waited.outs, strict=True):
            outs[accumulation.index] = value
    builder(scf.Yield(outs))
    branch = outer(build(scf.If, [runs], {}, [then, otherwise], loop.loc))
    loop.replace_with(branch.results)
