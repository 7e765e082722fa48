"""Rules for shared memory: buffers, their stores and loads, and the barrier.

All buffers lie in the one dynamic array of the kernel, at the offsets that the schedule gave them.
Where a register goes follows from two layouts: the tile's says which element it holds, and the
buffer's, inverted, at which offset that element lies.
"""

from __future__ import annotations

from aotc.backend import nvvm
from aotc.backend.integers import Affine, Component
from aotc.backend.lower import SHARED, Lowering, Results, layout_of, lowers
from aotc.backend.thread_map import first_holders, is_first_holder, thread_columns
from aotc.backend.words import pack, unpack, word_shape
from aotc.ir import gf2
from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, tile
from aotc.ir.layout import LinearLayout, log2_exact


@lowers(gpu.SharedAlloc)
def lower_alloc(ctx: Lowering, op: gpu.SharedAlloc) -> Results:
    """Lower a buffer: the constant offset it was given."""
    if op.offset_bytes < 0:
        op.error("has no offset: shared memory was not allocated")
    ctx.uses_shared = True
    return [(Affine("", op.offset_bytes),)]


@lowers(gpu.Barrier, tile.Barrier)
def lower_barrier(ctx: Lowering, op: gpu.Barrier | tile.Barrier) -> Results:
    """Lower a barrier of the block."""
    del op
    nvvm.barrier(ctx.emit)
    return []


@lowers(gpu.SharedStore)
def lower_store(ctx: Lowering, op: gpu.SharedStore) -> Results:
    """Lower a store to shared memory."""
    layout = layout_of(op.value.type)
    kind = tile.tile_type(op, op.value)
    values = ctx.registers(op.value)
    bits, count = word_shape(kind.element, op.vector)
    access = nvvm.Access(bits, count, predicate=is_first_holder(ctx, layout))
    for address, registers in _vectors(ctx, op, op.buffer, layout, op.vector):
        words = pack(ctx.emit, [values[register] for register in registers], kind.element)
        nvvm.store(ctx.emit, address, access, words)
    return []


@lowers(gpu.SharedLoad)
def lower_load(ctx: Lowering, op: gpu.SharedLoad) -> Results:
    """Lower a load from shared memory."""
    kind = tile.tile_type(op, op.out)
    access = nvvm.Access(*word_shape(kind.element, op.vector))
    loaded: dict[int, Component] = {}
    for address, registers in _vectors(ctx, op, op.buffer, op.layout, op.vector):
        words = nvvm.load(ctx.emit, address, access, ())
        values = unpack(ctx.emit, words, kind.element, op.vector)
        loaded.update(zip(registers, values, strict=True))
    return [tuple(loaded[register] for register in first_holders(op.layout))]


def _vectors(
    ctx: Lowering, op: Op, buffer: Value, layout: LinearLayout, vector: int
) -> list[tuple[nvvm.Address, list[int]]]:
    """Return the accesses that move a tile: where each goes, and its registers in memory order.

    Registers that hold copies of lower ones are left out.
    """
    shared = gpu.shared_type(op, buffer)
    vector_bits = log2_exact(vector)
    shift = log2_exact(shared.element.size_bytes)
    places = layout.invert_and_compose(shared.layout)
    threads = [column << shift for column in thread_columns(places)]
    offsets = gf2.span_table(places.columns("register"))
    if any(column & ((vector << shift) - 1) for column in threads):
        op.error(f"threads start vectors of {vector} elements between their boundaries")
    groups: dict[int, dict[int, int]] = {}
    for register, holder in enumerate(first_holders(layout)):
        if holder == register:
            offset = offsets[register]
            groups.setdefault(offset >> vector_bits, {})[offset & (vector - 1)] = register
    base = ctx.ints.linear(ctx.thread, threads)
    _, start = ctx.ints.split(ctx.raw(buffer)[0])
    accesses: list[tuple[nvvm.Address, list[int]]] = []
    for group, members in groups.items():
        if len(members) != vector:
            op.error(f"a thread holds {len(members)} of a vector of {vector} elements")
        place = ctx.ints.xor_constant(base, group << vector_bits + shift)
        address = _address(ctx, place, start)
        accesses.append((address, [members[index] for index in range(vector)]))
    return accesses


def _address(ctx: Lowering, place: Component, start: int) -> nvvm.Address:
    """Return the address `place` bytes into the buffer that starts at `start`."""
    ctx.uses_shared = True
    base, offset = ctx.ints.split(place)
    array = f"ptrtoint (ptr addrspace(3) {SHARED} to i32)"
    if base:
        # The array is aligned to 1024 bytes at most, so this is a sum, not an or.
        array = ctx.emit.thread_value(f"add i32 {base}, {array}")
    return nvvm.Address("shared", array, start + offset)
