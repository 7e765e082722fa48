"""Hand copies by threads over to the producer, beside its tensor loads.

Rows that are gathered have no box, so threads copy them by `cp.async`. If consumers did, every
iteration would have a barrier between them, for what each of them copied is read by all, and none of the
copies for the next program instance could be issued before this one ends. The threads of the producer have
nothing else to do: they compute the addresses of the rows, and run ahead as far as the ring has room.

Invariant: what is handed over is read by dots alone, and all that its addresses are computed from is known
to the producer: arguments, counters, and memory that the kernel does not write.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf, thread_copy
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.global_order import (
    fences,
    may_precede,
    root_names,
    shared_roots,
    synchronizes,
    written_pointer,
)
from aotc.schedule.analysis.loop_loads import copy_vector, load_disorder
from aotc.schedule.analysis.loop_slice import Staging, find_staging
from aotc.schedule.analysis.producer_slice import makes_map_in_loop, tile_obstacle
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARPGROUP_WARPS
from aotc.schedule.remarks import Reason, Remark


def hand_over_copies(loop: scf.For, kernel: Kernel, schedule: Schedule) -> None:
    """Make loads of a loop that threads would copy to operands of its dots loads of the producer."""
    if not _has_threads(kernel, schedule):
        return
    for load, staging, vector in list(_copies(loop)):
        obstacle = _obstacle(load, loop, kernel)
        names = root_names(load.pointer)
        if obstacle:
            schedule.remark(load.loc, Remark.NO_PRODUCER_COPY(names=names, reason=obstacle))
            continue
        with at(load.loc):
            _replace(load, staging, vector)
        schedule.remark(load.loc, Remark.PRODUCER_COPY(names=names))


def _has_threads(kernel: Kernel, schedule: Schedule) -> bool:
    """Return whether a warpgroup of producers is there for copies: one alone, of one CTA."""
    return (
        kernel.producer_warps == WARPGROUP_WARPS
        and kernel.num_warps % WARPGROUP_WARPS == 0
        and kernel.num_consumer_groups == 1
        and schedule.config.num_ctas == 1
        and not any(map(makes_map_in_loop, kernel.walk()))
    )


def _copies(loop: scf.For) -> Iterator[tuple[gpu.Load, Staging, int]]:
    """Yield the loads that `cp.async` can bring to operands of dots, with the elements of an access."""
    for op in loop.body:
        staging = find_staging(op) if isinstance(op, gpu.Load) else None
        if staging is None or not staging.feeds_wgmma:
            continue
        assert isinstance(op, gpu.Load)
        vector = copy_vector(op, staging)
        if vector:
            yield op, staging, vector


def _obstacle(load: gpu.Load, loop: scf.For, kernel: Kernel) -> str:
    """Return why the producer cannot issue a load, or an empty string."""
    disorder = load_disorder(loop, load, list(fences(loop.body)))
    if disorder:
        return disorder
    for op in fences(kernel.body):
        if synchronizes(op) and may_precede(op, load):
            return Reason.FENCE_BEFORE(op=op.opcode)
        target = written_pointer(op)
        if target is not None and shared_roots(load.pointer, target):
            return Reason.LOADS_NEED_WRITTEN(names=root_names(target))
    return tile_obstacle(kernel, _inputs(load))


def _inputs(load: gpu.Load) -> list[Value]:
    return [load.pointer] if load.mask is None else [load.pointer, load.mask]


def _replace(load: gpu.Load, staging: Staging, vector: int) -> None:
    """Replace a load and the store of what it brings by one copy, where the store stands."""
    builder = Builder.before_op(staging.store)
    inputs: list[Value] = []
    for value in _inputs(load):
        for rename in staging.renames:
            value = _renamed(rename, value, builder)  # noqa: PLW2901 - one rename after another
        inputs.append(value)
    pointer, *masks = inputs
    builder(
        thread_copy.SyncThreadLoad(
            pointer,
            staging.store.buffer,
            masks[0] if masks else None,
            vector=vector,
            cache=load.cache,
            eviction=load.eviction,
            prefetch_bytes=load.prefetch_bytes,
        )
    )
    for op in (staging.store, *reversed(staging.renames), load):
        op.erase()


def _renamed(rename: Op, value: Value, builder: Builder) -> Value:
    return builder(rename.clone({rename.operands[0]: value})).results[0]
