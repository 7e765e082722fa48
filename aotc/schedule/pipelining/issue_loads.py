"""Give the loads of a loop that run ahead the ops that issue them, and the ops that wait.

A tile that is staged through shared memory gets a ring in place of its buffer, and the loop a stage
index. A load that writes shared memory without passing through registers becomes the issue of a copy
and the wait for it, both still in their own iteration: which iteration issues is the schedule's.

Invariant: a load that is neither staged nor a tensor load stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir.core import Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, tma
from aotc.ir.rewrite import Builder, append_carried
from aotc.ir.types import I32
from aotc.schedule.pipelining.load_pipeline import LoopPlan, PlannedLoad
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing


@dataclass
class IssuedLoads:
    """What a loop issues and waits for.

    `issues` have the op that issues each load, `stages` the stage of its ring. `waits` come before
    the first read of a stage. `carried` are the loop's variables for all this.
    """

    issues: dict[PlannedLoad, Op] = field(default_factory=dict[PlannedLoad, Op])
    stages: dict[PlannedLoad, gpu.SharedStage] = field(
        default_factory=dict[PlannedLoad, gpu.SharedStage]
    )
    waits: list[Op] = field(default_factory=list[Op])
    commits: list[Op] = field(default_factory=list[Op])
    carried: list[Value] = field(default_factory=list[Value])
    ring: MbarrierRing | None = None


def issue_loads(plan: LoopPlan, kernel: Kernel) -> IssuedLoads:
    """Rewrite the loop of a plan, which is another op afterwards; return what it issues."""
    return _Issue(plan, kernel).run()


class _Issue:
    def __init__(self, plan: LoopPlan, kernel: Kernel) -> None:
        self.plan = plan
        self.body = plan.loop.body
        self.outer = Builder.before_op(plan.loop)
        self.found = IssuedLoads()
        self.found.ring = (
            MbarrierRing.at_entry(kernel, plan.num_stages) if plan.tensor_loads else None
        )
        self.inits: list[Value] = []
        self.yielded: list[Value] = []
        self.full: gpu.SharedStage | None = None

    def run(self) -> IssuedLoads:
        """Rewrite the loop."""
        plan, issued = self.plan, self.found
        zero = self.outer(arith.Constant(0, I32)).out
        start = Builder(self.body, self.body.first)
        end = Builder.before_op(self.body.terminator)
        rings = {
            load: (self._ring(load), plan.buffer_stages(load))
            for load in plan.loads.values()
            if load.buffer is not None
        }
        indices: dict[int, Value] = {}
        for _, num_stages in rings.values():
            if num_stages not in indices:
                index = indices[num_stages] = self._carry(zero, "stage")
                self.yielded.append(end(gpu.NextStage(index, num_stages)).out)
        for load, (ring, num_stages) in rings.items():
            issued.stages[load] = start(gpu.SharedStage(ring, indices[num_stages]))
        if issued.ring is not None:
            self.full = start(gpu.SharedStage(issued.ring.full, indices[plan.num_stages]))
        for load, stage in issued.stages.items():
            assert load.buffer is not None
            load.buffer.replace_with([stage.out])
        if plan.copies:
            # All commit groups but those of the iterations that follow the current one.
            issued.waits.append(end(gpu.AsyncWait(plan.copy_distance - 1)))
        if issued.ring is not None:
            self._wait_at(issued.ring, indices[plan.num_stages], end)
        for load in plan.loads.values():
            issued.issues[load] = self._issue(load)
        if plan.copies:
            issued.commits.append(end(gpu.AsyncCommit()))
        terminator = self.body.terminator
        terminator.set_slots([*terminator.slots, *self.yielded])
        plan.loop = append_carried(plan.loop, self.inits)
        return issued

    def _carry(self, init: Value, hint: str) -> Value:
        self.inits.append(init)
        self.found.carried.append(self.body.add_arg(init.type, hint))
        return self.found.carried[-1]

    def _ring(self, load: PlannedLoad) -> Value:
        buffer = load.buffer
        assert buffer is not None
        attributes = {**buffer.attributes, "num_stages": self.plan.buffer_stages(load)}
        return self.outer(build(gpu.SharedAlloc, (), attributes, (), buffer.loc)).out

    def _wait_at(self, ring: MbarrierRing, index: Value, end: Builder) -> None:
        phases = self._carry(ring.start, "phases")
        before = len(end.added)
        self.yielded.append(ring.wait(index, phases, end))
        self.found.waits += end.added[before:]

    def _issue(self, load: PlannedLoad) -> Op:
        """Return the op that issues a load."""
        op = load.op
        builder = Builder.before_op(op)
        if isinstance(op, tma.SyncLoad):
            return self._issue_tensor(load, op, builder)
        if not load.is_async:
            return op
        assert load.staging is not None
        pointer, mask = op.pointer, op.mask
        with at(op.loc):
            for rename in load.staging.renames:
                pointer = _renamed(rename, pointer, builder)
                mask = None if mask is None else _renamed(rename, mask, builder)
            copy = gpu.AsyncCopy(
                pointer,
                self.found.stages[load].out,
                mask,
                vector=load.vector,
                cache=op.cache,
                eviction=op.eviction,
                prefetch_bytes=op.prefetch_bytes,
            )
            builder(copy)
        load.staging.store.erase()
        for rename in reversed(load.staging.renames):
            rename.erase()
        op.erase()
        return copy

    def _issue_tensor(self, load: PlannedLoad, op: tma.SyncLoad, builder: Builder) -> Op:
        """Replace a tensor load by its issue, which the last one of the loop arrives for."""
        tensor_loads, stage = self.plan.tensor_loads, self.found.stages[load]
        assert self.full is not None
        issue = op.as_async_load(
            op.inputs, stage.out, self.full.out, arrive=load is tensor_loads[-1]
        )
        issue.loc = op.loc
        builder(issue)
        op.erase()
        return issue


def _renamed(rename: Op, value: Value, builder: Builder) -> Value:
    return builder(rename.clone({rename.operands[0]: value})).results[0]
