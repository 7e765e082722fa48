"""Lower a tile's atomic to gpu IR: one thread for each element, memory order, result for all.

A program instance is one actor, so all earlier accesses of its threads come before a releasing
atomic, whichever thread makes the update: a barrier gathers the threads and a fence orders their
accesses. An acquiring atomic is followed by a fence and a barrier, if its result is used or memory
is accessed later. So the atomics themselves are relaxed, and a tile of them costs one fence.

If several threads hold an element, the first makes the update and broadcasts the result through
shared memory. A scalar is a tile of one element held by all threads.

Invariant: an atomic of tile IR accesses each address once per element, for any layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import gpu, scf, tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import PointerType, TileType
from aotc.schedule.layout.layouts import default_blocked

_RELEASES = ("release", "acq_rel")
_ACQUIRES = ("acquire", "acq_rel")


def emit_atomic(
    op: tile.AtomicRmw | tile.AtomicCas,
    slots: Sequence[Value | None],
    vector: int,
    num_warps: int,
    builder: Builder,
) -> Value:
    """Place `op` on operands with layouts; return its result.

    One access updates `vector` elements.
    """
    is_scalar = not isinstance(op.pointer.type, TileType)
    if is_scalar:
        layout = default_blocked((1,), num_warps)
        slots = [_as_tile(value, layout, builder) for value in slots]
    if op.sem in _RELEASES:
        builder(gpu.Barrier())
        builder(gpu.Fence(op.scope))
    old = _update(op, slots, vector, builder)
    acquires = op.sem in _ACQUIRES and (bool(op.out.users) or _is_followed(op))
    if acquires:
        builder(gpu.Fence(op.scope))
    if op.out.users:
        old = _shared_by_all(old, builder, has_barrier=acquires)
    elif acquires:
        builder(gpu.Barrier())
    return _element(old, builder) if is_scalar else old


def _is_followed(op: Op) -> bool:
    """Return whether an acquire by `op` would order any later global access."""
    level: Op | None = op
    while level is not None:
        if level.has(Trait.LOOP):
            return True  # the next iteration comes to `op` again
        later = level.next
        while later is not None:
            if _accesses_global(later) or any(map(_accesses_global, _nested_ops(later))):
                return True
            later = later.next
        level = level.parent_op
    return False


def _nested_ops(op: Op) -> Iterator[Op]:
    """Yield the ops in the blocks of `op`."""
    for block in op.blocks:
        yield from block.walk()


def _accesses_global(op: Op) -> bool:
    return op.reads(Resource.GLOBAL) or op.writes(Resource.GLOBAL)


def _update(
    op: tile.AtomicRmw | tile.AtomicCas,
    slots: Sequence[Value | None],
    vector: int,
    builder: Builder,
) -> Value:
    if isinstance(op, tile.AtomicCas):
        pointer, compare, value = slots
        assert pointer is not None
        assert compare is not None
        assert value is not None
        return builder(gpu.AtomicCas(pointer, compare, value, op.scope)).out
    pointer, value, mask = slots
    assert pointer is not None
    assert value is not None
    return builder(gpu.AtomicRmw(pointer, value, op.kind, mask, op.scope, vector)).out


def _shared_by_all(old: Value, builder: Builder, *, has_barrier: bool) -> Value:
    """Broadcast the result of each element's first holder; end in a barrier if asked.

    Without replicas every thread has it already.
    """
    kind = old.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    assert not isinstance(kind.element, PointerType)
    buffer: Value | None = None
    if _has_copies(kind.layout):
        offsets = LinearLayout({"offset": _row_major(kind.shape)}, kind.shape)
        buffer = builder(gpu.SharedAlloc(kind.element, kind.shape, offsets)).out
        builder(gpu.SharedStore(old, buffer))
    if has_barrier:
        builder(gpu.Barrier())
    return old if buffer is None else builder(gpu.SharedLoad(buffer, kind.layout)).out


def _has_copies(layout: LinearLayout) -> bool:
    """Return whether several threads hold an element."""
    threads = layout.in_bits("lane") + layout.in_bits("warp")
    registers = layout.in_bits("register") - layout.free_variable_masks()["register"].bit_count()
    return 1 << threads + registers > prod(layout.shape)


def _row_major(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the coordinates of each bit of a row-major offset, lowest first."""
    return [
        tuple(1 << bit if axis == column_axis else 0 for column_axis in range(len(shape)))
        for axis in reversed(range(len(shape)))
        for bit in range(shape[axis].bit_length() - 1)
    ]


# ---- scalars ----------------------------------------------------------------------------------


def _as_tile(value: Value | None, layout: LinearLayout, builder: Builder) -> Value | None:
    return None if value is None else builder(tile.Splat(value, (1,), layout)).out


def _element(value: Value, builder: Builder) -> Value:
    """Return the only element of a tile: a reduction without anything to combine."""
    assert isinstance(value.type, TileType)
    combine = Block([value.type.element] * 2)
    combine.insert(scf.Yield([combine.args[0]]))
    return builder(tile.Reduce([value], 0, combine)).outs[0]
