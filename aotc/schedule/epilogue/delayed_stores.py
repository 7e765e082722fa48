"""Delay a tile's stores to the next tile's mainloop.

`Delay` rewrites one loop over tiles with a mainloop provably long enough. `DelayAcross` carries a tile
through all enclosing loops and branches, such as a loop over groups of tiles, to the next mainloop of any
length.

Invariant: slices are stored once each and in order, all of a tile before any of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import arith, gpu, scf, tma, wgmma
from aotc.ir.rewrite import Builder, append_carried, is_inside, pass_on
from aotc.ir.types import I32, ScalarType, TensorMapType, TileType
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.epilogue.staged_stores import (
    allocate_slice,
    erase,
    num_slices,
    sharing_key,
    slice_shape,
    store_slice,
)
from aotc.target import Target


@dataclass(frozen=True)
class Tiles:
    """A loop over tiles, its mainloops (each tile runs one), and the stores after them.

    `outer` is the outermost loop a tile is carried through, or `loop` itself. `around` is the op in the stores'
    block that is or contains the last mainloop. Slices of stores with shared buffers have `num_buffers`. The
    first `num_at_once` stores are not delayed.
    """

    outer: scf.For
    loop: scf.For
    mainloops: Sequence[scf.For]
    around: scf.For | scf.If
    stores: Sequence[tma.StagedTmaStore]
    num_buffers: int
    num_at_once: int = 0

    @property
    def mainloop(self) -> scf.For:
        """The only mainloop."""
        (mainloop,) = self.mainloops
        return mainloop


def slot_of(store: tma.StagedTmaStore, outer: Op) -> Value | None:
    """Return the slot of a store's map if the map is built inside `outer`, else None."""
    tensor_map = store.tensor.op
    if isinstance(tensor_map, tma.MadeTensorMap) and is_inside(tensor_map, outer):
        return tensor_map.slot
    return None


