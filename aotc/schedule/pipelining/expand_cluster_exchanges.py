"""Expand the exchanges of tiles between the CTAs of a cluster: buffers, mbarriers, phases, ranks.

All CTAs do the same, each in its own shared memory, so one layout says where a thread's elements
are in the buffer of another CTA: where the same thread of that CTA has them. The buffer is in the order
of registers, lanes, warps, so vectors are as wide as they can be and no two lanes meet in a bank,
whatever the tile's layout is.

A tile that is given on (`cluster.permute`) has a ring of two stages. Threads wait until the other CTA
has emptied the stage, and store there asynchronously; they wait for their own stage to be full, read
it, and tell the CTA that filled it. Each warp does so for its own part, at mbarriers of its own, so warpgroups
whose dots take turns need not wait for each other. Tiles of one form that go the same way share a ring. Waits for what
comes move down to the first use of it, past what is sent to other CTAs, so exchanges that need not wait
for each other are under way together.

Of a tile whose parts go to all CTAs (`cluster.transpose`) the buffer has one part after the other, in the
order in which threads hold them. Threads store asynchronously to every CTA, at one mbarrier each, and wait for
the parts of all: then no other CTA accesses this one. Outside of loops the buffer is used once, and nothing is
waited for before. In a loop a barrier of the cluster comes first: all have read the parts before.

A tile that others read (`cluster.read`) is stored in one of two buffers in turn; a barrier of
the cluster, and they read it. The barrier of the next read says that they have. Reads that need not
wait for each other share a barrier.

What is sent first waits until all CTAs have begun. A barrier of the cluster at the end keeps each
until no other accesses its shared memory, where that may be.

Invariant: afterwards there is no `cluster.permute`, `cluster.transpose` and `cluster.read` left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aotc.ir import gf2
from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, cluster, gpu, grid, mbarrier, roles, scf
from aotc.ir.dialects.tile import tile_type
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.order import enclosing_in
from aotc.ir.rewrite import Builder, is_pure
from aotc.ir.types import I32, U64, PointerType, ScalarType, TileType
from aotc.schedule.analysis.alias import allocation_of
from aotc.schedule.context import Schedule
from aotc.schedule.layout.tensor_copies import buffer_access
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing, RingPosition

_NUM_STAGES = 2
_VECTOR_BYTES = 16
_RANK_BITS = 4

_Exchange = cluster.ClusterPermute | cluster.ClusterTranspose | cluster.ClusterRead


def expand_cluster_exchanges(kernel: Kernel, schedule: Schedule) -> None:
    """Replace every exchange by what each CTA does for it."""
    del schedule
    exchanges = [op for op in kernel.walk() if isinstance(op, _Exchange)]
    if not exchanges:
        return
    start = Builder(kernel.body, kernel.body.first)
    sends = any(not isinstance(op, cluster.ClusterRead) for op in exchanges)
    with at(kernel.loc):
        rank = start(grid.CtaRank()).out
        rings = _rings(exchanges, kernel, rank, start)
        if sends:
            start(grid.ClusterArrive())
    if sends:
        with at(exchanges[0].loc):
            _first_of(exchanges, kernel)(grid.ClusterWait())
    expansion = _Expansion(rings)
    expansion.visit(kernel.body, expansion.start)
    for received in reversed(expansion.receipts):
        _sink(received, expansion.sends)
    for received in expansion.receipts:
        _share_barrier(received[0])
    if all(isinstance(op, cluster.ClusterTranspose) for op in exchanges):
        return
    with at(kernel.loc):
        Builder.before_op(kernel.body.terminator)(grid.ClusterBarrier())


def _first_of(exchanges: Sequence[_Exchange], kernel: Kernel) -> Builder:
    """Return the place ahead of the first exchange: before the roles, or where consumers alone come to it.

    A producer need not wait for other CTAs to begin. But where it has to wait for the cluster at the end, it has to
    here, too.
    """
    first, block = exchanges[0], kernel.body
    roles_of = [op for op in first.ancestors() if isinstance(op, roles.Specialize)]
    if roles_of and all(isinstance(op, cluster.ClusterTranspose) for op in exchanges):
        block = roles_of[0].consumers
    return Builder.before_op(enclosing_in(first, block))


def _happens_once(op: Op) -> bool:
    """Return whether no loop is around an op."""
    return not any(outer.has(Trait.LOOP) for outer in op.ancestors())


@dataclass(frozen=True)
class _Buffer:
    """The form of a tile on its way: its element, layouts in threads and in memory, and vectors."""

    element: ScalarType
    layout: LinearLayout
    memory: LinearLayout
    vector: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def has_replicas(self) -> bool:
        """Whether several threads hold the same elements."""
        free = self.layout.free_variable_masks()
        return any(free.get(name) for name in ("lane", "warp"))


def _buffer_for(kind: TileType) -> _Buffer:
    assert kind.layout is not None
    buffer = _buffer_of(gpu.memory_element(kind), kind.layout)
    if buffer.vector * buffer.element.size_bytes < cluster.MIN_SENT_BYTES:
        buffer = _buffer_of(grid.exchanged_type(buffer.element), kind.layout)
    return buffer


def _buffer_of(element: ScalarType, layout: LinearLayout) -> _Buffer:
    registers = layout.columns("register")
    first = log2_exact(_VECTOR_BYTES // element.size_bytes)
    order = (
        *registers[:first],
        *layout.columns("lane"),
        *layout.columns("warp"),
        *registers[first:],
    )
    span = gf2.Span(())
    columns = [column for column in order if span.add(column)]
    memory = LinearLayout.from_columns([("offset", columns)], layout.outs)
    vector, _ = buffer_access(layout, memory, element.bits, ("",))
    return _Buffer(element, layout, memory, vector)


def _buffer_of_parts(kind: TileType) -> _Buffer:
    """Return the form of a tile whose first axis is that of the CTAs, which are the highest offsets."""
    assert kind.layout is not None
    layout, element = kind.layout, gpu.memory_element(kind)
    buffer = _parts_in_order(element, layout)
    if buffer.vector * element.size_bytes < cluster.MIN_SENT_BYTES:
        buffer = _parts_in_order(grid.exchanged_type(element), layout)
    return buffer


def _parts_in_order(element: ScalarType, layout: LinearLayout) -> _Buffer:
    part_elems = math.prod(layout.shape[1:])
    registers = [column for column in layout.columns("register") if column < part_elems]
    first = log2_exact(_VECTOR_BYTES // element.size_bytes)
    order = (
        *registers[:first],
        *layout.columns("lane"),
        *layout.columns("warp"),
        *registers[first:],
    )
    inside, span = [column % part_elems for column in order], gf2.Span(())
    columns = [column for column in inside if span.add(column)]
    columns += [part_elems << bit for bit in range(log2_exact(layout.shape[0]))]
    memory = LinearLayout.from_columns([("offset", columns)], layout.outs)
    vector, _ = buffer_access(layout, memory, element.bits, ("",))
    return _Buffer(element, layout, memory, min(vector, part_elems))


def _rings(
    exchanges: Sequence[_Exchange], kernel: Kernel, rank: Value, start: Builder
) -> dict[_Exchange, _Ring]:
    """Return the ring of each exchange; tiles that go the same way in the same form share one.

    Tiles that others read share none: there the barrier of one exchange frees the buffer of another.
    """
    rings: dict[_Exchange, _Ring] = {}
    shared: dict[tuple[object, ...], _Ring] = {}
    for op in exchanges:
        kind = tile_type(op, op.value)
        parts = isinstance(op, cluster.ClusterTranspose)
        form = _buffer_of_parts(kind) if parts else _buffer_for(kind)
        if isinstance(op, cluster.ClusterPermute):
            key = form, op.to
            if key not in shared:
                shared[key] = _Ring(op, form, kernel, rank, start)
            rings[op] = shared[key]
        else:
            rings[op] = _Ring(op, form, kernel, rank, start)
    return rings


class _Ring:
    """What exchanges keep throughout the kernel: buffers, mbarriers, the ranks of their partners."""

    def __init__(
        self, op: _Exchange, form: _Buffer, kernel: Kernel, rank: Value, start: Builder
    ) -> None:
        self.form, self.rank = form, rank
        num_stages = 1 if isinstance(op, cluster.ClusterTranspose) else _NUM_STAGES
        self.buffers = start(
            gpu.SharedAlloc(
                form.element, form.shape, form.memory, _VECTOR_BYTES, num_stages=num_stages
            )
        ).out
        self.ring: MbarrierRing | None = None
        zero = start(arith.Constant(0, I32)).out
        self.initial = [zero]
        if isinstance(op, cluster.ClusterTranspose):
            self.ring = MbarrierRing(start)
        if isinstance(op, cluster.ClusterPermute):
            # A warp gets what the same warp of the other CTA sends, and waits for no other one, unless
            # threads hold replicas, which one of them sends.
            warps = kernel.num_warps
            sizes = (warps, 1) if form.has_replicas else (1, warps)
            self.ring = MbarrierRing(start, _NUM_STAGES, num_warps=sizes[0], num_owners=sizes[1])
            self.warp_stride = 0 if form.has_replicas else _NUM_STAGES
            self.initial = [zero, self.ring.start]
            sources = [
                op.to.index(peer) if peer in op.to else cluster.NOBODY for peer in range(len(op.to))
            ]
            self.target, self.source = (_chosen(ranks, rank, start) for ranks in (op.to, sources))
            self.gives = self.takes = None
            if cluster.NOBODY in op.to:
                self.gives, self.takes = (_is_any(ranks, rank, start) for ranks in (op.to, sources))


def _chosen(ranks: Sequence[int], rank: Value, builder: Builder) -> Value:
    """Return the element of a table of ranks that belongs to this CTA."""
    table = sum(max(0, peer) << _RANK_BITS * number for number, peer in enumerate(ranks))
    bits = builder(arith.Mul(rank, builder(arith.Constant(_RANK_BITS, I32)).out)).out
    wide = builder(arith.Cast(bits, U64)).out
    shifted = builder(arith.Shr(builder(arith.Constant(table, U64)).out, wide)).out
    mask = builder(arith.Constant((1 << _RANK_BITS) - 1, I32)).out
    return builder(arith.And(builder(arith.Cast(shifted, I32)).out, mask)).out


def _is_any(ranks: Sequence[int], rank: Value, builder: Builder) -> Value:
    """Return whether the element of a table of ranks that belongs to this CTA is a CTA."""
    chosen = _chosen([int(peer != cluster.NOBODY) for peer in ranks], rank, builder)
    return builder(arith.Compare(chosen, builder(arith.Constant(0, I32)).out, "ne")).out


class _Expansion(CarriedState):
    """Walk the kernel with the stage index, and for what is sent the parity, of each ring."""

    def __init__(self, rings: dict[_Exchange, _Ring]) -> None:
        self.rings = rings
        self.receipts: list[list[Op]] = []
        """Of each tile that comes the wait, the read, and the arrival after it, if there is one."""
        self.sends: dict[Op, Value] = {}
        """Ops that send tiles or store them for others, and what they wait for, with their rings."""
        self.start: State = []
        self._first: dict[Value, int] = {}
        for ring in rings.values():
            if ring.buffers not in self._first:
                self._first[ring.buffers] = len(self.start)
                self.start += ring.initial

    def updated_by(self, op: Op, state: State) -> State | None:
        """Expand an exchange at its stage."""
        if not isinstance(op, _Exchange):
            return None
        ring = self.rings[op]
        first = self._first[ring.buffers]
        builder = Builder.before_op(op)
        with at(op.loc):
            if isinstance(op, cluster.ClusterPermute):
                out, updated = self._permute(op, ring, state[first : first + 2], builder)
            elif isinstance(op, cluster.ClusterTranspose):
                out, updated = self._transpose(op, ring, state[first], builder)
            else:
                out, updated = self._read(op, ring, state[first], builder)
        op.replace_with([out])
        return [*state[:first], *updated, *state[first + len(updated) :]]

    def indices_in(self, op: Op) -> Sequence[int]:
        nested = (inner for block in op.blocks for inner in block.walk())
        rings = (self.rings[inner] for inner in nested if isinstance(inner, _Exchange))
        indices = {
            self._first[ring.buffers] + number: None
            for ring in rings
            for number in range(len(ring.initial))
        }
        return list(indices)

    def hint(self, index: int) -> str:
        del index
        return "stage"

    def through(self, op: Op, state: State) -> State:
        """Thread the state through a loop or branch, or through the consumers, who exchange alone."""
        if not isinstance(op, roles.Specialize):
            return super().through(op, state)
        self.visit(op.consumers, state)
        return state

    def _permute(
        self, op: cluster.ClusterPermute, ring: _Ring, state: State, builder: Builder
    ) -> tuple[Value, State]:
        mbarriers, form = ring.ring, ring.form
        assert mbarriers is not None
        assert mbarriers.empty is not None
        position = RingPosition(*state)
        value = _cast(op.value, form.element, builder)
        buffer, full, empty = (
            mbarriers.stage(ring_buffer, position, builder)
            for ring_buffer in (ring.buffers, mbarriers.full, mbarriers.empty)
        )
        unit = builder(arith.Constant(1, I32)).out
        emptied = builder(arith.Xor(position.parity, unit)).out
        stride = ring.warp_stride
        after = mbarriers.next(position, builder)
        if ring.gives is not None and ring.takes is not None:
            giving, taking, taking_none = Builder(Block()), Builder(Block()), Builder(Block())
            giving(mbarrier.MbarrierWait(empty, emptied, stride))
            if form.has_replicas:
                giving(gpu.Barrier())
            sent = value, buffer, full, ring.target, form.vector, stride
            giving(cluster.SendTile(*sent, takes=False))
            giving(scf.Yield([]))
            taking(cluster.SendTile(*sent, gives=False))
            taking(mbarrier.MbarrierWait(full, position.parity, stride))
            element = _pointer(op.value)
            load = taking(gpu.SharedLoad(buffer, form.layout, form.vector, element=element))
            taking(cluster.RemoteArrive(empty, ring.source, mbarriers.num_warps, stride))
            taking(scf.Yield([load.out]))
            taking_none(scf.Yield([taking_none(arith.Constant(0, load.out.type)).out]))
            giving_none = Builder(Block())
            giving_none(scf.Yield([]))
            builder(scf.If(ring.gives, giving.block, giving_none.block))
            received = builder(scf.If(ring.takes, taking.block, taking_none.block)).outs[0]
            return _cast_back(received, op.value, builder), [after.index, after.parity]
        wait = builder(mbarrier.MbarrierWait(empty, emptied, stride))
        self.sends[wait] = ring.buffers
        if form.has_replicas:
            # A thread that stores nothing may still be here when the stage is emptied again.
            self.sends[builder(gpu.Barrier())] = ring.buffers
        send = builder(cluster.SendTile(value, buffer, full, ring.target, form.vector, stride))
        self.sends[send] = ring.buffers
        wait = builder(mbarrier.MbarrierWait(full, position.parity, stride))
        load = builder(gpu.SharedLoad(buffer, form.layout, form.vector, element=_pointer(op.value)))
        arrival = builder(cluster.RemoteArrive(empty, ring.source, mbarriers.num_warps, stride))
        self.receipts.append([wait, load, arrival])
        out = _cast_back(load.out, op.value, builder)
        return out, [after.index, after.parity]

    def _transpose(
        self, op: cluster.ClusterTranspose, ring: _Ring, parity: Value, builder: Builder
    ) -> tuple[Value, State]:
        mbarriers, form = ring.ring, ring.form
        assert mbarriers is not None
        if not _happens_once(op):
            builder(grid.ClusterBarrier())
        value = _cast(op.value, form.element, builder)
        send = builder(
            cluster.SendParts(value, ring.buffers, mbarriers.full, ring.rank, form.vector)
        )
        self.sends[send] = ring.buffers
        wait = builder(mbarrier.MbarrierWait(mbarriers.full, parity))
        kind = tile_type(op, op.out)
        assert kind.layout is not None
        most, _ = buffer_access(kind.layout, form.memory, form.element.bits, ("",))
        vector = min(most, math.prod(kind.shape[1:]))
        load = builder(
            gpu.SharedLoad(ring.buffers, kind.layout, vector, element=_pointer(op.value))
        )
        self.receipts.append([wait, load])
        following = builder(arith.Xor(parity, builder(arith.Constant(1, I32)).out)).out
        return _cast_back(load.out, op.out, builder), [following]

    def _read(
        self, op: cluster.ClusterRead, ring: _Ring, index: Value, builder: Builder
    ) -> tuple[Value, State]:
        form = ring.form
        buffer = builder(gpu.SharedStage(ring.buffers, index)).out
        value = _cast(op.value, form.element, builder)
        store = builder(gpu.SharedStore(value, buffer, form.vector))
        self.sends[store] = ring.buffers
        barrier = builder(grid.ClusterBarrier())
        load = builder(
            cluster.RemoteLoad(buffer, op.rank, form.layout, form.vector, _pointer(op.value))
        )
        self.receipts.append([barrier, load])
        following = builder(gpu.NextStage(index, _NUM_STAGES)).out
        return _cast_back(load.out, op.value, builder), [following]


def _pointer(value: Value) -> PointerType | None:
    kind = value.type
    assert isinstance(kind, TileType)
    return kind.element if isinstance(kind.element, PointerType) else None


def _cast(value: Value, element: ScalarType, builder: Builder) -> Value:
    """Return a tile as it is sent: narrow elements, of which a thread has too few, are widened."""
    kind = value.type
    assert isinstance(kind, TileType)
    same = gpu.memory_element(kind) == element
    return value if same else builder(arith.Cast(value, element)).out


def _cast_back(loaded: Value, like: Value, builder: Builder) -> Value:
    kind = like.type
    assert isinstance(kind, TileType)
    if loaded.type == kind:
        return loaded
    assert isinstance(kind.element, ScalarType)
    return builder(arith.Cast(loaded, kind.element)).out


def _sink(received: list[Op], sends: dict[Op, Value]) -> None:
    """Move the wait for a tile, and what follows from it, down to the first use of the tile.

    Not past more tiles that go through the same ring than it has other stages: they would wait for
    this one to be read.
    """
    last, ring = received[-1], allocation_of(received[1].operands[0])
    left = _NUM_STAGES - 1
    while last.next is not None and _may_pass(last.next, received[1], sends):
        starts = isinstance(last.next, mbarrier.MbarrierWait) and sends[last.next] is ring
        if starts and left == 0:
            break
        left -= starts
        last = last.next
    for op in received if last is not received[-1] else ():
        op.remove()
        Builder.after_op(last)(op)
        last = op


def _share_barrier(barrier: Op) -> None:
    """Drop a barrier of the cluster ahead of a read if nothing since the one before it needs it."""
    if not isinstance(barrier, grid.ClusterBarrier):
        return
    before = barrier.prev
    while before is not None and not before.blocks:
        if isinstance(before, grid.ClusterBarrier):
            barrier.erase()
            return
        if not is_pure(before) and not isinstance(before, cluster.RemoteLoad):
            return
        before = before.prev


def _may_pass(op: Op, load: Op, sends: dict[Op, Value]) -> bool:
    if op.terminator or any(value.op is load for value in op.operands):
        return False
    return op in sends or (is_pure(op) and not op.blocks)
