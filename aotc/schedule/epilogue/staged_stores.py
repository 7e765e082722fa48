"""Staged stores: slices, their buffers, and expansion.

A staged store (`tma.StagedStore`) writes a tile to shared memory, stores it from there and waits. Passes
that keep stores in flight choose each slice's time, buffer and wait, and emit slices by `store_slice`.
Remaining staged stores are expanded in place.

Invariant: only `store_slice` turns a staged store into a write and a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aotc.ir.core import Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.sub_tile import sub_tile
from aotc.ir.types import I32, TensorMapType, TileType, Type
from aotc.schedule.layout.tensor_copies import block_buffer, write_buffer
from aotc.target import Target


def deferrable_stores(ops: Iterable[Op]) -> Iterator[tma.StagedStore]:
    """Yield the stores that may stay in flight: nothing reads their memory."""
    for op in ops:
        if isinstance(op, tma.StagedStore) and not op.written:
            yield op


def outermost_loop(store: tma.StagedStore) -> Op | None:
    """Return the outermost loop around a store, within its role."""
    outermost: Op | None = None
    for ancestor in store.ancestors():
        if ancestor.has(Trait.LOOP):
            outermost = ancestor
        elif not isinstance(ancestor, scf.If):
            break
    return outermost


# ---- slices -----------------------------------------------------------------------------------


def slice_shape(store: tma.StagedStore) -> tuple[int, ...]:
    """Return the shape of a tile's slices, as wide as the tensor map's box.

    It is the whole tile without a map, or if threads would hold slices in different layouts.
    """
    value = store.value.type
    assert isinstance(value, TileType)
    if isinstance(store, tma.StagedBulkStore):
        return value.shape
    tensor = store.tensor.type
    assert isinstance(tensor, TensorMapType)
    shape = (*value.shape[:-1], tensor.box[-1])
    held_alike = value.layout is not None and sub_tile(value.layout, shape) is not None
    return shape if held_alike else value.shape


def num_slices(store: tma.StagedStore) -> int:
    """Return the number of slices of a tile."""
    value = store.value.type
    assert isinstance(value, TileType)
    return value.shape[-1] // slice_shape(store)[-1]


def sharing_key(store: tma.StagedStore) -> tuple[Type, tuple[int, ...]]:
    """Return a key equal for stores whose slices can share buffers: destination and shape."""
    target = store.buffer if isinstance(store, tma.StagedBulkStore) else store.tensor
    return target.type, slice_shape(store)


def buffer_of(store: tma.StagedStore) -> gpu.SharedAlloc:
    """Return the allocation of a store's buffer."""
    alloc = store.buffer.op
    assert isinstance(alloc, gpu.SharedAlloc)
    return alloc


def allocate_slice(store: tma.StagedStore, shape: tuple[int, ...], builder: Builder) -> Value:
    """Allocate a buffer for a tile or a slice of it, and return it."""
    if isinstance(store, tma.StagedBulkStore):
        alloc = buffer_of(store)
        kind = gpu.SharedAlloc(alloc.element, shape, alloc.layout, alloc.alignment_bytes)
        return builder(kind).out
    return block_buffer(store.tensor, shape, builder)


# ---- expansion --------------------------------------------------------------------------------


def store_slice(
    store: tma.StagedStore,
    number: int | None,
    buffer: Value,
    target: Target,
    builder: Builder,
    *,
    value: Value | None = None,
    coords: Sequence[Value] | None = None,
    tensor: Value | None = None,
    max_pending: int | None = None,
) -> None:
    """Write a slice of a store's tile to a buffer and issue its copy; None is the whole tile.

    The tile, its coordinates and the map may differ from the store's. Before the copy it waits until at most
    `max_pending` earlier copies are in flight, sharing the barrier required by the copy.
    """
    value = store.value if value is None else value
    coords = store.coords if coords is None else coords
    shape = slice_shape(store)
    kind = store.value.type
    assert isinstance(kind, TileType)
    if number is not None and shape != kind.shape:
        start = (*(0 for _ in shape[:-1]), number * shape[-1])
        value = builder(gpu.Extract(value, start, shape)).out
    with_matrices = isinstance(store, tma.StagedTmaStore)
    write_buffer(value, buffer, target, builder, matrices=with_matrices)
    if max_pending is not None:
        builder(tma.TmaStoreWait(pending=max_pending))
    if number:
        step = builder(arith.Constant(number * shape[-1], I32)).out
        coords = [*coords[:-1], builder(arith.Add(coords[-1], step)).out]
    with at(store.loc):
        async_store = builder(store.as_async_store(buffer, coords))
        if tensor is not None:
            async_store.replace_operand(async_store.operands[0], tensor)


def expand(store: tma.StagedStore, target: Target) -> tma.TmaStoreWait:
    """Expand a store in place, and return its wait."""
    builder = Builder.before_op(store)
    with at(store.loc):
        store_slice(store, None, store.buffer, target, builder)
        wait = builder(tma.TmaStoreWait(written=store.written))
    store.erase()
    return wait


def erase(store: tma.StagedStore) -> None:
    """Erase a store emitted elsewhere, and its buffer."""
    alloc = buffer_of(store)
    store.erase()
    alloc.erase()
