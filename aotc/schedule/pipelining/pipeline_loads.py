"""Software pipelining: issue the loads of a loop iterations before their values are used.

The plan (`load_pipeline`) says which loads run ahead, how far and by which path; this pass
applies it. With loads at distances up to d, the loop

    for i: compute(load(address(i)))

becomes

    for k < d: if iteration k exists: issue load(address(k))
    for i: wait; barrier; if iteration i+d exists: issue load(address(i+d)); compute(loaded(i))

For every distance the loop carries a copy of the variables that addresses are computed from. That
an iteration exists is a comparison of the induction variable with
an upper bound lowered by whole steps, which saturates, so no bound is too large. Nothing is read
for an iteration that does not exist, and a loop of few or no iterations needs no case of its own.

A tile of an asynchronous copy or tensor load is in the buffer of its stage. Stages rotate, so one
barrier an iteration is enough: it makes visible what has arrived, and the copies issued after it
write the stage read before it. A tile staged through registers has two stages, for the same reason.

Invariant: the loop computes in every iteration what it computed before, in the same order.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf
from aotc.ir.rewrite import Builder
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.load_pipeline import LoopPlan, plan_loop
from aotc.schedule.pipelining.pipeline_remarks import remark_plan, remark_while
from aotc.schedule.pipelining.pipelined_body import LoadEmitter, Mapping, PipelinedBody
from aotc.schedule.shared_memory.mbarrier_ring import carry_phases


def pipeline_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Pipeline every innermost loop that loads; remark what was done, and what not and why."""
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For | scf.While)]:
        if any(isinstance(op, scf.For | scf.While) for block in loop.blocks for op in block.walk()):
            continue
        if isinstance(loop, scf.While):
            remark_while(loop, schedule)
            continue
        num_stages = loop.num_stages or schedule.config.num_stages
        if num_stages > 1:
            plan = plan_loop(loop, num_stages, fetches=not kernel.producer_warps)
            remark_plan(plan, kernel, schedule)
            if plan.loads:
                with at(loop.loc):
                    _Rewriter(plan, kernel).run()


class _Rewriter:
    """Emit the prologue of the pipelined loop, then the loop, and replace the old one.

    `early[k]` maps values of the body to those of iteration `k`, before the loop.
    """

    def __init__(self, plan: LoopPlan, kernel: Kernel) -> None:
        self.plan = plan
        self.loop = plan.loop
        self.place = Builder.before_op(plan.loop)
        self.loads = list(plan.loads.values())
        self.emitter = LoadEmitter(plan, kernel, self.place)
        self.early: list[Mapping] = [{} for _ in range(plan.max_distance)]

    def run(self) -> None:
        """Replace the loop."""
        self._allocate()
        self._issue_early()
        body = PipelinedBody(self.plan, self.emitter, self._value_early)
        inits = [self.loop.lower, self.loop.upper, self.loop.step, *body.inits]
        attributes = self.loop.attributes
        new = self.place(build(scf.For, inits, attributes, [body.write()], self.loop.loc))
        if self.plan.copies:
            self.place(gpu.AsyncWait(0))
        if self.emitter.ring is not None and body.phases is not None:
            end = new.outs[body.phases.index - 1]
            carry_phases(new, self.emitter.ring.start, end)
        for variable, out in zip(self.plan.carried, new.outs, strict=False):
            self.loop.outs[variable.index - 1].replace_all_uses_with(out)
        self.loop.erase()

    def _allocate(self) -> None:
        for load in self.loads:
            buffer = load.buffer
            if buffer is not None:
                slots = {"num_stages": self.plan.buffer_stages(load)}
                made = build(gpu.SharedAlloc, (), {**buffer.attributes, **slots}, (), buffer.loc)
                self.emitter.buffers[load] = self.place(made).out

    def _issue_early(self) -> None:
        """Issue the loads of the first iterations before the loop."""
        emitter, index = self.emitter, self.loop.lower
        for iteration, mapping in enumerate(self.early):
            if iteration:
                index = self.place(arith.Add(index, self.loop.step)).out
            mapping[self.loop.induction] = index
        for time in range(-self.plan.max_distance, 0):
            for load in self.loads:
                iteration = time + load.distance
                if iteration < 0:
                    continue
                mapping = self.early[iteration]
                for variable in load.slice.carried:
                    mapping[variable] = self._value_early(variable, iteration)
                exists = emitter.exists(self.loop.lower, iteration, self.place)
                emitter.issue(load, mapping, exists, (emitter.zero, iteration), self.place)
            if self.plan.copies and time >= -self.plan.copy_distance:
                self.place(gpu.AsyncCommit())

    def _value_early(self, value: Value, iteration: int) -> Value:
        """Return a value of the body in one of the iterations that the prologue issues."""
        if value.owner is not self.loop.body or value.index == 0:
            return self.early[iteration].get(value, value)
        if iteration == 0:
            init = self.loop.init[value.index - 1]
            assert init is not None
            return init
        return self._value_early(self.plan.yielded(value), iteration - 1)
