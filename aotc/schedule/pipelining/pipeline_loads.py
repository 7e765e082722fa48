"""Software pipelining: issue the loads of a loop iterations before their values are used.

The plan (`load_pipeline`) says which loads run ahead, how far and by which path; `issue_loads` gives
each the ops that issue it and wait for it; this pass puts them in order, and `expand_loop` makes the
loop. An iteration of it runs, in order: stores to shared memory of what registers hold; the
wait, and the loads from shared memory that the first of their uses needs; the issue of loads for later
iterations; the rest as it was. Other loads from shared memory sink to their first use, to hold
registers no longer than needed. What is loaded furthest ahead is issued last: by then the one before
it has been used, so that both can have the same registers.

A tile of an asynchronous copy or tensor load is in the buffer of its stage. Stages rotate, so one
barrier an iteration is enough: it makes visible what has arrived, and the copies issued after it
write the stage read before it. A tile staged through registers has two stages, for the same reason.

Invariant: the loop computes in every iteration what it computed before, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.issue_loads import IssuedLoads, issue_loads
from aotc.schedule.pipelining.load_pipeline import LoopPlan, plan_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule, Step
from aotc.schedule.pipelining.pipeline_remarks import remark_plan, remark_while
from aotc.schedule.shared_memory.mbarrier_ring import carry_phases


def pipeline_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Pipeline every innermost loop that loads; remark what was done, and what not and why."""
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For | scf.While)]:
        if any(op.has(Trait.LOOP) for block in loop.blocks for op in block.walk()):
            continue
        if isinstance(loop, scf.While):
            remark_while(loop, schedule)
            continue
        num_stages = schedule.stages_of(loop)
        if num_stages > 1:
            plan = plan_loop(loop, num_stages, tensor_loads=not kernel.producer_warps)
            remark_plan(plan, kernel, schedule)
            if plan.loads:
                with at(loop.loc):
                    _pipeline(plan, kernel)


def _pipeline(plan: LoopPlan, kernel: Kernel) -> None:
    """Replace the loop of a plan."""
    issued = issue_loads(plan, kernel)
    pipelined = expand_loop(_Order(plan, issued).schedule())
    if plan.copies:
        Builder.after_op(pipelined.loop)(gpu.AsyncWait(0))
    if issued.ring is not None:
        carry_phases(pipelined.loop, issued.ring.start, pipelined.outs[issued.carried[-1]])


class _Order:
    """Put the ops of a loop in order."""

    def __init__(self, plan: LoopPlan, issued: IssuedLoads) -> None:
        self.plan = plan
        self.issued = issued
        self.steps: list[Step] = []
        self._stages: dict[Op | None, None] = dict.fromkeys(issued.stages.values())
        self._deferred: dict[Op | None, gpu.SharedLoad] = {}
        self._waited = False

    def schedule(self) -> LoopSchedule:
        """Return the steps of the loop."""
        plan = self.plan
        stored = self._store_loaded()
        rest: list[Op] = []
        for op in plan.loop.body:
            if op not in plan.live or op in stored or op in self._stages:
                continue
            if isinstance(op, gpu.SharedLoad) and op.buffer.op in self._stages:
                self._deferred[op] = op
            else:
                rest.append(op)
        uses = [list(free_operands(op)) for op in rest]
        uses.append([plan.yielded(variable) for variable in plan.carried])
        if plan.copies or plan.tensor_loads:
            self._make_ready(next(filter(self._lies_in_shared, uses), ()))
        self._issue()
        for op, values in zip(rest, uses, strict=False):
            self._make_ready(values)
            self.steps.append(Step(op))
        self._make_ready(uses[-1])
        return LoopSchedule(plan.loop, self.steps, carried=list(self._carried()))

    def _carried(self) -> Iterable[tuple[Value, int]]:
        """Yield what the loop carries: what it did, what runs ahead, loaded tiles, stage indices."""
        loads = list(self.plan.loads.values())
        yield from ((variable, 0) for variable in self.plan.carried)
        for distance in sorted({load.distance for load in loads}):
            for load in loads:
                if load.distance == distance:
                    yield from ((variable, distance) for variable in load.slice.carried)
        for load in loads:
            if isinstance(load.op, gpu.Load) and not load.lands:
                offsets = range(load.first_use, load.distance)
                yield from ((load.op.out, offset) for offset in offsets)
        yield from ((variable, 0) for variable in self.issued.carried)

    def _store_loaded(self) -> dict[Op, None]:
        """Store loaded registers to shared memory; return the ops that do."""
        stored: dict[Op, None] = {}
        for load in self.plan.loads.values():
            if load.staging is None or load.is_async:
                continue
            ops = (self.issued.stages[load], *load.staging.renames, load.staging.store)
            self.steps += map(Step, ops)
            stored.update(dict.fromkeys(ops))
        return stored

    def _make_ready(self, values: Iterable[Value]) -> None:
        """Load those of `values` that are in shared memory."""
        operands = dict.fromkeys(values)
        loads = [op for op in self._deferred.values() if op.out in operands]
        stages = [value.op for value in operands if value.op in self._stages]
        stages += [op.buffer.op for op in loads]
        if stages and not self._waited:
            self.steps += map(Step, self.issued.waits)
            self._waited = True
        self.steps += [Step(op) for op in stages if op is not None]
        for op in loads:
            del self._deferred[op]
            self.steps.append(Step(op))

    def _lies_in_shared(self, values: Iterable[Value]) -> bool:
        return any(value.op in self._deferred or value.op in self._stages for value in values)

    def _issue(self) -> None:
        """Issue the loads of later iterations, all tensor loads of an iteration at once."""
        plan, issued = self.plan, self.issued
        order = {op: number for number, op in enumerate(plan.loop.body)}
        tensor_loads = plan.tensor_loads
        for load in sorted(plan.loads.values(), key=lambda load: load.distance):
            ops = sorted(load.slice.ops, key=order.__getitem__)
            if load not in tensor_loads:
                ops.append(issued.issues[load])
            elif load is tensor_loads[-1]:
                ops += [issued.stages[tensor_load] for tensor_load in tensor_loads]
                ops += [issued.issues[tensor_load] for tensor_load in tensor_loads]
            self.steps += [Step(op, load.distance) for op in ops]
        self.steps += [Step(op, plan.copy_distance) for op in issued.commits]
