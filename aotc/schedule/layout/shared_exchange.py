"""Plan an exchange of a tile through shared memory: stores, a barrier, loads.

Both sides use the widest vectors possible in both layouts, or 8x8 matrices where their fragments
fit (`ldmatrix`, `stmatrix`). A matrix access is one by vectors of 16 bytes under another layout,
the view of `ir.matrix_access`. So the search for a scratch layout is the same for all. Every
fitting combination is costed, and the cheapest is the plan.

Invariant: executing a plan puts the destination layout's element into every register of every
thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress

from aotc.ir import gf2
from aotc.ir.diagnostics import IRError
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.layout_access import (
    Access,
    distinct_register_bits,
    representatives,
    run_elems_in_order,
    thread_offsets,
    vector_accesses,
)
from aotc.ir.matrix_access import RUN_BYTES, MatrixMode, matrix_view
from aotc.schedule.analysis.costs import (
    BARRIER_COST,
    SHARED_ACCESS_COST,
    SHARED_LATENCY,
    WAVEFRONT_COST,
)
from aotc.schedule.layout.scratch import (
    Scratch,
    Side,
    candidates,
    for_run,
    wavefronts_per_access,
)

# Keeping runs of memory together may cost this much more: it spares a copy through registers.
_MAX_RUN_COST = 2

_MODES: tuple[MatrixMode, ...] = ("", "b16", "b16.trans")


@dataclass(frozen=True, slots=True)
class SharedExchange:
    """Exchange values through shared memory.

    For each repetition: all threads whose lane and warp have no bit of `store_skip_lanes` and
    `store_skip_warps` make the accesses `stores[repetition]`; a barrier; all threads make the
    accesses `loads[repetition]`; a barrier before the next repetition. A thread's offset is the XOR
    of the columns of its set lane and warp bits, on the side's own columns. At the end destination
    register `d` is loaded register `representative[d]`.

    A side with a matrix mode makes its accesses by the view of its layout: the lanes give the
    addresses of rows, and the registers are the view's.

    `scratch` maps `offset` (in elements), `repetition` and, in a cluster, `block` to coordinates.
    With `within_warp`, each warp reads only its own writes, so a barrier of the warp is enough.
    """

    scratch: LinearLayout
    scratch_bytes: int
    store_vector_elems: int
    load_vector_elems: int
    stores: tuple[tuple[Access, ...], ...]
    loads: tuple[tuple[Access, ...], ...]
    store_lane_columns: tuple[int, ...]
    store_warp_columns: tuple[int, ...]
    load_lane_columns: tuple[int, ...]
    load_warp_columns: tuple[int, ...]
    store_skip_lanes: int
    store_skip_warps: int
    representative: tuple[int, ...]
    within_warp: bool
    store_matrix: MatrixMode
    load_matrix: MatrixMode
    cost: int

    @property
    def num_repetitions(self) -> int:
        return len(self.stores)


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to exchange: how each side accesses, and the scratch layout between them."""

    store_matrix: MatrixMode
    load_matrix: MatrixMode
    store_view: LinearLayout
    load_view: LinearLayout
    scratch: Scratch


def plan_trip(
    source: LinearLayout,
    destination: LinearLayout,
    element_bits: int,
    max_scratch_bytes: int | None,
    *,
    within_warp: bool,
    stmatrix: bool,
    run_elems: int = 1,
) -> SharedExchange:
    """Return the cheapest exchange; arguments are as for `plan_conversion`.

    Raises: IRError if there is no scratch layout between the two.
    """
    element_bytes = element_bits // 8
    trips = [
        _make_trip(source, destination, element_bytes, way, within_warp=within_warp)
        for way in _ways(
            source, destination, element_bits, max_scratch_bytes, run_elems, stmatrix=stmatrix
        )
    ]
    if not trips:
        raise IRError(f"no scratch layout from {source} to {destination}")
    best = min(trips, key=lambda trip: trip.cost)
    keeping = [trip for trip in trips if run_elems_in_order(source, trip.scratch) >= run_elems]
    best_in_order = min(keeping, key=lambda trip: trip.cost, default=best)
    return best_in_order if best_in_order.cost <= _MAX_RUN_COST * best.cost else best


def _ways(
    source: LinearLayout,
    destination: LinearLayout,
    element_bits: int,
    max_scratch_bytes: int | None,
    run_elems: int,
    *,
    stmatrix: bool,
) -> Iterator[_Way]:
    """Yield the ways worth comparing, plain vectors first."""
    element_bytes = element_bits // 8
    skip = _copies(source)
    elements = gf2.independent(
        [*source.columns("register"), *source.columns("lane"), *source.columns("warp")]
    )
    store, load = _side(source, *skip), _side(destination)
    for scratch in candidates(store, load, elements, element_bytes, max_scratch_bytes):
        yield _Way("", "", source, destination, scratch)
    if max_scratch_bytes is not None:
        return
    if run_elems > 1:
        run = _lowest(source, run_elems)
        by_runs = _by_rows(store, len(run))
        for scratch in for_run(by_runs, load, elements, element_bytes, run, (True, False)):
            yield _Way("", "", source, destination, scratch)
    # All lanes take part in a matrix access, so none may hold a replica excluded from storing.
    store_modes = _MODES if stmatrix and not any(skip) else _MODES[:1]
    row_elems = RUN_BYTES // element_bytes
    for store_mode in store_modes:
        for load_mode in _MODES:
            store_view = matrix_view(source, element_bits, store_mode)
            load_view = matrix_view(destination, element_bits, load_mode)
            forced = (bool(store_mode), bool(load_mode))
            if store_view is None or load_view is None or not any(forced):
                continue
            runs = [_lowest(view, row_elems) for view in compress((store_view, load_view), forced)]
            if all(run == runs[0] for run in runs):
                store, load = _side(store_view, *_copies(store_view)), _side(load_view)
                store, load = (
                    _by_rows(side, len(runs[0])) if mode else side
                    for side, mode in ((store, store_mode), (load, load_mode))
                )
                for scratch in for_run(store, load, elements, element_bytes, runs[0], forced):
                    yield _Way(store_mode, load_mode, store_view, load_view, scratch)


