"""Issue each dot of an iteration as soon as its operands are there, and wait for it where it is used.

A loop may have dots that do not need each other, as the backward pass of attention has five. In the
order of the source each is waited for before the next one is issued:

    for i: s = dot; wait for s; p = f(s); t = dot; wait for t; acc += p @ x; wait for acc; u = g(p, t)

so the tensor cores wait while threads compute. Here dots move up, past waits for others and what is
computed with these, and waits move down:

    for i: s = dot; t = dot; wait for s; p = f(s); acc += p @ x; wait for t; u = g(p, t); …; wait for acc

Waits for stages that a dot reads move up with it, and the arrivals that give them back move down with
its wait. A dot passes those that need the results of more dots, one after the other, than it does: dots
complete in the order in which they are issued, and a wait is for a dot and all before it.

Invariant: no dot passes a write of its operands, and no use of a result passes its wait. The only stage of a ring is
given back before it is waited for again.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import mbarrier, roles, scf, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import is_pure
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import is_written_by_threads, may_alias, stage_of
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.analysis.live_registers import most_registers
from aotc.schedule.analysis.register_budget import (
    ORDER_RESERVE,
    ORDER_SPARE,
    registers_of_thread,
    reserve_registers,
)
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.chained_dots import mbarrier_ops, stages_of
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step
from aotc.schedule.remarks import Remark


def order_dots(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop with several dots; see the module docstring."""
    if schedule.awaits_dots:
        return
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        role = next((op for op in loop.ancestors() if isinstance(op, roles.Specialize)), None)
        order = _Order(loop) if role is not None else _OwnLoads(loop)
        steps = order.found()
        if steps is None or not _has_registers(loop, steps, role, kernel, schedule):
            continue
        schedule.remark(loop.loc, Remark.DOTS_REORDERED())
        expand_loop(LoopSchedule(loop, steps, reorders_dots=True))


def _has_registers(
    loop: scf.For,
    steps: Sequence[Step],
    role: roles.Specialize | None,
    kernel: Kernel,
    schedule: Schedule,
) -> bool:
    """Reserve what a thread holds in that order, with some to spare if there are as many."""
    registers = most_registers(loop, [step.op for step in steps]) + ORDER_RESERVE
    if role is None:
        return registers <= registers_of_thread(kernel, schedule.target)
    return any(
        reserve_registers(registers + spare, role, kernel, schedule) for spare in (ORDER_SPARE, 0)
    )


def _has_one_stage(op: Op) -> bool:
    """Return whether an mbarrier is of a ring of one stage, which has no index."""
    assert isinstance(op, mbarrier.MbarrierWait | mbarrier.MbarrierArrive)
    return stage_of(op.barrier) is None


