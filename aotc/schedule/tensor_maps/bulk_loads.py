"""Replace contiguous loads by bulk copies in loops with requested pipelining.

A loop over rows, such as a softmax, is limited by registers: they hold little more than one iteration's
loads. One thread issuing copies of some kilobytes keeps as many stages in flight as shared memory holds. A
contiguous load of such a loop (`contiguous_run`) becomes a bulk copy to a buffer and a load from there,
masked as before. The issuing warp and the distance ahead are chosen as for tensor loads.

This pays if few CTAs are resident, or loops have few loads in flight. Many CTAs on an SM hide each other's
latency, and a ring of buffers would only lower the occupancy. The compiler cannot tell, so the source
requests copies by `num_stages` or `warp_specialize` of `tl.range`, or the configuration by
`warp_specialize`. A load with an address loaded in the same loop stays: the thread issuing copies would
stall on every address.

A loop with tensor loads issues copies anyway. There a row staged through shared memory, such as statistics
beside the operands of dots, becomes a copy of any length. Otherwise threads would copy it, and meet at a
barrier in every iteration.

Copies do not see the kernel's earlier writes, and may be issued ahead of them.

Invariant: results are unchanged; a copy keeps its order with all writes of the kernel.
"""

from __future__ import annotations

from math import prod

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import ScalarType, TileType, element_of
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import (
    fences,
    may_precede,
    root_names,
    shared_roots,
    written_pointer,
)
from aotc.schedule.analysis.loop_slice import Staging, collect_slice, find_staging
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import row_major_shared
from aotc.schedule.layout.tensor_copies import buffer_access
from aotc.schedule.tensor_maps.bulk_copies import (
    advise_order,
    asks_for_copies,
    choose_runs,
    is_long,
    may_copy,
    order_is_promised,
    room_for_copies,
)
from aotc.schedule.tensor_maps.contiguous_run import PIECE_BYTES, ContiguousRun, RunEmitter, run_of
from aotc.schedule.tensor_maps.pointer_box import UnmappableError


