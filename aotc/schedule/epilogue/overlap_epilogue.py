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

It spreads ops of one loop among the iterations of the loop nested in it, which no schedule of one loop
(`pipelining.loop_schedule`) says.

Invariant: slices are stored once each and in their order, all of a tile before any of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, roles, scf, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.order import number_ops
from aotc.ir.rewrite import Builder, append_carried, is_inside, pass_on
from aotc.ir.types import I32, ScalarType, TileType, element_of
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.analysis.register_budget import (
    EPILOGUE_RESERVE,
    REGISTER_BITS,
    registers_of,
    reserve_registers,
)
from aotc.schedule.analysis.shared_budget import shared_budget_bytes
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.staged_stores import (
    allocate_slice,
    buffer_of,
    deferrable_stores,
    erase,
    num_slices,
    sharing_key,
    slice_shape,
    store_slice,
)
from aotc.schedule.remarks import Remark
from aotc.schedule.shared_memory.allocate_shared import place_buffers
from aotc.schedule.shared_memory.live_ranges import Buffer, live_ranges
from aotc.target import Target

# What the threads of a CTA do to these is ordered by barriers and waits of its own.
_OF_CTA = (Resource.SHARED, Resource.MBARRIER, Resource.DOTS, Resource.STORES)


def overlap_epilogue(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop over tiles whose stores can wait for the next tile's mainloop."""
    if kernel.num_consumer_groups > 1:
        return  # the mainloop of another consumer group runs in the meantime
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        for loop in [op for op in role.consumers if isinstance(op, scf.For)]:
            tiles = _find(loop, role, kernel, schedule)
            if tiles is not None:
                with at(tiles.stores[0].loc):
                    _Delay(tiles, schedule.target).rewrite()
                schedule.remark(loop.loc, Remark.EPILOGUE_OVERLAPPED())


# ---- where ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiles:
    """A loop over tiles, its mainloop, and the stores after that.

    `around` is the op of the body that is the mainloop, or contains it. Stores that can share
    buffers have `num_buffers` for their slices.
    """

    loop: scf.For
    mainloop: scf.For
    around: scf.For | scf.If
    stores: Sequence[tma.StagedTmaStore]
    num_buffers: int


def _find(
    loop: scf.For, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> _Tiles | None:
    found = list(deferrable_stores(loop.body))
    stores = [op for op in found if isinstance(op, tma.StagedTmaStore)]
    mainloop = _mainloop(loop)
    if not stores or len(stores) < len(found) or mainloop is None:
        return None
    if not _orders_nothing(loop, stores):
        return None
    around = mainloop if mainloop.block is loop.body else mainloop.parent_op
    assert isinstance(around, scf.For | scf.If)
    order = {op: number for number, op in enumerate(loop.body)}
    follow = all(order[store] > order[around] for store in stores)
    num_buffers = _num_buffers(loop, stores, kernel, schedule) if follow else 0
    needed = _needed_registers(mainloop, stores)
    if not num_buffers or not reserve_registers(needed, role, kernel, schedule):
        return None
    return _Tiles(loop, mainloop, around, stores, num_buffers)


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
    if any(is_inside(value.owner, loop) for value in (inner.lower, inner.upper, inner.step)):
        return None  # how many steps the next tile has is not known ahead of it
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
    carried = [value for value in mainloop.carried if _is_tile(value)]
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


# ---- rewriting --------------------------------------------------------------------------------


class _Delay:
    """Rewrite a loop over tiles.

    Slices of all stores are numbered. The loop carries the number of the next one to store,
    or their count if all are stored.
    """

    def __init__(self, tiles: _Tiles, target: Target) -> None:
        self.tiles = tiles
        self.target = target
        self.parts = [(store, part) for store in tiles.stores for part in range(num_slices(store))]
        # The values from before the mainloop is rewritten and coordinates are sunk.
        self.stored = {store: [store.value, *store.coords] for store in tiles.stores}
        self.before = Builder.before_op(tiles.loop)
        self.zero = self.before(arith.Constant(0, I32)).out
        self.none = self.before(arith.Constant(len(self.parts), I32)).out
        self.buffers = self._place_buffers()

    def _place_buffers(self) -> list[Value]:
        """Return the buffer of each slice: those of a kind rotate."""
        found: list[Value] = []
        of_kind: dict[object, list[Value]] = {}
        for store, _ in self.parts:
            rotating = of_kind.setdefault(sharing_key(store), [])
            if len(rotating) < self.tiles.num_buffers:
                rotating.append(allocate_slice(store, slice_shape(store), self.before))
            else:
                rotating.append(rotating.pop(0))
            found.append(rotating[-1])
        return found

    def rewrite(self) -> None:
        """Store in the next mainloop, or right after a tile that no long enough one follows."""
        loop, before = self.tiles.loop, self.before
        stored = dict.fromkeys(value for each in self.stored.values() for value in each)
        values = [value for value in stored if is_inside(value.owner, loop)]
        inits = [self._nothing(value) for value in values]
        last = len(self.parts) - 1
        mainloop = self.tiles.mainloop
        steps = lowered_bounds(mainloop, last, before)
        is_long = before(arith.Compare(mainloop.lower, steps[last], "lt")).out
        upper = lowered_bounds(loop, 1, before)[1]
        old = {value: loop.body.add_arg(value.type, value.hint) for value in values}
        following = loop.body.add_arg(I32, "part")
        self._store_in_mainloop(old, following)
        self._compute_late([value for value in values if not _is_tile(value)])
        now = self._stored_now()
        new = {value: now[value] for value in values}
        place = Builder.before_op(loop.body.terminator)
        has_next = place(arith.Compare(loop.induction, upper, "lt")).out
        waits = place(arith.And(is_long, has_next)).out
        place(scf.If(waits, _only([]), self._all_parts(new)))
        part = place(arith.Select(waits, self.zero, self.none)).out
        pass_on(loop.body, [*new.values(), part])
        # ptxas would unroll such a large loop by two.
        loop.unroll = loop.unroll or scf.NEVER_UNROLLED
        made = append_carried(loop, [*inits, self.none])
        Builder.after_op(made)(tma.TmaStoreWait())
        for store in self.stored:
            erase(store)

    def _nothing(self, value: Value) -> Value:
        """Return the carried values of the first iteration, which has nothing to store."""
        return self.before(gpu.Undefined(value.type)).out if _is_tile(value) else self.zero

    def _stored_now(self) -> dict[Value, Value]:
        """Return what the stores use now in place of each value: loops and branches were replaced."""
        return {
            value: now
            for store, values in self.stored.items()
            for value, now in zip(values, [store.value, *store.coords], strict=True)
        }

    def _store_in_mainloop(self, values: dict[Value, Value], following: Value) -> None:
        """Store a slice after the dots of each iteration of the mainloop, while there is one."""
        mainloop = self.tiles.mainloop
        part = mainloop.body.add_arg(I32, "part")
        *_, last = (op for op in mainloop.body if isinstance(op, wgmma.Wgmma))
        place = Builder.after_op(last)
        stores: list[Op] = []
        for number in range(len(self.parts)):
            due = arith.Constant(number, I32)
            is_due = arith.Compare(part, due.out, "eq")
            stores += [due, is_due, scf.If(is_due.out, self._one_part(number, values), _only([]))]
        any_left = place(arith.Compare(part, self.none, "lt")).out
        place(scf.If(any_left, _only(stores), _only([])))
        one = place(arith.Constant(1, I32)).out
        pass_on(mainloop.body, [place(arith.Add(part, one)).out])
        made = append_carried(mainloop, [following])
        if self.tiles.around is mainloop:
            self.tiles = replace(self.tiles, around=made)
        self.tiles = replace(self.tiles, mainloop=made)

    def _compute_late(self, coords: Sequence[Value]) -> None:
        """Sink the computation of coordinates below the mainloop."""
        around, late = self.tiles.around, self._late()
        after = Builder.after_op(self.tiles.mainloop)
        if not isinstance(around, scf.If):
            for op in late:
                op.remove()
                after(op)
            return
        computed = [value for value in coords if value.op in late]
        arms = (after, Builder.before_op(around.orelse.terminator))
        for block, place in zip(around.blocks, arms, strict=True):
            mapping: dict[Value, Value] = {}
            for op in late:
                place(op.clone(mapping))
            pass_on(block, [mapping[value] for value in computed])
        made = append_carried(around)
        added = made.results[len(made.results) - len(computed) :]
        for value, out in zip(computed, added, strict=True):
            value.replace_all_uses_with(out)
        for op in reversed(late):
            op.erase()

    def _late(self) -> list[Op]:
        """Return the scalar ops of the loop's body that are needed for coordinates alone."""
        ops = list(self.tiles.loop.body)
        following = dict.fromkeys(ops[ops.index(self.tiles.around) :])
        late = {op: None for op in ops if op.pure and not op.blocks and _is_scalar(op)}
        stores: dict[Op, None] = dict.fromkeys(self.tiles.stores)
        while True:
            kept = {
                op: None
                for op in late
                if all(user in late or user in stores for user in _users(op))
                and all(each.op in late or each.op not in following for each in op.operands)
            }
            if len(kept) == len(late):
                return list(late)
            late = kept

    def _one_part(self, number: int, values: dict[Value, Value]) -> Block:
        block = Block()
        place = Builder(block)
        # Which of the stores in flight is the newest is not known here.
        place(tma.TmaStoreWait())
        self._store_part(number, values, place)
        place(scf.Yield([]))
        return block

    def _all_parts(self, values: dict[Value, Value]) -> Block:
        block = Block()
        place = Builder(block)
        place(tma.TmaStoreWait())
        for number in range(len(self.parts)):
            if number >= self.tiles.num_buffers:
                place(tma.TmaStoreWait(pending=self.tiles.num_buffers - 1))
            self._store_part(number, values, place)
        place(scf.Yield([]))
        return block

    def _store_part(self, number: int, values: dict[Value, Value], place: Builder) -> None:
        store, part = self.parts[number]
        tile, *coords = (values.get(value, value) for value in self.stored[store])
        buffer = self.buffers[number]
        store_slice(store, part, buffer, self.target, place, value=tile, coords=coords)


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, TileType)


def _is_scalar(op: Op) -> bool:
    """Return whether all results of an op, and there are some, are numbers."""
    kinds = [value.type for value in op.results]
    return bool(kinds) and all(isinstance(kind, ScalarType) for kind in kinds)


def _users(op: Op) -> Iterator[Op]:
    return (user for value in op.results for user in value.users)


def _only(ops: Sequence[Op]) -> Block:
    """Return a block of some ops that yields nothing."""
    block = Block()
    for op in ops:
        block.insert(op)
    block.insert(scf.Yield([]))
    return block