class _Order:
    """The order of the ops of a loop's body, while it is found."""

    def __init__(self, loop: scf.For) -> None:
        self.loop = loop
        self.ops = [op for op in loop.body if not op.terminator]
        self.dots = [op for op in self.ops if isinstance(op, wgmma.Wgmma)]
        self.waits = [op for op in self.ops if isinstance(op, wgmma.WgmmaWait)]
        self.depths: dict[Op, int] = {}
        self._reads = {op: dict.fromkeys(free_operands(op)) for op in self.ops}

    def found(self) -> list[Step] | None:
        """Return the steps of the loop; None if they are in that order, or some dot is in flight."""
        inner = [op for step in self.ops for block in step.blocks for op in block.walk()]
        simple = all(len(wait.values) == 1 and not wait.pending for wait in self.waits)
        waited = {wait.values[0].op for wait in self.waits}
        if len(self.dots) < 2 or waited != {*self.dots} or not simple:
            return None
        if any(isinstance(op, wgmma.Wgmma | wgmma.WgmmaWait) for op in inner):
            return None
        before = list(self.ops)
        free = [dot for dot in self.dots if not self._is_written(dot)]
        for dot in self.dots[1:]:
            if dot in free:
                self._hoist(dot)
        for wait in sorted(self.waits, key=lambda wait: not self._uses(wait)):
            if wait.values[0].op in free:
                self._sink(wait)
        is_in_order = self._sequence(before) == self._sequence(self.ops)
        return None if is_in_order else [Step(op) for op in self.ops]

    def _is_written(self, dot: wgmma.Wgmma) -> bool:
        buffers = [value for value in (dot.a, dot.b) if isinstance(value.type, SharedType)]
        return any(is_written_by_threads(buffer, self.loop) for buffer in buffers)

    def _sequence(self, ops: Sequence[Op]) -> list[Op]:
        return [op for op in ops if isinstance(op, wgmma.Wgmma | wgmma.WgmmaWait)]

    def _hoist(self, dot: wgmma.Wgmma) -> None:
        """Move a dot and what it needs up to where the last of that is computed."""
        sources = self._needed_by(dot)
        end = self.ops.index(dot)
        depth = self._depth(dot)
        fixed: list[Op] = [
            op for op in self.ops[:end] if isinstance(op, wgmma.Wgmma) and self._depth(op) <= depth
        ]
        fixed += [
            op for op in sources if not is_pure(op) and not isinstance(op, mbarrier.MbarrierWait)
        ]
        fixed += self._before_refill(
            [op for op in sources if isinstance(op, mbarrier.MbarrierWait)]
        )
        fixed += [op for op in self.ops[:end] if self._is_ordered(op, dot)]
        if not fixed:
            return
        start = 1 + max(self.ops.index(op) for op in fixed)
        hoisted = [op for op in self.ops[start:end] if op in sources]
        rest = [op for op in self.ops[start:end] if op not in sources]
        self.ops[start : end + 1] = [*hoisted, dot, *rest]

    def _before_refill(self, waits: Sequence[Op]) -> list[Op]:
        """Return the arrivals that give the stage of a ring of one back before it is waited for again."""
        ends = [self.ops.index(op) for op in waits if _has_one_stage(op)]
        before = self.ops[: max(ends, default=0)]
        return [
            op for op in before if isinstance(op, mbarrier.MbarrierArrive) and _has_one_stage(op)
        ]

    def _depth(self, dot: wgmma.Wgmma) -> int:
        """Return how many dots of the iteration must be complete, one after the other, before it."""
        for op in self.dots[: self.dots.index(dot) + 1]:
            if op not in self.depths:
                sources = self._needed_by(op)
                before = (self.depths[source] for source in self.depths if source in sources)
                self.depths[op] = 1 + max(before, default=-1)
        return self.depths[dot]

    def _needed_by(self, dot: wgmma.Wgmma) -> dict[Op, None]:
        """Return the ops of the iteration that a dot needs, waits for its stages among them."""
        producers: dict[Op, None] = {}
        worklist: list[Op] = [dot]
        while worklist:
            op = worklist.pop()
            sources = [value.op for value in free_operands(op)]
            if op is dot:
                sources += self._on_stages_of(dot, mbarrier.MbarrierWait)
            for source in sources:
                if (
                    source is not None
                    and source.block is self.loop.body
                    and source not in producers
                ):
                    producers[source] = None
                    worklist.append(source)
        return producers

    def _on_stages_of(
        self, dot: wgmma.Wgmma, kind: type[mbarrier.MbarrierWait | mbarrier.MbarrierArrive]
    ) -> list[Op]:
        """Return the ops on mbarriers of what a dot reads, as far as stages tell them apart."""
        on_stages = mbarrier_ops(self.ops, kind, stages_of([dot]))
        # A ring of one stage has no index.
        on_one_stage = [op for op in self.ops if isinstance(op, kind) and _has_one_stage(op)]
        return [*on_stages, *on_one_stage]

    def _sink(self, wait: wgmma.WgmmaWait) -> None:
        """Move a wait down to where it has to be; arrivals at what its dot has read go with it."""
        dot = wait.values[0].op
        assert isinstance(dot, wgmma.Wgmma)
        start, end = self.ops.index(wait), self._place_of(wait, dot)
        arrivals = self._on_stages_of(dot, mbarrier.MbarrierArrive)
        if any(_has_one_stage(op) for op in self.ops[start:end] if op in arrivals):
            refills = [op for op in self.ops[start:end] if isinstance(op, mbarrier.MbarrierWait)]
            end = min([end, *(self.ops.index(op) for op in refills if _has_one_stage(op))])
        end = next(
            (index for index in range(start, end) if self._is_ordered(self.ops[index], dot)), end
        )
        sunk = [op for op in self.ops[start + 1 : end] if op in arrivals]
        rest = [op for op in self.ops[start + 1 : end] if op not in sunk]
        self.ops[start:end] = [*rest, wait, *sunk]

    def _is_ordered(self, op: Op, dot: wgmma.Wgmma) -> bool:
        """Return whether the execution of a dot may not pass an op, besides those it shares values with.

        None: what a producer copies is ordered by mbarriers.
        """
        del op, dot
        return False

    def _uses(self, wait: wgmma.WgmmaWait) -> list[Op]:
        """Return the ops of the iteration that use the result of a wait."""
        return [op for op in self.ops if any(out in self._reads[op] for out in wait.outs)]

    def _place_of(self, wait: wgmma.WgmmaWait, dot: wgmma.Wgmma) -> int:
        """Return the index of the op before which to wait for a dot.

        That is the first use of its result. What is used in later iterations alone is waited for
        where the second dot after it is issued: by then it is complete, and the registers of its
        operand are free for what comes. If there is none, that is with the wait for the dot after
        it, and of the last dot at the end, if that is after other waits.
        """
        start = self.ops.index(wait)
        uses = self._uses(wait)
        if uses:
            return self.ops.index(uses[0])
        newer = [op for op in self.ops[self.ops.index(dot) + 1 :] if isinstance(op, wgmma.Wgmma)]
        if newer[1:2] and self.ops.index(newer[1]) > start:
            return self.ops.index(newer[1])
        waits = [op for op in self.ops[start + 1 :] if isinstance(op, wgmma.WgmmaWait)]
        is_newer = bool(waits) and waits[-1].values[0].op in newer
        return self.ops.index(waits[-1]) if is_newer else len(self.ops)


class _OwnLoads(_Order):
    """The same where the warps that compute issue their own copies: in other iterations' stages, in the loop."""

    def _is_ordered(self, op: Op, dot: wgmma.Wgmma) -> bool:
        buffers = [value for value in (dot.a, dot.b) if isinstance(value.type, SharedType)]
        return any(
            other.has(Trait.BARRIER)
            or other.orders(Resource.COPIES)
            or any(
                not effect.of
                or any(may_alias(getattr(other, effect.of), buffer) for buffer in buffers)
                for effect in other.effects_on(Resource.SHARED, "write")
            )
            for other in (op, *(inner for block in op.blocks for inner in block.walk()))
        )
