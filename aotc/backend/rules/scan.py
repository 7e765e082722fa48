"""The rule for scans inside a warp: along each thread's registers, then along the lanes.

Along the axis, the low bits are registers and the high bits lanes, so a thread holds runs of
consecutive elements. It scans each run. The totals of the runs are scanned across the lanes, and
the exclusive prefix of each run is combined into its elements. Lanes exchange by `shfl.idx` from a
source lane computed in the axis's own order, so any ascending choice of lane bits works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aotc.backend import nvvm
from aotc.backend.llvm_types import llvm_type
from aotc.backend.lower import LANE_BITS, Lowering, Results, layout_of, lowers
from aotc.backend.packing import from_i32_words, to_i32_words
from aotc.backend.rules.reduce import combine_rows
from aotc.backend.thread_map import first_holders
from aotc.ir.core import Value
from aotc.ir.dialects import gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.types import element_of

_ALL_LANES = (1 << LANE_BITS) - 1


@dataclass(frozen=True, slots=True)
class _Runs:
    """The registers of each run in scan order, and the lane bits along the axis, lowest first."""

    runs: list[list[int]]
    lane_bits: list[int]

    @property
    def lane_mask(self) -> int:
        return sum(1 << bit for bit in self.lane_bits)


@lowers(gpu.Scan)
def lower_scan(ctx: Lowering, op: gpu.Scan) -> Results:
    """Lower a scan along an axis without warp bits."""
    layout = layout_of(op.inputs[0].type)
    holders = first_holders(layout)
    plan = _find_runs(op, layout, holders)
    columns = [ctx.registers(value) for value in op.inputs]
    rows: dict[int, list[str]] = {}
    for run in plan.runs:
        elements = [[column[register] for column in columns] for register in run]
        running = list(
            accumulate(elements, lambda total, row: combine_rows(ctx, op.combine, total, row))
        )
        # The thread's own prefix of each register: inclusive, or exclusive.
        prefixes = [None, *running[:-1]] if op.exclusive else running
        if not plan.lane_bits:
            rows.update(
                zip(run, [elements[0] if row is None else row for row in prefixes], strict=True)
            )
            continue
        before = _exclusive(ctx, op, plan, running[-1])
        has_before = _has_before(ctx, op, plan)
        for register, row in zip(run, prefixes, strict=True):
            joined = before if row is None else combine_rows(ctx, op.combine, before, row)
            rows[register] = _selected(ctx, op.inputs, has_before, joined, row or elements[0])
    return [tuple(rows[holder][index] for holder in holders) for index in range(len(op.inputs))]


def _find_runs(op: gpu.Scan, layout: LinearLayout, holders: Sequence[int]) -> _Runs:
    free = layout.free_variable_masks()
    axis = layout.out_dims[op.axis]
    along, across = layout.sublayout(layout.in_dims, [axis]), layout.reduce(op.axis)
    lane_bits = [
        bit
        for bit, column in enumerate(along.columns("lane"))
        if column and not free["lane"] >> bit & 1
    ]
    positions = along.table("register")
    rests = across.table("register")
    groups: dict[int, list[int]] = {}
    for register, holder in enumerate(holders):
        if register == holder:
            groups.setdefault(rests[register], []).append(register)
    runs = [
        sorted(run, key=lambda register: positions[register], reverse=op.reverse)
        for run in groups.values()
    ]
    length = len(runs[0])
    strides = [length << index for index in range(len(lane_bits))]
    in_order = (
        all(sorted(positions[r] for r in run) == list(range(length)) for run in runs)
        and [along.columns("lane")[bit] for bit in lane_bits] == strides
        and not any(across.columns("lane")[bit] for bit in lane_bits)
        and length << len(lane_bits) == layout.out_size(axis)
    )
    if not in_order:
        op.error(f"axis {op.axis} of {layout} is not in order on registers, then lanes")
    return _Runs(runs, lane_bits)


def _from_lane(ctx: Lowering, inputs: Sequence[Value], row: Sequence[str], lane: str) -> list[str]:
    """Return the row of elements of `lane`."""
    out: list[str] = []
    for value, part in zip(inputs, row, strict=True):
        element = element_of(value.type)
        words = to_i32_words(ctx.emit, part, element)
        received = [nvvm.shuffle(ctx.emit, "idx", word, lane) for word in words]
        out.append(from_i32_words(ctx.emit, received, element))
    return out


def _selected(
    ctx: Lowering, inputs: Sequence[Value], condition: str, yes: Sequence[str], no: Sequence[str]
) -> list[str]:
    kinds = [llvm_type(element_of(value.type)) for value in inputs]
    return [
        ctx.emit.value(f"select i1 {condition}, {kind} {a}, {kind} {b}")
        for kind, a, b in zip(kinds, yes, no, strict=True)
    ]


def _exclusive(ctx: Lowering, op: gpu.Scan, plan: _Runs, total: list[str]) -> list[str]:
    """Return the combined totals of all lanes before this one; any value in the first.

    Step by step, runs of lanes double: the later half gets the total of the earlier half from its
    last lane.
    """
    emit = ctx.emit
    lower_bits = 0
    for bit in plan.lane_bits:
        # In reverse, lanes count from the end: set and clear bits are swapped.
        if op.reverse:
            source = emit.thread_value(f"and i32 {ctx.thread}, {_ALL_LANES & ~lower_bits}")
            source = emit.thread_value(f"or i32 {source}, {1 << bit}")
            later_value = 0
        else:
            source = emit.thread_value(f"and i32 {ctx.thread}, {_ALL_LANES & ~(1 << bit)}")
            source = emit.thread_value(f"or i32 {source}, {lower_bits}") if lower_bits else source
            later_value = 1 << bit
        earlier = _from_lane(ctx, op.inputs, total, source)
        joined = combine_rows(ctx, op.combine, earlier, total)
        lane_bit = emit.thread_value(f"and i32 {ctx.thread}, {1 << bit}")
        is_later = emit.thread_value(f"icmp eq i32 {lane_bit}, {later_value}")
        total = _selected(ctx, op.inputs, is_later, joined, total)
        lower_bits |= 1 << bit
    return _from_lane(ctx, op.inputs, total, _lane_before(ctx, op, plan.lane_mask))


def _lane_before(ctx: Lowering, op: gpu.Scan, mask: int) -> str:
    """Return the lane before this one along the axis."""
    emit = ctx.emit
    other_bits = emit.thread_value(f"and i32 {ctx.thread}, {_ALL_LANES & ~mask}")
    # All ones, or all zeros, in the bits of other axes let carries and borrows pass.
    if op.reverse:
        filled = emit.thread_value(f"or i32 {ctx.thread}, {_ALL_LANES & ~mask}")
        stepped = emit.thread_value(f"add i32 {filled}, 1")
    else:
        cleared = emit.thread_value(f"and i32 {ctx.thread}, {mask}")
        stepped = emit.thread_value(f"sub i32 {cleared}, 1")
    axis_bits = emit.thread_value(f"and i32 {stepped}, {mask}")
    return emit.thread_value(f"or i32 {axis_bits}, {other_bits}")


def _has_before(ctx: Lowering, op: gpu.Scan, plan: _Runs) -> str:
    """Return an i1: whether this lane is not the first along the axis."""
    lanes = ctx.emit.thread_value(f"and i32 {ctx.thread}, {plan.lane_mask}")
    first = plan.lane_mask if op.reverse else 0
    return ctx.emit.thread_value(f"icmp ne i32 {lanes}, {first}")