class Delay:
    """Rewrite a loop over tiles: store in the next mainloop, or right after the last tile.

    Slices of all stores are numbered. The loop carries the number of the next slice to store, or their count if
    all are stored.
    """

    def __init__(self, tiles: Tiles, target: Target) -> None:
        self.tiles = tiles
        self.target = target
        self.parts = [(store, part) for store in tiles.stores for part in range(num_slices(store))]
        at_once = tiles.stores[: tiles.num_at_once]
        self.first = sum(store in at_once for store, _ in self.parts)
        # The values from before the mainloop is rewritten and coordinates are sunk.
        self.stored = {store: self._inputs(store) for store in tiles.stores}
        self.before = Builder.before_op(tiles.outer)
        self.zero = self.before(arith.Constant(0, I32)).out
        self.none = self.before(arith.Constant(len(self.parts), I32)).out
        self.buffers = self._place_buffers()

    def _inputs(self, store: tma.StagedTmaStore) -> list[Value]:
        """Return a delayed store's inputs: the tile, its coordinates, its map's slot."""
        slot = slot_of(store, self.tiles.outer)
        return [store.value, *store.coords, *([] if slot is None else [slot])]

    def _place_buffers(self) -> list[Value]:
        """Return the buffer of each slice; buffers of a kind rotate."""
        staging: list[Value] = []
        of_kind: dict[object, list[Value]] = {}
        for store, _ in self.parts:
            rotating = of_kind.setdefault(sharing_key(store), [])
            if len(rotating) < self.tiles.num_buffers:
                rotating.append(allocate_slice(store, slice_shape(store), self.before))
            else:
                rotating.append(rotating.pop(0))
            staging.append(rotating[-1])
        return staging

    def rewrite(self) -> None:
        """Rewrite the loop."""
        loop, before = self.tiles.loop, self.before
        stored = dict.fromkeys(value for inputs in self.stored.values() for value in inputs)
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
        self._compute_late([value for value in values if not is_tile(value)])
        now = self._stored_now()
        new = {value: now[value] for value in values}
        builder = Builder.before_op(loop.body.terminator)
        has_next = builder(arith.Compare(loop.induction, upper, "lt")).out
        waits = builder(arith.And(is_long, has_next)).out
        builder(scf.If(waits, _only([]), self._all_parts(new)))
        part = builder(arith.Select(waits, self.zero, self.none)).out
        pass_on(loop.body, [*new.values(), part])
        # ptxas would unroll such a large loop by two.
        loop.unroll = loop.unroll or scf.NEVER_UNROLLED
        rewritten = append_carried(loop, [*inits, self.none])
        Builder.after_op(rewritten)(tma.TmaStoreWait())
        for store in self.stored:
            erase(store)

    def _nothing(self, value: Value) -> Value:
        """Return the initial carried value, for the first iteration without a pending tile."""
        is_number = isinstance(value.type, ScalarType)
        return self.zero if is_number else self.before(gpu.Undefined(value.type)).out

    def _stored_now(self) -> dict[Value, Value]:
        """Map each value to its current replacement among the stores' operands."""
        return {
            value: now
            for store, values in self.stored.items()
            for value, now in zip(values, self._inputs(store), strict=True)
        }

    def _store_in_mainloop(self, values: dict[Value, Value], following: Value) -> None:
        """Store in the only mainloop."""
        mainloop = self.tiles.mainloop
        rewritten = self.store_in(mainloop, values, following)
        if self.tiles.around is mainloop:
            self.tiles = replace(self.tiles, around=rewritten)
        self.tiles = replace(self.tiles, mainloops=[rewritten])

    def store_in(self, mainloop: scf.For, values: dict[Value, Value], following: Value) -> scf.For:
        """Store a slice after the dots of each mainloop iteration, while slices are left; return the loop."""
        part = mainloop.body.add_arg(I32, "part")
        *_, last = (op for op in mainloop.body if isinstance(op, wgmma.Wgmma))
        builder = Builder.after_op(last)
        stores: list[Op] = []
        for number in range(self.first, len(self.parts)):
            due = arith.Constant(number, I32)
            is_due = arith.Compare(part, due.out, "eq")
            stores += [due, is_due, scf.If(is_due.out, self._one_part(number, values), _only([]))]
        any_left = builder(arith.Compare(part, self.none, "lt")).out
        builder(scf.If(any_left, _only(stores), _only([])))
        unit = builder(arith.Constant(1, I32)).out
        pass_on(mainloop.body, [builder(arith.Add(part, unit)).out])
        return append_carried(mainloop, [following])

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
        for block, builder in zip(around.blocks, arms, strict=True):
            mapping: dict[Value, Value] = {}
            for op in late:
                builder(op.clone(mapping))
            pass_on(block, [mapping[value] for value in computed])
        rewritten = append_carried(around)
        self.tiles = replace(self.tiles, around=rewritten)
        added = rewritten.results[len(rewritten.results) - len(computed) :]
        for value, out in zip(computed, added, strict=True):
            value.replace_all_uses_with(out)
        for op in reversed(late):
            op.erase()

    def _late(self) -> list[Op]:
        """Return scalar ops of the loop's body used only for coordinates."""
        ops = list(self.tiles.loop.body)
        following = dict.fromkeys(ops[ops.index(self.tiles.around) :])
        late = {op: None for op in ops if op.pure and not op.blocks and _is_scalar(op)}
        stores: dict[Op, None] = dict.fromkeys(self.tiles.stores)
        while True:
            movable = {
                op: None
                for op in late
                if all(user in late or user in stores for user in _users(op))
                and all(
                    operand.op in late or operand.op not in following for operand in op.operands
                )
            }
            if len(movable) == len(late):
                return list(late)
            late = movable

    def _one_part(self, number: int, values: dict[Value, Value]) -> Block:
        block = Block()
        builder = Builder(block)
        self._store_part(number, values, builder)
        builder(scf.Yield([]))
        return block

    def _all_parts(self, values: dict[Value, Value]) -> Block:
        block = Block()
        builder = Builder(block)
        for number in range(len(self.parts)):
            self._store_part(number, values, builder)
        builder(scf.Yield([]))
        return block

    def _await_buffer(self, number: int, builder: Builder) -> None:
        """Wait until a slice's buffer is free.

        The first slice waits for all stores of earlier tiles. A later slice waits for the slice of the same tile
        previously in its buffer, if any. A slice is one store, and all are issued in order.
        """
        if number == 0:
            builder(tma.TmaStoreWait())
            return
        buffer = self.buffers[number]
        since = next((n for n in range(1, number + 1) if self.buffers[number - n] is buffer), None)
        builder(tma.TmaBufferWait(buffer, number if since is None else since - 1))

    def _inputs_of(
        self, store: tma.StagedTmaStore, values: dict[Value, Value], builder: Builder
    ) -> list[Value]:
        """Return what a delayed store needs, where `values` are carried in place of others."""
        del builder
        return [values.get(value, value) for value in self.stored[store]]

    def _store_part(self, number: int, values: dict[Value, Value], builder: Builder) -> None:
        self._await_buffer(number, builder)
        store, part = self.parts[number]
        tile, *coords = self._inputs_of(store, values, builder)
        tensor = None
        if len(coords) > len(store.coords):
            assert isinstance(store.tensor.type, TensorMapType)
            # The issuing warp acquires the map with the first store, while the tensor cores are busy.
            find = tma.AcquiredTensorMap if part else tma.MadeTensorMap
            tensor = builder(find(coords.pop(), store.tensor.type)).out
        store_slice(
            store,
            part,
            self.buffers[number],
            self.target,
            builder,
            value=tile,
            coords=coords,
            tensor=tensor,
        )


