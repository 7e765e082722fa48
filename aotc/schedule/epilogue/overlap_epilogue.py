"""Overlap a tile's epilogue with the next tile's mainloop.

Consumer warps leave the tensor cores idle between two tiles: they convert the accumulator, write it
to shared memory, meet at a barrier, and issue the stores. All but the conversion can wait. So

    for tile: { for k: multiply }; convert; store slice 0; …; store slice n - 1

becomes

    for tile:
      for k: multiply; meanwhile store slice k of the previous tile
      convert
      if this is the last tile, or there are not n steps along k: store all slices

The converted tile is carried in registers. Coordinates of a tile are computed while its last MMA
runs. In the mainloop a slice's buffer is free in time: its previous store was issued a step ago.

If the next mainloop's length is known only there, or the next tile belongs to another loop, such as the
next group of products, the tile is carried there, and remaining slices are stored after it:

    for group: for tile:
      for k: multiply; store slice k of the previous tile, if there is one
      store the remaining slices
      convert
    store all slices of the last tile

The pass spreads ops of one loop over the iterations of a nested loop, beyond the schedule of a single loop
(`pipelining.loop_schedule`).

Invariant: slices are stored once each and in order, all of a tile before any of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.diagnostics import at
from aotc.ir.dialects import roles, scf, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.order import enclosing_in, number_ops
from aotc.ir.rewrite import is_inside
from aotc.ir.tiles import tile_shape
from aotc.ir.types import TileType, element_of
from aotc.schedule.analysis.register_budget import (
    EPILOGUE_RESERVE,
    REGISTER_BITS,
    registers_of,
    registers_of_tiles,
    reserve_registers,
)
from aotc.schedule.analysis.shared_budget import shared_budget_bytes
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.branched_stores import DelayInBranches
from aotc.schedule.epilogue.delayed_stores import Delay, DelayAcross, Tiles, slot_of
from aotc.schedule.epilogue.staged_stores import (
    buffer_of,
    deferrable_stores,
    num_slices,
    sharing_key,
)
from aotc.schedule.remarks import Remark
from aotc.schedule.shared_memory.allocate_shared import place_buffers
from aotc.schedule.shared_memory.live_ranges import Buffer, live_ranges

# A CTA's own barriers and waits order its threads' accesses to these.
_OF_CTA = (Resource.SHARED, Resource.MBARRIER, Resource.DOTS, Resource.STORES)


def overlap_epilogue(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop over tiles with stores deferrable to the next mainloop."""
    if kernel.num_consumer_groups > 1:
        return  # the mainloop of another consumer group runs in the meantime
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        for loop in [op for op in role.consumers.walk() if isinstance(op, scf.For)]:
            tiles = _find(loop, role, kernel, schedule) if loop.block is not None else None
            if tiles is not None:
                with at(tiles.stores[0].loc):
                    _delay_of(tiles, schedule).rewrite()
                schedule.remark(loop.loc, Remark.EPILOGUE_OVERLAPPED())


def _delay_of(tiles: Tiles, schedule: Schedule) -> Delay:
    """Return the form of delay, given the facts known about the next mainloop."""
    if not _is_plain(tiles):
        return DelayInBranches(tiles, schedule.target)
    is_known = tiles.outer is tiles.loop and not _bounds_inside(tiles.mainloop, tiles.loop)
    return (Delay if is_known else DelayAcross)(tiles, schedule.target)


# ---- matching ---------------------------------------------------------------------------------