def bulk_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Replace loads by bulk copies; see the module docstring."""
    if not may_copy(schedule):
        return
    loops = [
        loop
        for loop in kernel.walk()
        if isinstance(loop, scf.For) and asks_for_copies(loop, schedule)
    ]
    loads = [op for loop in loops for op in loop.body if isinstance(op, gpu.Load)]
    loads = [load for load in loads if is_long(load.out.type) and find_staging(load) is None]
    staged = _staged_rows(kernel, schedule)
    loads += staged
    if not loads:
        return
    analysis, facts = AffineAnalysis(kernel), AxisAnalysis(kernel)
    room = room_for_copies(kernel, schedule)

    def checked(load: gpu.Load) -> ContiguousRun:
        _check_order(load, kernel)
        run = run_of(load, analysis, facts)
        _check_runs_ahead(load, run, analysis)
        assert isinstance(load.parent_op, scf.For)
        room.take(run.size_bytes, schedule.stages_of(load.parent_op))
        return run

    runs = choose_runs(loads, checked, schedule)
    for load, run in runs:
        with at(load.loc):
            if load in staged:
                _copy_to_staging(load, staged[load], run, analysis)
            else:
                _copy(load, run, analysis)


def _staged_rows(kernel: Kernel, schedule: Schedule) -> dict[gpu.Load, Staging]:
    """Return unmasked loads of single rows that threads stage, in pipelined loops with tensor loads."""
    loops = [
        op
        for op in kernel.walk()
        if isinstance(op, scf.For)
        and schedule.stages_of(op) > 1
        and any(isinstance(inner, tma.SyncTmaLoad) for inner in op.body)
    ]
    loads = [op for loop in loops for op in loop.body if isinstance(op, gpu.Load) and not op.mask]
    staged = {load: find_staging(load) for load in loads}
    return {
        load: staging
        for load, staging in staged.items()
        if staging is not None and _is_row(staging)
    }


def _is_row(staging: Staging) -> bool:
    """Return whether a staged tile is a row, and read as a whole by threads."""
    reads = [user for user in staging.buffer.out.users if user is not staging.store]
    return prod(staging.buffer.shape) == max(staging.buffer.shape) and all(
        type(read) is gpu.SharedLoad
        and not read.start
        and read.element in (None, staging.buffer.element)
        for read in reads
    )


# ---- checks -----------------------------------------------------------------------------------


def _check_runs_ahead(load: gpu.Load, run: ContiguousRun, analysis: AffineAnalysis) -> None:
    """Refuse a load whose copy cannot be issued iterations ahead."""
    loop = load.parent_op
    assert isinstance(loop, scf.For)
    addressing = collect_slice(loop, [run.base, *run.scalars(analysis)])
    if addressing.obstacle:
        raise UnmappableError(addressing.obstacle)
    masked = collect_slice(
        loop, [operand for operand in (load.mask, load.other) if operand is not None]
    )
    if addressing.loads or masked.loads or masked.obstacle:
        raise UnmappableError("its address or mask depends on what the loop loads")


def _check_order(load: gpu.Load, kernel: Kernel) -> None:
    """Refuse a load that may read the kernel's earlier writes.

    `num_stages` promises no alias between different arguments within a loop.
    """
    if load.volatile or load.cache == "cv":
        raise UnmappableError("it is volatile")
    for op in kernel.walk():
        if getattr(op, "volatile", False) and may_precede(op, load):
            raise UnmappableError("a volatile load before it may wait for other programs to write")
    for fence in fences(kernel.body):
        pointer = written_pointer(fence)
        if fence.has(Trait.DEPENDENT_LAUNCH):
            continue  # the thread issuing copies waits, too
        if pointer is not None and shared_roots(load.pointer, pointer):
            raise UnmappableError("the kernel writes through it, too")
        if not may_precede(fence, load):
            continue
        if pointer is None:
            raise UnmappableError(f"{fence.opcode} before it keeps memory accesses in order")
        if not order_is_promised(fence, load):
            raise UnmappableError(
                f"the kernel writes through {root_names(pointer)} before, which may be the same "
                "memory",
                advise_order(fence, load),
            )


# ---- rewriting --------------------------------------------------------------------------------


def _copy_to_staging(
    load: gpu.Load, staging: Staging, run: ContiguousRun, analysis: AffineAnalysis
) -> None:
    """Copy the run to a buffer in order, in place of the one that the load is stored to."""
    old = staging.buffer
    layout = row_major_shared(old.shape)
    builder = Builder.before_op(staging.store)
    buffer = builder(gpu.SharedAlloc(old.element, old.shape, layout, PIECE_BYTES)).out
    emitter = RunEmitter(analysis, builder)
    copied = (emitter.pointer(run), buffer, emitter.size_bytes(run))
    builder(tma.SyncBulkLoad(*copied, load.eviction))
    staging.store.erase()
    for read in list(old.out.users):
        assert isinstance(read, gpu.SharedLoad)
        vector, _ = buffer_access(read.layout, layout, old.element.bits, ("",))
        ordered = gpu.SharedLoad(buffer, read.layout, vector, element=read.element)
        read.replace_with([Builder.before_op(read)(ordered).out])
    for op in (*reversed(staging.renames), load, old):
        op.erase()


def _copy(load: gpu.Load, run: ContiguousRun, analysis: AffineAnalysis) -> None:
    """Copy the run to a buffer, and load the tile from there."""
    builder, kind = Builder.before_op(load), load.out.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    emitter = RunEmitter(analysis, builder)
    layout = row_major_shared(kind.shape)
    element = element_of(kind)
    assert isinstance(element, ScalarType)
    pointer, size_bytes = emitter.pointer(run), emitter.size_bytes(run)
    buffer = builder(gpu.SharedAlloc(element, kind.shape, layout, PIECE_BYTES)).out
    builder(tma.SyncBulkLoad(pointer, buffer, size_bytes, load.eviction))
    vector, _ = buffer_access(kind.layout, layout, element.bits, ("",))
    if load.mask is None:
        read = gpu.SharedLoad(buffer, kind.layout, vector)
    else:
        # The elements of an access share a mask value, since runs end with whole pieces.
        read = gpu.MaskedSharedLoad(buffer, kind.layout, vector, mask=load.mask, other=load.other)
    load.replace_with([builder(read).out])