class DelayAcross(Delay, CarriedState):
    """Carry a tile through all enclosing loops and branches to the next mainloop.

    Slices left over by a short mainloop are stored after it. A state is the same as the values carried by
    `Delay`'s loop.
    """

    def rewrite(self) -> None:
        """Rewrite the loop and its enclosing ops."""
        outer = self.tiles.outer
        stored = dict.fromkeys(value for inputs in self.stored.values() for value in inputs)
        self._values = [value for value in stored if is_inside(value.owner, outer)]
        inits = [self._nothing(value) for value in self._values]
        after = Builder.after_op(outer)
        block = outer.block
        assert block is not None
        builder, state = Builder(block, after.before), [*inits, self.none]
        updated = self.updated_by(outer, state)
        state = self.through(outer, state) if updated is None else updated
        self._store_rest(state, builder)
        builder(tma.TmaStoreWait())
        for store in self.stored:
            tensor_map = store.tensor.op
            erase(store)
            if isinstance(tensor_map, tma.MadeTensorMap) and not tensor_map.out.users:
                tensor_map.erase()

    def updated_by(self, op: Op, state: State) -> State | None:
        """Rewrite the loop over tiles."""
        return self._rewrite_loop(state) if op is self.tiles.loop else None

    def indices_in(self, op: Op) -> Sequence[int]:
        count = len(self._values) + 1
        return range(count) if is_inside(self.tiles.loop, op) else ()

    def hint(self, index: int) -> str:
        return self._values[index].hint if index < len(self._values) else "part"

    def _rewrite_loop(self, state: State) -> State:
        loop = self.tiles.loop
        before = [
            loop.body.add_arg(value.type, self.hint(index)) for index, value in enumerate(state)
        ]
        self._store_in_mainloop(dict(zip(self._values, before, strict=False)), before[-1])
        self._compute_late([value for value in self._values if self._is_late(value)])
        part = self._part_after(before[-1])
        self._store_rest([*before[:-1], part], Builder.after_op(self.tiles.around))
        now = self._stored_now()
        pass_on(loop.body, [*(now[value] for value in self._values), self.zero])
        loop.unroll = loop.unroll or scf.NEVER_UNROLLED
        rewritten = append_carried(loop, state)
        after = list(rewritten.results[len(rewritten.results) - len(state) :])
        maps = [store.tensor.op for store in self.stored if slot_of(store, self.tiles.outer)]
        if any(
            tensor_map is not None and tensor_map.block is rewritten.block for tensor_map in maps
        ):
            # An earlier tile's map is released at the end of the block, even without a new map.
            if runs_surely(rewritten):
                return after
            builder = Builder.after_op(rewritten)
            runs = builder(arith.Compare(rewritten.lower, rewritten.upper, "lt")).out
            part = builder(arith.Select(runs, self.none, after[-1])).out
            self._store_rest([*after[:-1], part], builder)
            after[-1] = builder(arith.Select(runs, after[-1], self.none)).out
        return after

    def _is_late(self, value: Value) -> bool:
        return not is_tile(value) and is_inside(value.owner, self.tiles.loop)

    def _part_after(self, before: Value) -> Value:
        """Return the next slice's number after the mainloop, even if it was skipped."""
        part, around = self.tiles.mainloop.results[-1], self.tiles.around
        if not isinstance(around, scf.If):
            return part
        pass_on(around.then, [part])
        pass_on(around.orelse, [before])
        rewritten = append_carried(around)
        self.tiles = replace(self.tiles, around=rewritten)
        return rewritten.results[-1]

    def _store_rest(self, state: State, builder: Builder) -> None:
        """Store the remaining slices."""
        values, part = dict(zip(self._values, state, strict=False)), state[-1]
        rest = Block()
        inner = Builder(rest)
        for number in range(self.first, len(self.parts)):
            part_number = inner(arith.Constant(number, I32)).out
            is_left = inner(arith.Compare(part, part_number, "le")).out
            inner(scf.If(is_left, self._one_part(number, values), _only([])))
        inner(scf.Yield([]))
        any_left = builder(arith.Compare(part, self.none, "lt")).out
        builder(scf.If(any_left, rest, _only([])))


def runs_surely(loop: scf.For) -> bool:
    """Return whether a branch around a loop guarantees an iteration."""
    inner: Op = loop
    for op in loop.ancestors():
        if isinstance(op, scf.If) and inner.block is op.then:
            condition = op.condition.op
            if (
                isinstance(condition, arith.Compare)
                and condition.predicate == "lt"
                and list(condition.operands) == [loop.lower, loop.upper]
            ):
                return True
        inner = op
    return False


def is_tile(value: Value) -> bool:
    """Return whether a value is distributed over threads."""
    return isinstance(value.type, TileType)


def _is_scalar(op: Op) -> bool:
    """Return whether an op has results, all of them scalars."""
    kinds = [value.type for value in op.results]
    return bool(kinds) and all(isinstance(kind, ScalarType) for kind in kinds)


def _users(op: Op) -> Iterator[Op]:
    return (user for value in op.results for user in value.users)


def _only(ops: Sequence[Op]) -> Block:
    """Return a block of the given ops with an empty yield."""
    block = Block()
    for op in ops:
        block.insert(op)
    block.insert(scf.Yield([]))
    return block