def _find(
    loop: scf.For, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> Tiles | None:
    outer, stores = _outermost(loop), _stores_of_tile(loop)
    mainloops = _mainloops(loop)
    if not stores or not mainloops or outer is None:
        return None
    block = stores[0].block
    around = [enclosing_in(mainloop, block) for mainloop in mainloops]
    order = {op: number for number, op in enumerate(block)} if block is not None else {}
    if not all(op in order for op in around):
        return None
    *_, last = sorted(around, key=lambda op: order[op])
    if any(order[store] < order[last] for store in stores) or not _orders_nothing(outer, stores):
        return None
    assert isinstance(last, scf.For | scf.If)
    tiles = Tiles(outer, loop, mainloops, last, stores, 0)
    if not all(_keeps_map(store, tiles) for store in stores):
        return None
    num_buffers = _num_buffers(outer, stores, kernel, schedule)
    for num_at_once in range(1 if _is_plain(tiles) else len(stores)):
        registers = _needed_registers(mainloops, stores[num_at_once:])
        if num_buffers and reserve_registers(registers, role, kernel, schedule):
            return replace(tiles, num_buffers=num_buffers, num_at_once=num_at_once)
    return None


def _is_plain(tiles: Tiles) -> bool:
    """Return whether each tile has one mainloop before its stores, at most under a branch that skips it."""
    body, around = tiles.loop.body, tiles.around
    if len(tiles.mainloops) > 1 or around.block is not body:
        return False
    if isinstance(around, scf.For):
        return True
    skips = around.orelse.first is around.orelse.terminator
    return skips and tiles.mainloop.block is around.then


def _stores_of_tile(loop: scf.For) -> list[tma.StagedTmaStore]:
    """Return a loop's stores if they are in one block and all can be deferred."""
    blocks: dict[Block, list[tma.StagedStore]] = {}
    worklist = [loop.body]
    while worklist:
        block = worklist.pop()
        deferrable = list(deferrable_stores(block))
        if deferrable:
            blocks[block] = deferrable
        worklist += [arm for op in block if isinstance(op, scf.If) for arm in op.blocks]
    if len(blocks) != 1:
        return []
    (deferrable,) = blocks.values()
    stores = [op for op in deferrable if isinstance(op, tma.StagedTmaStore)]
    return stores if len(stores) == len(deferrable) else []


def _outermost(loop: scf.For) -> scf.For | None:
    """Return the outermost loop through which tiles can be carried, or None."""
    outer = loop
    for op in loop.ancestors():
        if isinstance(op, roles.Specialize):
            return outer
        if isinstance(op, scf.For):
            outer = op
        elif not isinstance(op, scf.If):
            return None
    return None


def _keeps_map(store: tma.StagedTmaStore, tiles: Tiles) -> bool:
    """Return whether a store's map is valid until the end of the next mainloop.

    Consumers release a map built ahead once they are done with the next one.
    """
    tensor_map = store.tensor.op
    if tensor_map is None or not is_inside(tensor_map, tiles.outer):
        return True
    if not _is_plain(tiles) or slot_of(store, tiles.outer) is None:
        return False
    return tensor_map.block in (tiles.loop.block, tiles.loop.body)


def _bounds_inside(mainloop: scf.For, loop: scf.For) -> bool:
    """Return whether a mainloop's bounds are computed inside the tile's iteration."""
    bounds = mainloop.lower, mainloop.upper, mainloop.step
    return any(is_inside(value.owner, loop) for value in bounds)


def _mainloops(loop: scf.For) -> list[scf.For]:
    """Return the mainloops with all dots, one per tile, if threads compute nothing in them.

    If threads compute fragments, or scale results, the tensor cores wait for them already.
    """
    dots = [op for op in loop.body.walk() if isinstance(op, wgmma.Wgmma)]
    if any(isinstance(op.a.type, TileType) for op in dots):
        return []
    if any(element_of(op.acc.type).bits != REGISTER_BITS for op in dots):
        return []  # stores are under branches, which results in half registers would cross
    mainloops: dict[scf.For, None] = {}
    for op in dots:
        inner = op.parent_op
        if not isinstance(inner, scf.For) or inner is loop:
            return []
        if op.acc not in inner.carried and not isinstance(op.acc.op, wgmma.Wgmma):
            return []
        mainloops[inner] = None
    branches = (op for inner in mainloops for op in _up_to(inner, loop))
    return list(mainloops) if all(isinstance(op, scf.If) for op in branches) else []


def _up_to(inner: Op, outer: Op) -> Iterator[Op]:
    """Yield the ancestors of `inner` inside `outer`."""
    for op in inner.ancestors():
        if op is outer:
            return
        yield op


def _orders_nothing(loop: scf.For, stores: Sequence[tma.StagedTmaStore]) -> bool:
    """Return whether the stores can be reordered with all other ops of the loop."""
    for op in loop.body.walk():
        if isinstance(op, tma.StagedStore) and op not in stores:
            return False
        if op not in stores and not op.terminator and _concerns_others(op):
            return False
        if op.has(Trait.MAY_NOT_END) or getattr(op, "volatile", False):
            return False
    return True


def _concerns_others(op: Op) -> bool:
    """Return whether an op has or orders effects visible outside its CTA.

    Mbarriers only order consumers with the producer, which only loads.
    """
    if op.effects_on(Resource.MBARRIER):
        return False
    changes = op.effects_on(None, "write", "order")
    return any(change.resource not in _OF_CTA for change in changes)


def _needed_registers(mainloops: Sequence[scf.For], stores: Sequence[tma.StagedTmaStore]) -> int:
    """Return a thread's live registers: the accumulators and a converted tile."""
    sums = max(map(_registers_of_sums, mainloops))
    return sums + registers_of_tiles(store.value for store in stores) + EPILOGUE_RESERVE


def _registers_of_sums(mainloop: scf.For) -> int:
    """Return the registers of the accumulators, counting only the multiplied columns."""
    total = registers_of_tiles(mainloop.carried)
    for op in mainloop.body:
        if isinstance(op, wgmma.Wgmma) and op.acc in mainloop.carried and op.num_columns:
            columns = tile_shape(op.acc)[-1]
            total -= registers_of(op.acc) * (columns - op.num_columns) // columns
    return total


def _num_buffers(
    loop: scf.For, stores: Sequence[tma.StagedTmaStore], kernel: Kernel, schedule: Schedule
) -> int:
    """Return the buffers of each kind of slice that fit shared memory, or 0."""
    numbers = number_ops(kernel)
    mine: dict[Op, tma.StagedTmaStore] = {buffer_of(store): store for store in stores}
    buffers = live_ranges(kernel, numbers)
    unrelated = [buffer for buffer in buffers if buffer.op not in mine]
    of_kind: dict[object, list[Buffer]] = {}
    for buffer in buffers:
        store = mine.get(buffer.op)
        if store is not None:
            count = num_slices(store)
            size_bytes = buffer.size_bytes // count
            parts = [Buffer(buffer.op, size_bytes, *numbers[loop], buffer.num_copies)]
            of_kind.setdefault(sharing_key(store), []).extend(parts * count)
    limit = shared_budget_bytes(kernel, schedule.target, place_buffers(unrelated))
    for count in range(max(map(len, of_kind.values())), 0, -1):
        staging = [replace(part) for parts in of_kind.values() for part in parts[:count]]
        if place_buffers([*unrelated, *staging]) <= limit:
            return count
    return 0
