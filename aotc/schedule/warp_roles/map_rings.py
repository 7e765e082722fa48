"""Tensor maps made ahead: a warp of the producer makes those of loops while the others use the last.

Making a map takes microseconds: it is edited, published to global memory, and acquired by whoever issues
copies with it. Where a loop makes maps anew, as one over groups of a product does, a warp beside the one
that issues loads runs the loop ahead, as far as each map has slots:

    maker:     wait for empty[slot]; make the map there; arrive at full[slot]
    producer:  wait for full[slot]; acquire; issue loads
    consumers: wait for full[slot]; acquire; issue stores; arrive at empty[slot]

Consumers release the maps of loads, too: they have waited for all that was loaded.

Invariant: all roles come to the op that makes a map equally often, and in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, mbarrier, roles, scf, tma
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.producer_slice import SliceCopy, find_map_slice
from aotc.schedule.layout.map_slots import SLOTS_IN_LOOPS, slot_at
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing, RingPosition

Mapping = dict[Value, Value]


class MapRings:
    """The rings of slots of the maps that loops of a kernel make; none if no warp can make them ahead.

    A state has two values for each ring, the position of one who uses it.
    """

    def __init__(self, consumers: Block, kernel: Kernel, builder: Builder) -> None:
        self._found = find_map_slice(consumers)
        makers = [op for op in consumers.walk() if isinstance(op, tma.MakeTensorMap)]
        self.makers = [op for op in makers if op in self._found.ops]
        self._rings = [
            MbarrierRing(builder, SLOTS_IN_LOOPS, num_warps=kernel.num_warps) for _ in self.makers
        ]

    @property
    def start(self) -> State:
        """Return the state at the start of the kernel."""
        return [value for ring in self._rings for value in (ring.start, ring.start)]

    def index_of(self, op: Op) -> int | None:
        """Return the number of the ring of an op, or None if no warp makes its map ahead."""
        return next((number for number, maker in enumerate(self.makers) if maker is op), None)

    def make_ahead(self, consumers: Block) -> roles.Beside | None:
        """Return the maker's role, or None if there is nothing for it."""
        if not self.makers:
            return None
        body = Block()
        copy = SliceCopy(self._found, _no_load, make=self._make)
        copy.copy_block(consumers, Builder(body), self.start)
        Builder(body)(scf.Yield([]))
        return roles.Beside(body)

    def _make(
        self, op: tma.MakeTensorMap, builder: Builder, mapping: Mapping, state: State
    ) -> State:
        number = self.index_of(op)
        assert number is not None
        ring, position = self._rings[number], _position(state, number)
        with at(op.loc):
            # Stores may wait for the mainloop of the next block: a map is free when that is over.
            is_stored = any(isinstance(user, tma.StagedTmaStore) for user in op.out.users)
            free = ring.next(position, builder) if is_stored else position
            self.await_empty(ring, free, builder)
            slot = slot_at(mapping.get(op.slot, op.slot), position.index, builder)
            mapping = {**mapping, op.slot: slot}
            builder(op.clone(mapping))
            builder(mbarrier.MbarrierArrive(ring.stage(ring.full, position, builder), 1))
        return _advanced(ring, state, number, builder)

    @staticmethod
    def await_empty(ring: MbarrierRing, position: RingPosition, builder: Builder) -> None:
        """Wait until all copies with the map that was at a slot before have completed."""
        ring.await_empty(position, builder)

    def acquire(
        self, op: tma.MakeTensorMap, slot: Value, builder: Builder, state: State
    ) -> tuple[Value, State]:
        """Wait for a map and acquire it; return it and the state after."""
        number = self.index_of(op)
        assert number is not None
        ring, position = self._rings[number], _position(state, number)
        with at(op.loc):
            ring.await_full(position, builder)
            slot_map = builder(tma.MadeTensorMap(slot_at(slot, position.index, builder), op.type))
        slot_map.out.hint = op.out.hint
        return slot_map.out, _advanced(ring, state, number, builder)

    def release(self, number: int, state: State, builder: Builder) -> None:
        """Let the consumers release what is at the position of a ring."""
        self._rings[number].release(_position(state, number), builder)

    def advance(self, number: int, state: State, builder: Builder) -> State:
        """Return the state after a role has passed over a map."""
        return _advanced(self._rings[number], state, number, builder)


class ConsumerMaps(CarriedState):
    """Replace the ops that make maps by waits for them, and release each at the end of its block."""

    def __init__(self, rings: MapRings) -> None:
        self._rings = rings

    def run(self, consumers: Block) -> None:
        """Rewrite the consumers' whole block."""
        if self._rings.makers:
            self.visit(consumers, self._rings.start)

    def updated_by(self, op: Op, state: State) -> State | None:
        number = self._rings.index_of(op)
        if number is None:
            return None
        assert isinstance(op, tma.MakeTensorMap)
        block = op.block
        assert block is not None
        before = state
        builder = Builder.before_op(op)
        if op.out.users:
            drain = _drain_before(op)
            if drain is not None:
                drain.erase()  # whoever makes the map waits for that
            slot_map, state = self._rings.acquire(op, op.slot, builder, state)
            op.replace_with([slot_map])
        else:
            with at(op.loc):
                state = self._rings.advance(number, state, builder)
            op.erase()
            slot_map = None
        end = Builder.before_op(block.terminator)
        if slot_map is not None:
            end(tma.TmaStoreWait())  # stores read the map
        self._rings.release(number, before, end)
        return state

    def indices_in(self, op: Op) -> Sequence[int]:
        nested = dict.fromkeys(inner for block in op.blocks for inner in block.walk())
        numbers = [n for n, inner in enumerate(self._rings.makers) if inner in nested]
        return [index for number in numbers for index in (2 * number, 2 * number + 1)]

    def hint(self, index: int) -> str:
        return "map_parity" if index % 2 else "map"


def _drain_before(op: tma.MakeTensorMap) -> tma.TmaStoreWait | None:
    """Return the wait for stores through what was at the slot of a map before."""
    before = op.prev
    while before is not None and (before.pure or isinstance(before, gpu.SharedAlloc)):
        before = before.prev
    return before if isinstance(before, tma.TmaStoreWait) else None


def _no_load(load: tma.SyncLoad, builder: Builder, mapping: Mapping, state: State) -> State:
    """Issue nothing: the maker has no loads."""
    del load, builder, mapping
    return state


def _position(state: State, number: int) -> RingPosition:
    return RingPosition(state[2 * number], state[2 * number + 1])


def _advanced(ring: MbarrierRing, state: State, number: int, builder: Builder) -> State:
    after, position = list(state), ring.next(_position(state, number), builder)
    after[2 * number : 2 * number + 2] = position.index, position.parity
    return after
