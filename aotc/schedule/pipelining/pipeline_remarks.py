"""Remarks on the pipelining of a loop: what was done, what not, and why.

Invariant: every load of a loop that is not issued ahead is named with its reason, and every tile
staged through shared memory that is too narrow for `cp.async` with what would widen it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, scf, tma
from aotc.ir.types import SharedType, TileType
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import is_zero, root_names
from aotc.schedule.analysis.loop_loads import MIN_COPY_BYTES, copy_vector
from aotc.schedule.analysis.loop_slice import Staging, find_staging
from aotc.schedule.analysis.narrow_access import narrow_cause
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.load_pipeline import LoopPlan, source_names
from aotc.schedule.remarks import Reason, Remark


def remark_plan(plan: LoopPlan, kernel: Kernel, schedule: Schedule) -> None:
    """Remark which loads of a loop are pipelined, which are not, and why."""
    in_registers = [load for load in plan.loads.values() if not load.lands]
    bulk = [load for load in plan.tensor_loads if isinstance(load.op, tma.SyncBulkLoad)]
    tensors = [load for load in plan.tensor_loads if load not in bulk]
    paths = (
        *((plan.copies, "shared memory"), (tensors, "tensor copies"), (bulk, "bulk copies")),
        (in_registers, "registers"),
    )
    for loads, way in paths:
        if loads:
            names = ", ".join(dict.fromkeys(source_names(load.op) for load in loads))
            stages = (
                1 + max(load.distance for load in loads)
                if loads is in_registers
                else plan.num_stages
            )
            text = Remark.PIPELINED(stages=stages, way=way, names=names)
            schedule.remark(plan.loop.loc, text)
    for op, reason in plan.refused.items():
        text = Remark.LOAD_NOT_PIPELINED(names=source_names(op), reason=reason)
        schedule.remark(op.loc, text)
    # A producer warp issues tensor loads under branches, too.
    kinds = gpu.Load if kernel.producer_warps else gpu.Load | tma.SyncLoad
    for op in plan.loop.body.walk():
        if isinstance(op, kinds) and op.block is not plan.loop.body:
            reason = Reason.UNDER_BRANCH()
            text = Remark.LOAD_NOT_PIPELINED(names=source_names(op), reason=reason)
            schedule.remark(op.loc, text)
    loads = [
        op
        for op in (*(load.op for load in in_registers), *plan.refused)
        if isinstance(op, gpu.Load)
    ]
    _remark_narrow(loads, kernel, schedule)


def remark_while(loop: scf.While, schedule: Schedule) -> None:
    """Remark why a loop with a condition is not pipelined, if it loads."""
    loads = [op for block in loop.blocks for op in block.walk() if isinstance(op, gpu.Load)]
    if loads:
        names = ", ".join(dict.fromkeys(root_names(load.pointer) for load in loads))
        text = Remark.LOADS_NOT_PIPELINED(names=names, reason=Reason.UNKNOWN_TRIP_COUNT())
        schedule.remark(loop.loc, text)


def remark_no_copy(load: gpu.Load, kernel: Kernel, schedule: Schedule) -> None:
    """Remark why a load that nothing stages cannot be a copy to shared memory."""
    kind = load.out.type
    assert isinstance(kind, TileType)
    element_bytes = gpu.memory_element(kind).size_bytes
    reason = Reason.OTHER_NOT_ZERO()
    if is_zero(load.other):
        min_elems = MIN_COPY_BYTES // element_bytes
        cause = narrow_cause(load, kernel, AxisAnalysis(kernel), min_elems)
        reason = Reason.NARROW(width=load.vector * element_bytes, cause=cause)
    text = Remark.NO_CP_ASYNC(name=root_names(load.pointer), reason=reason)
    schedule.remark(load.loc, text)


# ---- copies that could not be -----------------------------------------------------------------


def _remark_narrow(loads: Sequence[gpu.Load], kernel: Kernel, schedule: Schedule) -> None:
    """Remark why tiles are staged through registers, and what would change that."""
    infos: AxisAnalysis | None = None
    for load in loads:
        staging = find_staging(load)
        if staging is None or copy_vector(load, staging):
            continue
        infos = infos or AxisAnalysis(kernel)
        reason = _why_no_copy(load, staging, kernel, infos)
        text = Remark.NO_CP_ASYNC(name=root_names(load.pointer), reason=reason)
        schedule.remark(load.loc, text)


def _why_no_copy(load: gpu.Load, staging: Staging, kernel: Kernel, infos: AxisAnalysis) -> str:
    assert isinstance(staging.store.buffer.type, SharedType)
    element_bytes = staging.store.buffer.type.element.size_bytes
    if not is_zero(load.other):
        return Reason.OTHER_NOT_ZERO()
    width = load.vector * element_bytes
    if width >= MIN_COPY_BYTES:
        return Reason.OTHER_ORDER()
    cause = narrow_cause(load, kernel, infos, MIN_COPY_BYTES // element_bytes)
    return Reason.NARROW(width=width, cause=cause)
