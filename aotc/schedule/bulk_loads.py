"""Let loops that were asked to run ahead load runs of memory by bulk copies.

A loop that only reads rows, as a softmax does, waits for registers: they hold one iteration, and
little of it. One thread that starts a copy of some kilobytes keeps as many stages on their way as
there is shared memory for. What such a loop loads in one piece (`contiguous_run`) becomes a fetch
to a buffer and a load from there, masked as before; who makes the copies, and how far ahead, is
decided as for tensor copies.

This pays where few blocks are resident, or loops are short of loads in flight. Where many blocks
share a multiprocessor they hide each other's latency, and a ring of buffers would only make them
fewer. The compiler does not know which it is, so the source says it, by `num_stages` or
`warp_specialize` of `tl.range`, or the configuration, by `warp_specialize`. Products have their
operands copied anyway. A load whose address was loaded in the same loop is left alone: the thread
that copies would wait for every address.

Copies do not see what the kernel itself wrote before, and may be made ahead of it.

Invariant: the kernel computes what it computed; what is fetched is fetched in order with all that
the kernel writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, grid, scf, tma, wgmma
from aotc.ir.rewrite import Builder
from aotc.ir.types import ScalarType, SharedType, TileType, element_of
from aotc.schedule.affine import AffineAnalysis
from aotc.schedule.axis import AxisAnalysis
from aotc.schedule.context import Schedule
from aotc.schedule.contiguous_run import PIECE_BYTES, ContiguousRun, RunEmitter, run_of
from aotc.schedule.global_order import (
    fences,
    is_inside,
    may_precede,
    root_names,
    shared_roots,
    written_pointer,
)
from aotc.schedule.layouts import row_major_shared
from aotc.schedule.load_pipeline import collect_slice, find_trip
from aotc.schedule.pointer_block import UnmappableError
from aotc.schedule.tensor_copies import buffer_access
from aotc.target import Feature

MIN_BYTES = 2048
"""What a copy has to bring to be worth a turn of mbarriers."""
RESERVED_BYTES = 1024  # mbarriers, and what buffers lose to their alignment


def bulk_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Replace loads by fetches; see the module docstring."""
    if Feature.TMA not in schedule.target.features or schedule.config.num_ctas > 1:
        return
    loops = [
        loop
        for loop in kernel.walk()
        if isinstance(loop, scf.For) and asks_for_copies(loop, schedule)
    ]
    loads = [op for loop in loops for op in loop.body if _is_tile_load(op)]
    if not loads:
        return
    analysis, facts = AffineAnalysis(kernel), AxisAnalysis(kernel)
    room = Room(schedule.target.max_shared_bytes - RESERVED_BYTES - _taken_bytes(kernel))
    found: list[tuple[gpu.Load, ContiguousRun]] = []
    for load in loads:
        assert isinstance(load, gpu.Load)
        name = root_names(load.pointer)
        try:
            _check_order(load, kernel)
            run = run_of(load, analysis, facts)
            _check_runs_ahead(load, run, analysis)
            assert isinstance(load.parent_op, scf.For)
            room.take(run.size_bytes, num_stages_of(load.parent_op, schedule))
        except UnmappableError as refusal:
            text = f"{name} is not loaded by bulk copies: {refusal.reason}"
            schedule.remark(load.loc, f"{text}; {refusal.remedy}" if refusal.remedy else text)
            continue
        schedule.remark(load.loc, f"{name} is loaded by bulk copies of {run.size_bytes} bytes")
        found.append((load, run))
    for load, run in found:
        with at(load.loc):
            _fetch(load, run, analysis)


# ---- which loops, and which of their loads ----------------------------------------------------


def asks_for_copies(loop: scf.For, schedule: Schedule) -> bool:
    """Return whether somebody wants a loop to run ahead that has no products and no inner loops."""
    if (loop.num_stages or schedule.config.num_stages) == 1:
        return False
    asked = loop.num_stages or loop.warp_specialize or schedule.config.warp_specialize
    others = (scf.For, scf.While, gpu.Dot, wgmma.Wgmma)
    return bool(asked) and not any(isinstance(op, others) for op in loop.body.walk())


def _is_tile_load(op: Op) -> bool:
    """Return whether an op loads a tile that is large enough, and not on its way elsewhere."""
    if not isinstance(op, gpu.Load) or not isinstance(op.out.type, TileType):
        return False
    element = op.out.type.element
    if not isinstance(element, ScalarType) or element.bits % 8 or find_trip(op) is not None:
        return False
    return prod(op.out.type.shape) * element.size_bytes >= MIN_BYTES


