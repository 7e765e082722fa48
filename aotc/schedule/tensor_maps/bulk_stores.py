"""Replace contiguous stores by bulk copies in loops with requested pipelining.

The counterpart of `bulk_loads`: threads write a contiguous tile to shared memory, and one thread issues its
copy. The copy stays in flight while the next iteration computes (`pipeline_tma_stores`). Threads then issue
one access an iteration instead of many. A store by threads is asynchronous too, while a copy costs a
barrier and a buffer. So `num_stages` alone does not request it, but `warp_specialize` of `tl.range` or of
the configuration does.

An atomic without users of its result is a reduction. Copies reduce too, atomically for each element and in
any order, so other reductions of the same kind may share the memory. Threads updating 16 bytes at a time
are faster (on an H100 copies reach 0.94 to 1.00 of their rate). Integers, updated one at a time by threads,
are added by copies at the same rate with fewer instructions.

Copies complete at any time: after later accesses, and in no order among themselves. So a store stays if the
kernel writes through its pointer elsewhere, if a later access may read the same memory, or if anything
keeps memory accesses in order.

Invariant: a store replaced by a copy may complete at any time up to the kernel's end.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, scf, tma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import ScalarType, TileType, element_of
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import (
    accessed_pointer,
    fences,
    is_reduction,
    may_precede,
    root_names,
    shared_roots,
    written_pointer,
)
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import row_major_shared
from aotc.schedule.tensor_maps.bulk_copies import (
    advise_order,
    asks_for_copies,
    choose_runs,
    is_long,
    may_copy,
    order_is_promised,
    reduce_kind,
    room_for_copies,
)
from aotc.schedule.tensor_maps.contiguous_run import PIECE_BYTES, ContiguousRun, RunEmitter, run_of
from aotc.schedule.tensor_maps.pointer_box import UnmappableError

Written = gpu.Store | gpu.AtomicRmw


def bulk_stores(kernel: Kernel, schedule: Schedule) -> None:
    """Replace stores by copies; see the module docstring."""
    if not may_copy(schedule):
        return
    loops = [op for op in kernel.walk() if isinstance(op, scf.For) and _asks(op, schedule)]
    stores = [op for loop in loops for op in loop.body if isinstance(op, gpu.Store | gpu.AtomicRmw)]
    stores = [op for op in stores if is_long(op.value.type)]
    stores = [op for op in stores if isinstance(op, gpu.Store) or is_reduction(op)]
    if not stores:
        return
    analysis, facts = AffineAnalysis(kernel), AxisAnalysis(kernel)
    room = room_for_copies(kernel, schedule)

    def checked(store: Written) -> ContiguousRun:
        if isinstance(store, gpu.AtomicRmw):
            reduce_kind(store)
            if store.vector * element_of(store.value.type).size_bytes >= PIECE_BYTES:
                raise UnmappableError(f"threads update {PIECE_BYTES} bytes at a time")
        _check_order(store, kernel)
        run = run_of(store, analysis, facts)
        run.scalars(analysis)
        room.take(run.size_bytes, 1)
        return run

    for store, run in choose_runs(stores, checked, schedule):
        with at(store.loc):
            _copy(store, run, analysis)


# ---- checks -----------------------------------------------------------------------------------


def _asks(loop: scf.For, schedule: Schedule) -> bool:
    is_requested = loop.warp_specialize or schedule.config.warp_specialize
    return bool(is_requested) and asks_for_copies(loop, schedule)


def _check_order(store: Written, kernel: Kernel) -> None:
    """Refuse a store ordered before a later or after an earlier access."""
    for op in kernel.walk():
        only_reads = op.reads(Resource.GLOBAL) and not op.writes(Resource.GLOBAL)
        if not only_reads or not may_precede(store, op):
            continue
        pointer = accessed_pointer(op)
        if getattr(op, "volatile", False):
            raise UnmappableError("a volatile load after it may wait for other programs to read")
        if pointer is not None and shared_roots(pointer, store.pointer):
            raise UnmappableError("the kernel loads through it afterwards, too")
        if not order_is_promised(store, op):
            name = "a descriptor" if pointer is None else root_names(pointer)
            raise UnmappableError(
                f"the kernel loads through {name} afterwards, which may be the same memory",
                advise_order(store, op),
            )
    for fence in fences(kernel.body):
        pointer = written_pointer(fence)
        if fence is store or fence.has(Trait.DEPENDENT_LAUNCH):
            continue
        is_ordered = fence.has(Trait.ATOMIC) and not is_reduction(fence)
        if pointer is None or is_ordered:
            if may_precede(store, fence):
                advice = 'sem="relaxed" asks for no order' if _is_fence_of(fence, store) else ""
                text = f"{fence.opcode} after it keeps memory accesses in order"
                raise UnmappableError(text, advice)
        elif shared_roots(pointer, store.pointer) and not _reduce_alike(fence, store):
            raise UnmappableError("the kernel writes through it elsewhere, too")


def _is_fence_of(fence: Op, store: Written) -> bool:
    """Return whether a fence implements an atomic's own memory order."""
    if not isinstance(store, gpu.AtomicRmw):
        return False
    return store.prev is fence or (store.prev is not None and store.prev.prev is fence)


def _reduce_alike(op: Op, store: Written) -> bool:
    """Return whether two writes commute."""
    kinds = [atomic.kind for atomic in (op, store) if isinstance(atomic, gpu.AtomicRmw)]
    return len(kinds) > 1 and kinds[0] == kinds[1]


# ---- rewriting --------------------------------------------------------------------------------


def _copy(store: Written, run: ContiguousRun, analysis: AffineAnalysis) -> None:
    """Store the tile to a buffer, and copy the run from there."""
    builder, kind = Builder.before_op(store), store.value.type
    assert isinstance(kind, TileType)
    element = kind.element
    assert isinstance(element, ScalarType)
    emitter = RunEmitter(analysis, builder)
    pointer, size_bytes = emitter.pointer(run), emitter.size_bytes(run)
    layout = row_major_shared(kind.shape)
    buffer = builder(gpu.SharedAlloc(element, kind.shape, layout, PIECE_BYTES)).out
    reduction = reduce_kind(store) if isinstance(store, gpu.AtomicRmw) else ""
    builder(tma.StagedBulkStore(pointer, store.value, buffer, size_bytes, reduction))
    store.erase()
