"""Lower a tile's atomic to gpu IR: one thread for each element, memory order, result for all.

A program instance is one actor, so what its threads did before a releasing atomic comes before it,
whichever thread makes the update: a barrier gathers the threads and a fence orders what they did.
An acquiring atomic is followed by a fence and a barrier, if its result is used or memory is accessed
later. So the atomics themselves are relaxed, and a tile of them costs one fence, not one each.

Of threads that hold replicas of an element the first makes the update, and broadcasts the
result through shared memory. A scalar is a tile of one element that all threads hold.

Invariant: an atomic of tile IR accesses each address as often as it says, for any layout.
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


def place_atomic(
    op: tile.AtomicRmw | tile.AtomicCas,
    slots: Sequence[Value | None],
    vector: int,
    num_warps: int,
    place: Builder,
) -> Value:
    """Place what `op` means on operands that have layouts; return what stands for its result.

    `vector` is how many elements one access updates.
    """
    is_scalar = not isinstance(op.pointer.type, TileType)
    if is_scalar:
        layout = default_blocked((1,), num_warps)
        slots = [_as_tile(value, layout, place) for value in slots]
    if op.sem in _RELEASES:
        place(gpu.Barrier())
        place(gpu.Fence(op.scope))
    found = _update(op, slots, vector, place)
    acquires = op.sem in _ACQUIRES and (bool(op.out.users) or _is_followed(op))
    if acquires:
        place(gpu.Fence(op.scope))
    if op.out.users:
        found = _shared_by_all(found, place, has_barrier=acquires)
    elif acquires:
        place(gpu.Barrier())
    return _element(found, place) if is_scalar else found


def _is_followed(op: Op) -> bool:
    """Return whether an access of global memory may come after `op`, which an acquire would order."""
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
    op: tile.AtomicRmw | tile.AtomicCas, slots: Sequence[Value | None], vector: int, place: Builder
) -> Value:
    if isinstance(op, tile.AtomicCas):
        pointer, compare, value = slots
        assert pointer is not None
        assert compare is not None
        assert value is not None
        return place(gpu.AtomicCas(pointer, compare, value, op.scope)).out
    pointer, value, mask = slots
    assert pointer is not None
    assert value is not None
    return place(gpu.AtomicRmw(pointer, value, op.kind, mask, op.scope, vector)).out


def _shared_by_all(found: Value, place: Builder, *, has_barrier: bool) -> Value:
    """Broadcast the result of each element's first holder; end in a barrier if asked.

    Without replicas every thread has it already.
    """
    kind = found.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    assert not isinstance(kind.element, PointerType)
    buffer: Value | None = None
    if _has_copies(kind.layout):
        offsets = LinearLayout({"offset": _row_major(kind.shape)}, kind.shape)
        buffer = place(gpu.SharedAlloc(kind.element, kind.shape, offsets)).out
        place(gpu.SharedStore(found, buffer))
    if has_barrier:
        place(gpu.Barrier())
    return found if buffer is None else place(gpu.SharedLoad(buffer, kind.layout)).out


def _has_copies(layout: LinearLayout) -> bool:
    """Return whether several threads hold an element."""
    threads = layout.in_bits("lane") + layout.in_bits("warp")
    registers = layout.in_bits("register") - layout.free_variable_masks()["register"].bit_count()
    return 1 << threads + registers > prod(layout.shape)


def _row_major(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the coordinates that each bit of a row-major offset leads to, lowest first."""
    return [
        tuple(1 << bit if axis == own else 0 for own in range(len(shape)))
        for axis in reversed(range(len(shape)))
        for bit in range(shape[axis].bit_length() - 1)
    ]


# ---- scalars ----------------------------------------------------------------------------------


def _as_tile(value: Value | None, layout: LinearLayout, place: Builder) -> Value | None:
    return None if value is None else place(tile.Splat(value, (1,), layout)).out


def _element(value: Value, place: Builder) -> Value:
    """Return the only element of a tile: a reduction that has nothing to combine."""
    assert isinstance(value.type, TileType)
    combine = Block([value.type.element] * 2)
    combine.insert(scf.Yield([combine.args[0]]))
    return place(tile.Reduce([value], 0, combine)).outs[0]