def num_stages_of(loop: scf.For, schedule: Schedule) -> int:
    """Return how many iterations of a loop are on their way at a time."""
    return loop.num_stages or schedule.config.num_stages


def _check_runs_ahead(load: gpu.Load, run: ContiguousRun, analysis: AffineAnalysis) -> None:
    """Refuse a load that a copy cannot be made of iterations before."""
    loop = load.parent_op
    assert isinstance(loop, scf.For)
    scalars = [analysis.sources[symbol] for symbol in run.symbols]
    values = [source for source in scalars if isinstance(source, Value)]
    if len(values) < len(scalars):
        raise UnmappableError("its address wraps around")
    needed = collect_slice(loop, [run.base, *values])
    if needed.obstacle:
        raise UnmappableError(needed.obstacle)
    masked = collect_slice(loop, [each for each in (load.mask, load.other) if each is not None])
    if needed.loads or masked.loads or masked.obstacle:
        raise UnmappableError("its address or mask depends on what the loop loads")


def _check_order(load: gpu.Load, kernel: Kernel) -> None:
    """Refuse a load that may read what the kernel wrote before it.

    That different arguments are different memory, `num_stages` promises of the iterations of its
    loop.
    """
    if load.volatile or load.cache == "cv":
        raise UnmappableError("it is volatile")
    for op in kernel.walk():
        if isinstance(op, gpu.Load) and op.volatile and may_precede(op, load):
            raise UnmappableError("a volatile load before it may wait for other programs to write")
    for fence in fences(kernel.body):
        pointer = written_pointer(fence)
        if isinstance(fence, grid.GridWait):
            continue  # who copies waits, too
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
                "num_stages of tl.range promises that it is not" if _loops(fence, load) else "",
            )


def order_is_promised(first: Op, second: Op) -> bool:
    """Return whether somebody promised that two accesses of a loop are not of the same memory."""
    loops = _loops(first, second)
    return bool(loops) and all(isinstance(op, scf.For) and op.num_stages for op in loops)


def _loops(first: Op, second: Op) -> list[Op]:
    """Return the loops around both of two ops."""
    around = [op for op in second.ancestors() if is_inside(first, op)]
    return [op for op in around if isinstance(op, scf.For | scf.While)]


@dataclass
class Room:
    """Count what is left of shared memory; rings of all loops are there at the same time."""

    left_bytes: int

    def take(self, size_bytes: int, num_slots: int) -> None:
        """Take a ring. Raises: UnmappableError if there is no room."""
        if size_bytes * num_slots > self.left_bytes:
            raise UnmappableError(
                f"shared memory has no room for {num_slots} stages of {size_bytes} bytes",
                "ask for fewer stages or a smaller block",
            )
        self.left_bytes -= size_bytes * num_slots


def _taken_bytes(kernel: Kernel) -> int:
    return sum(_bytes_of(op) for op in kernel.walk() if isinstance(op, gpu.SharedAlloc))


def _bytes_of(alloc: gpu.SharedAlloc) -> int:
    assert isinstance(alloc.out.type, SharedType)
    return alloc.out.type.size_bytes


# ---- the rewriting ----------------------------------------------------------------------------


def _fetch(load: gpu.Load, run: ContiguousRun, analysis: AffineAnalysis) -> None:
    """Fetch the run to a buffer, and load the tile from there."""
    place, kind = Builder.before_op(load), load.out.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    emitter = RunEmitter(analysis, place)
    layout = row_major_shared(kind.shape)
    element = element_of(kind)
    assert isinstance(element, ScalarType)
    pointer, size_bytes = emitter.pointer(run), emitter.size_bytes(run)
    buffer = place(gpu.SharedAlloc(element, kind.shape, layout, PIECE_BYTES)).out
    place(tma.BulkFetch(pointer, buffer, size_bytes, load.eviction))
    vector, _ = buffer_access(kind.layout, layout, element.bits, ("",))
    if load.mask is None:
        read = gpu.SharedLoad(buffer, kind.layout, vector)
    else:
        # The elements of an access share a mask value, since runs end with whole pieces.
        read = gpu.MaskedSharedLoad(buffer, kind.layout, vector, mask=load.mask, other=load.other)
    load.replace_with([place(read).out])
