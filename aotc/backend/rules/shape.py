"""Rules for sources and shapes of tiles: arithmetic on thread ids, and renamed registers.

No shape op moves data. The two layouts determine the operand's register for each register of the
result: the result's layout is expressed in the operand's coordinates, and each register is looked
up by its element.
"""

from __future__ import annotations

from aotc.backend import nvvm
from aotc.backend.integers import Component
from aotc.backend.lower import Lowering, Results, layout_of, lowers, num_registers
from aotc.backend.thread_map import rename, thread_columns, thread_offsets
from aotc.ir.dialects import gpu, tile
from aotc.ir.sub_tile import part_registers, within

_HALVES = 2


@lowers(tile.ProgramId)
def lower_program_id(ctx: Lowering, op: tile.ProgramId) -> Results:
    """Lower the program id, of a CTA or a cluster; a grid has fewer than 2**31 CTAs."""
    read = nvvm.cta_id if ctx.kernel.num_ctas == 1 else nvvm.cluster_id
    return [(ctx.ints.learn(read(ctx.emit, op.axis), (1 << 31) - 1),)]


@lowers(tile.NumPrograms)
def lower_num_programs(ctx: Lowering, op: tile.NumPrograms) -> Results:
    """Lower the extent of the grid, in CTAs or in clusters."""
    read = nvvm.num_ctas if ctx.kernel.num_ctas == 1 else nvvm.num_clusters
    return [(ctx.ints.learn(read(ctx.emit, op.axis), (1 << 31) - 1),)]


@lowers(tile.Arange)
def lower_arange(ctx: Lowering, op: tile.Arange) -> Results:
    """Lower a range: the thread gives the base, the register a constant."""
    layout = layout_of(op.out.type)
    offsets = thread_offsets(ctx, layout.columns("register"), thread_columns(layout))
    return [tuple(ctx.ints.add(offset, str(op.start), 32) for offset in offsets)]


@lowers(tile.Splat)
def lower_splat(ctx: Lowering, op: tile.Splat) -> Results:
    """Lower a splat: one component for all registers."""
    return [ctx.raw(op.value) * num_registers(op.out.type)]


@lowers(tile.Hint)
def lower_hint(ctx: Lowering, op: tile.Hint) -> Results:
    """Lower a hint to nothing: only the schedule uses it."""
    return [ctx.raw(op.value)]


@lowers(tile.Broadcast)
def lower_broadcast(ctx: Lowering, op: tile.Broadcast) -> Results:
    """Lower a broadcast."""
    source = tile.tile_type(op, op.value)
    source_layout = layout_of(op.out.type).broadcast_source(source.shape)
    return [rename(op, ctx.raw(op.value), layout_of(source), source_layout)]


@lowers(tile.ExpandDims, tile.Reshape)
def lower_reshape(ctx: Lowering, op: tile.ExpandDims | tile.Reshape) -> Results:
    """Lower a reshape; the row-major order of the elements is unchanged."""
    source = tile.tile_type(op, op.value)
    target = layout_of(op.out.type).reshape(source.shape)
    return [rename(op, ctx.raw(op.value), layout_of(source).reshape(source.shape), target)]


@lowers(tile.Trans)
def lower_trans(ctx: Lowering, op: tile.Trans) -> Results:
    """Lower a transpose."""
    back = [op.order.index(axis) for axis in range(len(op.order))]
    layout, target = layout_of(op.value.type), layout_of(op.out.type).transpose(back)
    return [rename(op, ctx.raw(op.value), layout.transpose(range(len(back))), target)]


@lowers(gpu.Extract)
def lower_extract(ctx: Lowering, op: gpu.Extract) -> Results:
    """Lower the extraction of a part of a tile: some of the registers."""
    whole, part = layout_of(op.value.type), layout_of(op.out.type)
    registers = ctx.raw(op.value)
    return [tuple(registers[register] for register in part_registers(whole, part, op.start))]


@lowers(gpu.Concat)
def lower_concat(ctx: Lowering, op: gpu.Concat) -> Results:
    """Lower a concatenation: each register comes from one of the parts."""
    part, whole = layout_of(op.parts[0].type), layout_of(op.out.type)
    by_element: dict[int, Component] = {}
    for number, value in enumerate(op.parts):
        start = [0] * len(part.shape)
        start[op.axis] = number * part.shape[op.axis]
        origin, elements = whole.pack(start), within(part, whole.shape).table("register")
        by_element.update(
            zip((origin ^ offset for offset in elements), ctx.raw(value), strict=True)
        )
    return [tuple(by_element[element] for element in whole.table("register"))]


@lowers(tile.Join)
def lower_join(ctx: Lowering, op: tile.Join) -> Results:
    """Lower a join: each register comes from one of the operands."""
    halves = (ctx.raw(op.lhs), ctx.raw(op.rhs))
    where = _registers_by_element(layout_of(op.lhs.type).table("register"))
    out: list[Component] = []
    for element in layout_of(op.out.type).table("register"):
        # The new axis is the last: its coordinate is the lowest bit of the packed element.
        if element // _HALVES not in where:
            op.error("joins elements that its thread does not hold")
        out.append(halves[element % _HALVES][where[element // _HALVES]])
    return [tuple(out)]


@lowers(tile.Split)
def lower_split(ctx: Lowering, op: tile.Split) -> Results:
    """Lower a split: each half gets its registers."""
    registers = ctx.raw(op.value)
    where = _registers_by_element(layout_of(op.value.type).table("register"))
    elements = layout_of(op.lhs.type).table("register")
    if not all(_HALVES * element + 1 in where for element in elements):
        op.error("splits elements that its thread does not hold")
    return [
        tuple(registers[where[_HALVES * element + half]] for element in elements)
        for half in range(_HALVES)
    ]


def _registers_by_element(table: list[int]) -> dict[int, int]:
    return {element: register for register, element in reversed(list(enumerate(table)))}
