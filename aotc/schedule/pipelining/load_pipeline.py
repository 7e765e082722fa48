"""Plan which loads of a loop are issued iterations ahead, by which path, and how far.

There are three paths. A tile whose only use is staging through shared memory is copied there
asynchronously, `num_stages - 1` iterations ahead, into a ring with a buffer for every stage; one
less ahead if dots still read a stage while the next iteration begins (see `overlap_wgmma`).
Tensor loads of a descriptor are issued likewise, unless a producer warp issues them. All
else is loaded into registers one iteration ahead: what is loaded earlier would be moved from
register to register at the end of each iteration, and a move waits for its load. A copy moves 4, 8
or 16 bytes a thread; a load too narrow for that goes through registers, too.
A load that the address of another one depends on is issued one iteration before that one.

The *slice* of a load is everything in the loop that its address, mask and `other` are computed
from. It runs ahead with the load: induction variable and carried values are those of the later
iteration.

Invariant: a planned load's slice has no effects and contains planned loads only; no load is
planned whose order with a write of the loop matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, grid, scf, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_unobserved
from aotc.schedule.analysis.global_order import (
    fences,
    free_operands,
    root_names,
)
from aotc.schedule.analysis.loop_loads import copy_vector, load_disorder
from aotc.schedule.analysis.loop_slice import (
    Slice,
    Staging,
    collect_slice,
    find_staging,
    reads_in_loop,
)
from aotc.schedule.analysis.register_budget import (
    LOADS_BUDGET,
    SMALL_LOADS_BUDGET,
    STAGED_LOADS_BUDGET,
    loaded_registers,
)
from aotc.schedule.pipelining.overlap_wgmma import may_stay_in_flight
from aotc.schedule.remarks import Reason
from aotc.schedule.tensor_maps.reorder_hazard import reorder_hazard

_REGISTER_STAGES = 2


@dataclass(eq=False)
class PlannedLoad:
    """A load that is issued `distance` iterations ahead, live in registers until `first_use`."""

    op: gpu.Load | tma.SyncLoad
    slice: Slice
    staging: Staging | None = None
    vector: int = 0
    distance: int = 0
    first_use: int = 0

    @property
    def is_async(self) -> bool:
        return self.vector > 0

    @property
    def lands(self) -> bool:
        """Whether it writes a stage of shared memory without passing through registers."""
        return self.is_async or isinstance(self.op, tma.SyncLoad)

    @property
    def buffer(self) -> gpu.SharedAlloc | None:
        """The buffer that the tile is staged through, if any."""
        if isinstance(self.op, tma.SyncLoad):
            assert isinstance(self.op.buffer.op, gpu.SharedAlloc)
            return self.op.buffer.op
        return None if self.staging is None else self.staging.buffer

    @property
    def num_registers(self) -> int:
        """32-bit registers that hold the tiles loaded ahead."""
        if isinstance(self.op, tma.SyncLoad) or self.is_async:
            return 0
        return loaded_registers(self.op) * (self.distance - self.first_use)


@dataclass
class LoopPlan:
    """The loads of a loop that run ahead, and why others do not.

    `live` are the ops, `carried` the variables that the body needs besides them.
    """

    loop: scf.For
    num_stages: int
    loads: dict[Op, PlannedLoad]
    refused: dict[gpu.Load | tma.SyncLoad, str]
    live: dict[Op, None] = field(default_factory=dict[Op, None])
    carried: dict[Value, None] = field(default_factory=dict[Value, None])

    @property
    def copy_distance(self) -> int:
        """How many iterations ahead copies are issued.

        A dot that stays in flight across iterations still reads the stage of the one before.
        """
        in_flight = self.num_stages > _REGISTER_STAGES and may_stay_in_flight(self.loop)
        return self.num_stages - (2 if in_flight else 1)

    @property
    def max_distance(self) -> int:
        return max(load.distance for load in self.loads.values())

    @property
    def copies(self) -> list[PlannedLoad]:
        """The loads that are asynchronous copies."""
        return [load for load in self.loads.values() if load.is_async]

    @property
    def tensor_loads(self) -> list[PlannedLoad]:
        """The tensor loads."""
        return [load for load in self.loads.values() if isinstance(load.op, tma.SyncLoad)]

    def buffer_stages(self, load: PlannedLoad) -> int:
        """Return how many stages the buffer of a load needs."""
        return self.num_stages if load.lands else _REGISTER_STAGES

    def yielded(self, variable: Value) -> Value:
        """Return what the body yields for a carried variable."""
        return self.loop.body.terminator.operands[variable.index - 1]


def plan_loop(loop: scf.For, num_stages: int, *, tensor_loads: bool = False) -> LoopPlan:
    """Return the plan of an innermost loop; it may hold no loads.

    Without `tensor_loads`, leave tensor loads out.
    """
    plan = LoopPlan(loop, num_stages, {}, {})
    barriers = list(fences(loop.body))
    for op in loop.body:
        if isinstance(op, gpu.Load):
            reason = load_disorder(loop, op, barriers)
            inputs, staging = collect_slice(loop, op.operands), find_staging(op)
        elif isinstance(op, tma.SyncLoad) and tensor_loads:
            reason, staging = _tensor_load_obstacle(loop, op), None
            inputs = collect_slice(loop, op.inputs)
        else:
            continue
        if reason or inputs.obstacle:
            plan.refused[op] = reason or inputs.obstacle
        else:
            plan.loads[op] = PlannedLoad(op, inputs, staging)
    while True:
        _drop_dependents(plan)
        if not plan.loads:
            return plan
        _choose_paths(plan)
        too_big = _over_budget(plan)
        if not too_big:
            _drop_unneeded(plan)
            return plan
        for load in too_big:
            del plan.loads[load]
            plan.refused[load] = Reason.TOO_MANY_REGISTERS()


def source_names(load: gpu.Load | tma.SyncLoad) -> str:
    """Return the names of the pointers or the tensor that is loaded from, for a remark."""
    if isinstance(load, tma.SyncTmaLoad):
        return load.tensor.hint or "a tensor"
    return root_names(load.pointer)


# ---- what may run ahead -----------------------------------------------------------------------


def _tensor_load_obstacle(loop: scf.For, load: tma.SyncLoad) -> str:
    """Return why a tensor load cannot be issued in an earlier iteration, or an empty string."""
    buffer = load.buffer.op
    if not isinstance(buffer, gpu.SharedAlloc) or buffer.block is not loop.body:
        return Reason.FOREIGN_BUFFER()
    readers = [user for user in buffer.out.users if user is not load]
    if not all(op.has(Trait.ALIAS) or reads_in_loop(op) for op in readers):
        return Reason.SHARED_BUFFER()
    inside = list(loop.body.walk())
    if any(isinstance(op, grid.GridWait) for op in inside):
        return Reason.GRID_WAIT()
    return reorder_hazard(load, inside)


def _drop_dependents(plan: LoopPlan) -> None:
    """Refuse loads whose slice contains a refused load, or the load itself."""
    changed = True
    while changed:
        changed = False
        for op, load in list(plan.loads.items()):
            bad = next(
                (dependence for dependence in load.slice.loads if dependence not in plan.loads),
                None,
            )
            reason = ""
            if bad is not None:
                reason = Reason.ADDRESS_NOT_PIPELINED(names=source_names(bad))
            elif _reaches(plan, load, op):
                reason = Reason.ADDRESS_OF_ITSELF()
            if reason:
                del plan.loads[op]
                plan.refused[load.op] = reason
                changed = True


def _reaches(plan: LoopPlan, start: PlannedLoad, target: Op) -> bool:
    worklist, seen = list(start.slice.loads), dict.fromkeys(start.slice.loads)
    while worklist:
        op = worklist.pop()
        if op is target:
            return True
        fresh = [source for source in plan.loads[op].slice.loads if source not in seen]
        worklist += fresh
        seen.update(dict.fromkeys(fresh))
    return False


# ---- path and distance ------------------------------------------------------------------------


def _choose_paths(plan: LoopPlan) -> None:
    """Set path and distance of every load, and what else the body needs."""
    users: dict[Op, list[PlannedLoad]] = {op: [] for op in plan.loads}
    for load in plan.loads.values():
        for op in load.slice.loads:
            users[op].append(load)
    for op, load in plan.loads.items():
        ahead = load.staging is not None and not users[op]
        load.vector = 0
        if ahead and load.staging is not None and isinstance(load.op, gpu.Load):
            load.vector = copy_vector(load.op, load.staging)
        load.distance = 0
    live = _find_live(plan)
    pending = list(plan.loads)
    while pending:  # users first: slices make no cycle
        op = next(
            candidate
            for candidate in pending
            if all(user_op.op not in pending for user_op in users[candidate])
        )
        pending.remove(op)
        load = plan.loads[op]
        load.distance = plan.copy_distance if load.lands else 1
        load.distance = max([load.distance, *(user.distance + 1 for user in users[op])])
        first = min((user.distance for user in users[op]), default=0)
        load.first_use = 0 if op in live else first


def _drop_unneeded(plan: LoopPlan) -> None:
    """Drop loads that only a dead carried variable needs: nothing would wait for them."""
    live = _find_live(plan)
    read = dict.fromkeys(value for op in plan.live for value in free_operands(op))
    live_loads = {
        op: None
        for op, load in plan.loads.items()
        if op in live or (load.buffer is not None and load.buffer.out in read)
    }
    worklist = list(live_loads)
    while worklist:
        fresh = [op for op in plan.loads[worklist.pop()].slice.loads if op not in live_loads]
        live_loads.update(dict.fromkeys(fresh))
        worklist += fresh
    plan.loads = {op: load for op, load in plan.loads.items() if op in live_loads}


def _find_live(plan: LoopPlan) -> dict[Op, None]:
    """Fill `live` and `carried` of a plan; return the planned loads whose values the body uses."""
    loop = plan.loop
    plan.live, plan.carried = {}, {}
    moving: dict[Op | None, None] = {
        op: None
        for load in plan.loads.values()
        if load.lands
        for op in (load.buffer, None if load.staging is None else load.staging.store)
    }
    live: dict[Op, None] = {}
    results = zip(loop.carried, loop.outs, strict=True)
    worklist = [arg for arg, out in results if out.users]
    for op in loop.body:
        if not op.terminator and op not in plan.loads and op not in moving and not _removable(op):
            plan.live[op] = None
            worklist += free_operands(op)
    yielded = loop.body.terminator.operands
    while worklist:
        value = worklist.pop()
        op = value.op
        if op is None:
            if value.owner is loop.body and value.index > 0 and value not in plan.carried:
                plan.carried[value] = None
                worklist.append(yielded[value.index - 1])
        elif op in plan.loads:
            live[op] = None
        elif op.block is loop.body and op not in plan.live and op not in moving:
            plan.live[op] = None
            worklist += free_operands(op)
    return live


def _removable(op: Op) -> bool:
    """Return whether an op may be removed when its results are unused."""
    return is_unobserved(op) or isinstance(op, gpu.SharedAlloc)


def _over_budget(plan: LoopPlan) -> list[gpu.Load]:
    """Return loads to drop because those in registers exceed the budget.

    The plan is to be made anew after the last of them: it may have set the distances of others.
    Copies that a producer warp issues are not in the plan, but consumers wait for them all the same.
    """
    has_copies = any(load.buffer for load in plan.loads.values())
    has_copies |= any(isinstance(op, tma.SyncLoad) for op in plan.loop.body)
    is_wanted = plan.loop.num_stages or has_copies
    unstaged = LOADS_BUDGET if is_wanted else SMALL_LOADS_BUDGET
    room = {True: STAGED_LOADS_BUDGET, False: unstaged}
    addressing = dict.fromkeys(op for load in plan.loads.values() for op in load.slice.loads)
    dropped: list[gpu.Load] = []
    for load in _by_need(plan.loads.values()):
        is_staged = load.staging is not None
        left = room[is_staged] - load.num_registers
        if left >= 0 or load.lands:
            room[is_staged] = left
            continue
        assert isinstance(load.op, gpu.Load)
        dropped.append(load.op)
        if load.buffer or load.slice.loads or load.op in addressing:
            break
    return dropped


def _by_need(loads: Iterable[PlannedLoad]) -> Sequence[PlannedLoad]:
    """Return the loads in the order to keep them: those that others depend on, then small ones."""
    return sorted(loads, key=lambda load: (-load.distance, load.num_registers))
