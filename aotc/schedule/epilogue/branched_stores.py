"""Delay a tile's stores to the next mainloop, chosen among several by branches.

A kernel may have a mainloop for each width of its tiles, and empty tiles:

    for tile:
      if tile has rows:
        if wide: { for k: multiply } else: { for k: multiply }
        convert; store slice 0; …; store slice n - 1

The converted tile is carried through the branches, too. The next mainloop, whichever it is, stores it. Remaining
slices are stored before the new tile is converted, and an empty tile leaves them pending. If registers cannot hold
a whole tile beside the accumulators, its first stores are not delayed.

Each store may have coordinates of its own, all computed from the tile's position. Loops carry the fewest numbers
from which cheap arithmetic recomputes them.

Invariant: slices are stored once each and in order, all of a tile before any of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from aotc.ir.carried_state import State
from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, scf, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import I32, ScalarType
from aotc.schedule.analysis.minimum_cut import Graph
from aotc.schedule.epilogue.delayed_stores import DelayAcross, Tiles
from aotc.schedule.epilogue.staged_stores import erase
from aotc.target import Target


class DelayInBranches(DelayAcross):
    """Carry a tile through all enclosing loops and branches to the next mainloop.

    A state holds the tiles to store, the numbers to recompute coordinates from, and the next slice's number.
    """

    def __init__(self, tiles: Tiles, target: Target) -> None:
        super().__init__(tiles, target)
        self.recomputed: list[Op] = []
        # The op using each value of a state: its operand is the value's current replacement.
        self.places: list[tuple[Op, int]] = []

    def rewrite(self) -> None:
        """Rewrite the loop and its enclosing ops."""
        outer, stores = self.tiles.outer, list(self.tiles.stores)
        delayed = stores[self.tiles.num_at_once :]
        self._values = [store.value for store in delayed]
        self.places = [(store, store.slots.index(store.value)) for store in delayed]
        self._cut([value for store in delayed for value in self.stored[store][1:]])
        inits = [*(self._nothing(value) for value in self._values), self.none]
        after = Builder.after_op(outer)
        block = outer.block
        assert block is not None
        builder = Builder(block, after.before)
        self._store_rest(self.through(outer, inits), builder)
        builder(tma.TmaStoreWait())
        for store in stores:
            erase(store)

    def _cut(self, coords: Sequence[Value]) -> None:
        """Choose the numbers to carry, and the ops to recompute coordinates from them."""
        graph, outer = Graph[Value](), self.tiles.outer
        seen: dict[Value, None] = {}
        worklist = [value for value in dict.fromkeys(coords) if is_inside(value.owner, outer)]
        for value in worklist:
            graph.add_end(value)
        while worklist:
            value = worklist.pop()
            if value in seen:
                continue
            seen[value] = None
            graph.add_node(value, 1 if value.type == I32 else None)
            if not _is_cheap(value.op):
                graph.add_start(value)
                continue
            for operand in value.op.operands:
                if is_inside(operand.owner, outer):
                    graph.add_edge(operand, value)
                    worklist.append(operand)
        carried = graph.minimum_cut()
        computed: dict[Op, None] = {}
        worklist = [value for value in dict.fromkeys(coords) if value in seen]
        while worklist:
            value = worklist.pop()
            op = value.op
            if value in carried or op is None or op in computed:
                continue
            computed[op] = None
            worklist += [operand for operand in op.operands if operand in seen]
        self.recomputed = [op for op in outer.body.walk() if op in computed]
        users = [*self.recomputed, *self.tiles.stores[self.tiles.num_at_once :]]
        for value in carried:
            user = next(op for op in users if value in op.operands)
            self._values.append(value)
            self.places.append((user, user.slots.index(value)))

    # -- the walk --------------------------------------------------------------

    def updated_by(self, op: Op, state: State) -> State | None:
        """Store in a mainloop, store the rest after the last one, take up the new tile after its stores."""
        if op in self.tiles.mainloops:
            assert isinstance(op, scf.For)
            values = dict(zip(self._values, state, strict=False))
            return [*state[:-1], self.store_in(op, values, state[-1]).results[-1]]
        if op is self.tiles.around:
            state = self.through(op, state)
            last = state[-1].op
            assert last is not None
            self._store_rest(state, Builder.after_op(last))
            return state
        return self._after_store(op, state) if op in self.tiles.stores else None

    def indices_in(self, op: Op) -> Sequence[int]:
        if any(store is op or is_inside(store, op) for store in self.tiles.stores):
            return range(len(self._values) + 1)
        return (
            [len(self._values)]
            if any(is_inside(mainloop, op) for mainloop in self.tiles.mainloops)
            else []
        )

    def _after_store(self, store: Op, state: State) -> State:
        """Emit a store without delay; after the last store switch to the new tile."""
        *_, last = self.tiles.stores
        builder = Builder.before_op(store)
        for number in range(self.first):
            if self.parts[number][0] is store:
                self._store_part(number, {}, builder)
        if store is not last:
            return state
        following = builder(arith.Constant(self.first, I32)).out
        now = [value for op, index in self.places if (value := op.slots[index]) is not None]
        return [*now, following]

    def _inputs_of(
        self, store: tma.StagedTmaStore, values: dict[Value, Value], builder: Builder
    ) -> list[Value]:
        """Return a store's inputs, its coordinates recomputed from carried numbers."""
        if not values:
            return self._inputs(store)  # where it stands
        copies = dict(values)
        computation = self._needed_by(store)
        for op in self.recomputed:
            if op in computation:
                copy = builder(op.clone(copies))
                copies.update(zip(op.results, copy.results, strict=True))
        return [copies.get(value, value) for value in self.stored[store]]

    def _needed_by(self, store: tma.StagedTmaStore) -> dict[Op, None]:
        """Return the ops required to recompute a store's coordinates."""
        computation: dict[Op, None] = {}
        live = dict.fromkeys(self.stored[store][1:])
        for op in reversed(self.recomputed):
            if any(value in live for value in op.results):
                computation[op] = None
                live.update(dict.fromkeys(op.operands))
        return computation


def _is_cheap(op: Op | None) -> TypeGuard[Op]:
    """Return whether an op on numbers is cheap enough to recompute."""
    return (
        op is not None
        and op.pure
        and op.has(Trait.ELEMENTWISE, Trait.SOURCE)
        and not op.has(Trait.COSTLY)
        and all(isinstance(value.type, ScalarType) for value in (*op.operands, *op.results))
    )