def _copies(layout: LinearLayout) -> tuple[int, int]:
    """Return the lane and warp bits of replicas, which are not stored."""
    free = layout.free_variable_masks()
    return free.get("lane", 0), free.get("warp", 0)


def _lowest(layout: LinearLayout, count: int) -> tuple[int, ...]:
    """Return the elements of the lowest `count` registers."""
    return layout.columns("register")[: log2_exact(count)]


def _make_trip(
    source: LinearLayout,
    destination: LinearLayout,
    element_bytes: int,
    way: _Way,
    *,
    within_warp: bool,
) -> SharedExchange:
    scratch = way.scratch
    memory = _memory_layout(source, scratch)
    store_offsets = thread_offsets(way.store_view, memory)
    load_offsets = thread_offsets(way.load_view, memory)
    skip_lanes, skip_warps = _copies(way.store_view)
    trip = SharedExchange(
        scratch=memory,
        scratch_bytes=element_bytes << len(scratch.offset),
        store_vector_elems=1 << scratch.store_vector_bits,
        load_vector_elems=1 << scratch.load_vector_bits,
        stores=vector_accesses(way.store_view, memory, 1 << scratch.store_vector_bits),
        loads=vector_accesses(way.load_view, memory, 1 << scratch.load_vector_bits),
        store_lane_columns=store_offsets.lanes,
        store_warp_columns=store_offsets.warps,
        load_lane_columns=load_offsets.lanes,
        load_warp_columns=load_offsets.warps,
        store_skip_lanes=skip_lanes,
        store_skip_warps=skip_warps,
        representative=representatives(destination),
        within_warp=within_warp and not skip_warps,
        store_matrix=way.store_matrix,
        load_matrix=way.load_matrix,
        cost=0,
    )
    return replace(trip, cost=_trip_cost(trip, element_bytes))


def _side(layout: LinearLayout, skip_lanes: int = 0, skip_warps: int = 0) -> Side:
    """Return the side to store or load: distinct registers, in the threads not skipped."""
    registers = layout.columns("register")
    active: list[tuple[int, ...]] = []
    idle: list[int] = []
    for name, skip in (("lane", skip_lanes), ("warp", skip_warps)):
        columns = layout.columns(name)
        active.append(tuple(0 if skip >> bit & 1 else c for bit, c in enumerate(columns)))
        idle += [column for bit, column in enumerate(columns) if skip >> bit & 1]
    distinct = tuple(registers[bit] for bit in distinct_register_bits(layout))
    return Side(distinct, *active, idle=tuple(idle))


def _by_rows(side: Side, row_bits: int) -> Side:
    """Return the side of an access by rows, each at an address of its own.

    Words of a vector may go to any registers of a lane. Words of a row of a matrix go to lanes in
    order, and words of a copy from memory arrive in order.
    """
    registers = side.registers
    return replace(side, registers=registers[:row_bits], idle=(*side.idle, *registers[row_bits:]))


def _memory_layout(source: LinearLayout, scratch: Scratch) -> LinearLayout:
    ins: list[tuple[str, tuple[int, ...]]] = [("offset", scratch.offset)]
    if scratch.repetition:
        ins.append(("repetition", scratch.repetition))
    if source.columns("block"):
        ins.append(("block", source.columns("block")))
    return LinearLayout.from_columns(ins, source.outs)


def _trip_cost(trip: SharedExchange, element_bytes: int) -> int:
    num_warps = 1 << len(trip.load_warp_columns)
    storing_warps = num_warps >> trip.store_skip_warps.bit_count()
    cost = SHARED_LATENCY + BARRIER_COST * (2 * trip.num_repetitions - 1)
    for accesses, lane_columns, vector_elems, skip, warps in (
        (
            *(trip.stores, trip.store_lane_columns, trip.store_vector_elems),
            *(trip.store_skip_lanes, storing_warps),
        ),
        (trip.loads, trip.load_lane_columns, trip.load_vector_elems, 0, num_warps),
    ):
        wavefronts = wavefronts_per_access(lane_columns, vector_elems, element_bytes, skip)
        count = sum(map(len, accesses))
        cost += count * warps * (SHARED_ACCESS_COST + WAVEFRONT_COST * wavefronts)
    return cost
