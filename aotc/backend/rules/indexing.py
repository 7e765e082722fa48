"""Rules for shared memory accesses with data-dependent addresses."""

from __future__ import annotations

from dataclasses import replace

from aotc.backend import nvvm_memory
from aotc.backend.lower import Lowering, Results, layout_of, lowers
from aotc.backend.packing import unpack, word_shape
from aotc.backend.rules.shared import buffer_address, moved, register_offsets
from aotc.backend.thread_map import both, first_holders, is_first_holder
from aotc.ir.dialects import gpu, indexing, tile
from aotc.ir.layout import LinearLayout, log2_exact


@lowers(indexing.SharedGather)
def lower_gather(ctx: Lowering, op: indexing.SharedGather) -> Results:
    """Lower a gather: known offsets along the other axes, the index shifted along its own."""
    shared, element = gpu.shared_type(op, op.buffer), tile.tile_type(op, op.out).element
    index_layout = layout_of(op.index.type)
    line = _index_columns(op, shared.layout)
    shift = log2_exact(line[0] * shared.element.size_bytes) if line else 0
    across = LinearLayout(
        {
            name: [
                tuple(0 if axis == op.axis else coord for axis, coord in enumerate(basis))
                for basis in index_layout.bases(name)
            ]
            for name in index_layout.in_dims
        },
        shared.shape,
    )
    access = nvvm_memory.Access(*word_shape(element, 1))
    indices, holders = ctx.registers(op.index), first_holders(index_layout)
    out: list[str] = []
    for register, (holder, offset) in enumerate(
        zip(
            holders,
            register_offsets(ctx, across, shared.layout, shared.element.size_bytes),
            strict=True,
        )
    ):
        if holder != register:
            out.append(out[holder])
            continue
        address = buffer_address(ctx, op.buffer, offset)
        if line:
            inside = ctx.emit.value(f"and i32 {indices[register]}, {(1 << len(line)) - 1}")
            address = moved(ctx, address, ctx.emit.value(f"shl i32 {inside}, {shift}"))
        words = nvvm_memory.load(ctx.emit, address, access, ())
        out += unpack(ctx.emit, words, element, 1)
    return [tuple(out)]


def _index_columns(op: indexing.SharedGather, layout: LinearLayout) -> tuple[int, ...]:
    """Return the offset of each bit of the index, each twice the one before."""
    extent = layout.shape[op.axis]
    basis = [0] * len(layout.shape)
    bases: list[tuple[int, ...]] = []
    for bit in range(log2_exact(extent)):
        basis[op.axis] = 1 << bit
        bases.append(tuple(basis))
    columns = LinearLayout({"index": bases}, layout.shape).invert_and_compose(layout)
    line = columns.columns("offset" if "offset" in columns.in_dims else "index")
    if any(column != line[0] << bit for bit, column in enumerate(line)):
        op.error(f"offsets in {layout} do not grow with the index in equal steps")
    return line


@lowers(indexing.SharedCount)
def lower_count(ctx: Lowering, op: indexing.SharedCount) -> Results:
    """Lower a histogram: an atomic addition for each element inside the bins."""
    (num_bins,) = gpu.shared_type(op, op.buffer).shape
    layout = layout_of(op.value.type)
    values, holders = ctx.registers(op.value), first_holders(layout)
    masks = ["true"] * len(values) if op.mask is None else ctx.registers(op.mask)
    mine = is_first_holder(ctx, layout)
    how = nvvm_memory.Atomic("add.u32", 32, scope="cta")
    for register, holder in enumerate(holders):
        if holder != register or masks[register] == "false":
            continue
        names_one = ctx.emit.value(f"icmp ult i32 {values[register]}, {num_bins}")
        counts = both(ctx, both(ctx, masks[register], mine), names_one)
        offset_bytes = ctx.emit.value(f"shl i32 {values[register]}, 2")
        address = moved(ctx, buffer_address(ctx, op.buffer), offset_bytes)
        nvvm_memory.atomic(ctx.emit, address, replace(how, predicate=counts), ["1"])
    return []
