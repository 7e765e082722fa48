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

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.core import Kernel, Op
from aotc.ir.diagnostics import at
from aotc.ir.dialects import roles, scf, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.order import number_ops
from aotc.ir.rewrite import is_inside
from aotc.ir.types import TileType, element_of
from aotc.schedule.analysis.register_budget import (
    EPILOGUE_RESERVE,
    REGISTER_BITS,
    registers_of,
    reserve_registers,
)
from aotc.schedule.analysis.shared_budget import shared_budget_bytes
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.delayed_stores import Delay, DelayAcross, Tiles, is_tile, slot_of
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
                is_known = tiles.outer is loop and not _bounds_inside(tiles.mainloop, loop)
                with at(tiles.stores[0].loc):
                    (Delay if is_known else DelayAcross)(tiles, schedule.target).rewrite()
                schedule.remark(loop.loc, Remark.EPILOGUE_OVERLAPPED())


# ---- where ------------------------------------------------------------------------------------


def _find(
    loop: scf.For, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> Tiles | None:
    outer = _outermost(loop)
    found = list(deferrable_stores(loop.body))
    stores = [op for op in found if isinstance(op, tma.StagedTmaStore)]
    mainloop = _mainloop(loop)
    if not stores or len(stores) < len(found) or mainloop is None or outer is None:
        return None
    if not _orders_nothing(outer, stores):
        return None
    if not all(_keeps_map(store, loop, outer) for store in stores):
        return None
    around = mainloop if mainloop.block is loop.body else mainloop.parent_op
    assert isinstance(around, scf.For | scf.If)
    order = {op: number for number, op in enumerate(loop.body)}
    follow = all(order[store] > order[around] for store in stores)
    num_buffers = _num_buffers(outer, stores, kernel, schedule) if follow else 0
    needed = _needed_registers(mainloop, stores)
    if not num_buffers or not reserve_registers(needed, role, kernel, schedule):
        return None
    return Tiles(outer, loop, mainloop, around, stores, num_buffers)


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


def _keeps_map(store: tma.StagedTmaStore, loop: scf.For, outer: scf.For) -> bool:
    """Return whether the map of a store is there until the end of the next mainloop.

    Consumers give a map back that was made ahead when they are done with the next one.
    """
    made = store.tensor.op
    if made is None or not is_inside(made, outer):
        return True
    return slot_of(store, outer) is not None and made.block in (loop.block, loop.body)


def _bounds_inside(mainloop: scf.For, loop: scf.For) -> bool:
    """Return whether it is not known ahead of a tile how many steps it has."""
    bounds = mainloop.lower, mainloop.upper, mainloop.step
    return any(is_inside(value.owner, loop) for value in bounds)


def _mainloop(loop: scf.For) -> scf.For | None:
    """Return the mainloop with all dots, if threads compute nothing in it.

    Where threads compute fragments, or scale results, the tensor cores wait for them already.
    """
    dots = [op for op in loop.body.walk() if isinstance(op, wgmma.Wgmma)]
    blocks = {op.block: None for op in dots}
    if len(blocks) != 1 or any(isinstance(op.a.type, TileType) for op in dots):
        return None
    (block,) = blocks
    inner = block.parent if block is not None else None
    if not isinstance(inner, scf.For) or inner is loop:
        return None
    if not all(op.acc in inner.carried or isinstance(op.acc.op, wgmma.Wgmma) for op in dots):
        return None
    if any(element_of(op.acc.type).bits != REGISTER_BITS for op in dots):
        return None  # stores are under branches, which results in half registers would cross
    if inner.block is loop.body:
        return inner
    branch = inner.parent_op
    if not isinstance(branch, scf.If) or branch.block is not loop.body:
        return None
    skips = branch.orelse.first is branch.orelse.terminator
    return inner if skips and inner.block is branch.then else None


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
    return any(each.resource not in _OF_CTA for each in changes)


def _needed_registers(mainloop: scf.For, stores: Sequence[tma.StagedTmaStore]) -> int:
    """Return the live registers of a thread: accumulators, and a converted tile with them."""
    carried = [value for value in mainloop.carried if is_tile(value)]
    tiles = [store.value for store in stores]
    return sum(map(registers_of, [*carried, *tiles])) + EPILOGUE_RESERVE


def _num_buffers(
    loop: scf.For, stores: Sequence[tma.StagedTmaStore], kernel: Kernel, schedule: Schedule
) -> int:
    """Return how many buffers there is room for, of each kind of slice, or 0."""
    numbers = number_ops(kernel)
    mine: dict[Op, tma.StagedTmaStore] = {buffer_of(store): store for store in stores}
    buffers = live_ranges(kernel, numbers)
    others = [buffer for buffer in buffers if buffer.op not in mine]
    of_kind: dict[object, list[Buffer]] = {}
    for buffer in buffers:
        store = mine.get(buffer.op)
        if store is not None:
            count = num_slices(store)
            size_bytes = buffer.size_bytes // count
            parts = [Buffer(buffer.op, size_bytes, *numbers[loop], buffer.num_copies)]
            of_kind.setdefault(sharing_key(store), []).extend(parts * count)
    limit = shared_budget_bytes(kernel, schedule.target, place_buffers(others))
    for count in range(max(map(len, of_kind.values())), 0, -1):
        taken = [replace(each) for parts in of_kind.values() for each in parts[:count]]
        if place_buffers([*others, *taken]) <= limit:
            return count
    return 0
