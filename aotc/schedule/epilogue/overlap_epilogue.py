"""Overlap a tile's epilogue with the next tile's mainloop.

Consumer warps leave the tensor cores idle between two tiles: they convert the accumulator, write it
to shared memory, meet at a barrier, and issue the stores. All but the conversion can wait. So

    for tile: { for k: multiply }; convert; store slice 0; …; store slice n - 1

becomes

    for tile:
      for k: multiply; store slice k of the tile before, while that runs
      convert
      if this is the last tile, or there are not n steps along k: store all slices

The converted tile is carried in registers. Coordinates of a tile are computed while its last MMA
runs. In the mainloop a slice's buffer is free in time: its previous store was issued a step ago.

Where how long the next mainloop is shows only there, or the next tile is one of another loop, as of
the next group of products, the tile is carried there, and what does not fit is stored after it:

    for group: for tile:
      for k: multiply; store slice k of the tile before, if there is one
      store the slices that are left
      convert
    store all slices of the last tile

It spreads ops of one loop among the iterations of the loop nested in it, which no schedule of one loop
(`pipelining.loop_schedule`) says.

Invariant: slices are stored once each and in their order, all of a tile before any of the next one.
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

# What the threads of a CTA do to these is ordered by barriers and waits of its own.
_OF_CTA = (Resource.SHARED, Resource.MBARRIER, Resource.DOTS, Resource.STORES)


def overlap_epilogue(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop over tiles whose stores can wait for the next tile's mainloop."""
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
    """Return how stores are delayed, by what is known of the next mainloop."""
    if not _is_plain(tiles):
        return DelayInBranches(tiles, schedule.target)
    is_known = tiles.outer is tiles.loop and not _bounds_inside(tiles.mainloop, tiles.loop)
    return (Delay if is_known else DelayAcross)(tiles, schedule.target)


# ---- where ------------------------------------------------------------------------------------


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
    """Return whether there is one mainloop, under a branch that skips it at most, before each tile's stores."""
    body, around = tiles.loop.body, tiles.around
    if len(tiles.mainloops) > 1 or around.block is not body:
        return False
    if isinstance(around, scf.For):
        return True
    skips = around.orelse.first is around.orelse.terminator
    return skips and tiles.mainloop.block is around.then


def _stores_of_tile(loop: scf.For) -> list[tma.StagedTmaStore]:
    """Return the stores that a loop has in one block, its body or one of a branch in it, if all can be deferred."""
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
    """Return the outermost loop around `loop`, or itself, if all that is around them can carry tiles."""
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
    """Return whether the map of a store is there until the end of the next mainloop.

    Consumers give a map back that was made ahead when they are done with the next one.
    """
    tensor_map = store.tensor.op
    if tensor_map is None or not is_inside(tensor_map, tiles.outer):
        return True
    if not _is_plain(tiles) or slot_of(store, tiles.outer) is None:
        return False
    return tensor_map.block in (tiles.loop.block, tiles.loop.body)


def _bounds_inside(mainloop: scf.For, loop: scf.For) -> bool:
    """Return whether it is not known ahead of a tile how many steps it has."""
    bounds = mainloop.lower, mainloop.upper, mainloop.step
    return any(is_inside(value.owner, loop) for value in bounds)


def _mainloops(loop: scf.For) -> list[scf.For]:
    """Return the mainloops with all dots, of which a tile has one, if threads compute nothing in them.

    Where threads compute fragments, or scale results, the tensor cores wait for them already.
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
    """Yield the ops around `inner` that are in `outer`."""
    for op in inner.ancestors():
        if op is outer:
            return
        yield op


def _orders_nothing(loop: scf.For, stores: Sequence[tma.StagedTmaStore]) -> bool:
    """Return whether the stores can be reordered with all else that the loop does."""
    for op in loop.body.walk():
        if isinstance(op, tma.StagedStore) and op not in stores:
            return False
        if op not in stores and not op.terminator and _concerns_others(op):
            return False
        if op.has(Trait.MAY_NOT_END) or getattr(op, "volatile", False):
            return False
    return True


def _concerns_others(op: Op) -> bool:
    """Return whether an op changes or orders what others than the threads of its CTA see.

    An mbarrier orders what consumers do with the producer, which only loads.
    """
    if op.effects_on(Resource.MBARRIER):
        return False
    changes = op.effects_on(None, "write", "order")
    return any(change.resource not in _OF_CTA for change in changes)


def _needed_registers(mainloops: Sequence[scf.For], stores: Sequence[tma.StagedTmaStore]) -> int:
    """Return the live registers of a thread: accumulators, and a converted tile with them."""
    sums = max(map(_registers_of_sums, mainloops))
    return sums + registers_of_tiles(store.value for store in stores) + EPILOGUE_RESERVE


def _registers_of_sums(mainloop: scf.For) -> int:
    """Return the registers of the accumulators, of the columns that are multiplied."""
    total = registers_of_tiles(mainloop.carried)
    for op in mainloop.body:
        if isinstance(op, wgmma.Wgmma) and op.acc in mainloop.carried and op.num_columns:
            columns = tile_shape(op.acc)[-1]
            total -= registers_of(op.acc) * (columns - op.num_columns) // columns
    return total


def _num_buffers(
    loop: scf.For, stores: Sequence[tma.StagedTmaStore], kernel: Kernel, schedule: Schedule
) -> int:
    """Return how many buffers there is room for, of each kind of slice, or 0."""
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
