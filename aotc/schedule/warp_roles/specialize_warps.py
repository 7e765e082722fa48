"""Split a kernel into consumers, which compute, and a producer, which issues their tensor loads.

Adjacent loads fill one stage of their rings and share its two mbarriers (`load_groups`). The
producer runs a copy of the code that decides about loads:

    producer: wait for empty[stage]; expect the group's bytes at full[stage]; issue its loads
    consumers: wait for full[stage]; read; each warp arrives at empty[stage]

Both keep stage index and phase through all loops and branches, so nothing drains between two
tiles of work. What the consumers do is in `consumer_stages`.

Several consumer groups share the rings of their dots' operands in the order of tiles: a group
advances its state over the tiles of the others. Of any other ring each has stages of its own, and
the producer keeps the state of each.

Invariant: full and empty alternate, beginning with empty; a wait for phase n of either
comes before anything that the other side does in phase n + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.carried_state import State
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import gpu, grid, roles, scf, thread_copy, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.tiles import is_tile
from aotc.schedule.analysis.producer_slice import Slice, SliceCopy, find_slice
from aotc.schedule.analysis.register_budget import (
    CONSUMER_RESERVE,
    FRAGMENT_RESERVE,
    register_split,
    registers_of,
    registers_of_thread,
)
from aotc.schedule.cleanup.drop_carried import drop_unused_carried, needed_values
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARP_LANES
from aotc.schedule.shared_memory.mbarrier_ring import Load
from aotc.schedule.warp_roles.consumer_groups import distribute_tiles, loop_of_tiles, ordered_loop
from aotc.schedule.warp_roles.consumer_stages import ConsumerStages
from aotc.schedule.warp_roles.load_groups import (
    LoadGroup,
    adjacent_loads,
    buffers_of,
    initial_state,
    make_group,
    ring_users,
)
from aotc.schedule.warp_roles.map_rings import ConsumerMaps, MapRings
from aotc.target import Target


def specialize_warps(kernel: Kernel, schedule: Schedule) -> None:
    """Split the roles of a kernel that `choose_warp_roles` gave producer warps."""
    if not kernel.producer_warps:
        return
    loads_slice = find_slice(kernel)
    if loads_slice.obstacle:
        raise IRError(
            f"tensor loads can no longer be moved to a producer warp: {loads_slice.obstacle}",
            kernel.loc,
        )
    with at(kernel.loc):
        consumers = Block()
        for op in list(kernel.body):
            if not op.terminator:
                op.remove()
                consumers.insert(op)
        builder = Builder.before_op(kernel.body.terminator)
        producer = _divide(kernel, consumers, loads_slice, builder)
        for block in (consumers, producer):
            Builder(block)(scf.Yield([]))
        registers = _registers(kernel, consumers, producer, schedule.target)
        builder(roles.Specialize(consumers, producer, *registers))
        if _is_shared(kernel):
            # Until then other CTAs may copy here, or arrive.
            builder(grid.ClusterBarrier())


def _is_shared(kernel: Kernel) -> bool:
    """Return whether CTAs of a cluster copy to each other; one that names its CTAs loads for itself."""
    return kernel.num_ctas > 1 and not kernel.runs_by_cta


def _divide(kernel: Kernel, consumers: Block, loads_slice: Slice, builder: Builder) -> Block:
    """Take the tensor loads out of the consumers; return a producer that issues them.

    What both need is placed ahead of them.
    """
    count = kernel.num_consumer_groups
    loop = loop_of_tiles(consumers) if count > 1 else None
    ordered = ordered_loop(loop.body) if loop else None
    groups: list[LoadGroup] = []
    for loads in list(adjacent_loads(consumers)):
        is_shared = count == 1 or (ordered is not None and is_inside(loads[0], ordered))
        num_owners = 1 if is_shared else count
        sizes = kernel.num_warps, num_owners, WARP_LANES * kernel.producer_warps
        groups.append(make_group(groups, loads, builder, *sizes))
    rings = MapRings(consumers, kernel, builder)
    issuer = _Producer(groups, loop, count, rings)
    producer = Block()
    maps = _move_templates(loads_slice, rings, builder)
    maker = rings.make_ahead(consumers)
    if maker is not None:
        Builder(producer)(maker)
    warps = kernel.producer_warps if kernel.producer_warps < kernel.num_warps else 0
    copy = SliceCopy(loads_slice, issuer.issue, issuer.hand_over, issuer.make_map, warps)
    copy.copy_block(consumers, Builder(producer), issuer.start())
    tiles = distribute_tiles(consumers, kernel, builder) if count > 1 else None
    builder(grid.ClusterBarrier() if _is_shared(kernel) else gpu.Barrier())
    ConsumerStages(groups, loads_slice, tiles).run(consumers)
    ConsumerMaps(rings).run(consumers)
    for make_map in maps:
        make_map.erase()
    _drop_unused(consumers)
    return producer


def _move_templates(
    loads_slice: Slice, rings: MapRings, builder: Builder
) -> list[tma.MakeTensorMap]:
    """Move what maps are built in to where the producer sees it; return the ops that it clones.

    Those are the maps of loads; maps of stores are made by consumers, unless they are made ahead.
    """
    maps = [
        op
        for op in loads_slice.ops
        if isinstance(op, tma.MakeTensorMap) and rings.index_of(op) is None
    ]
    for maker in [*maps, *rings.makers]:
        template = maker.template.op
        assert isinstance(template, gpu.SharedAlloc)
        template.remove()
        builder(template)
    return maps


def _drop_unused(consumers: Block) -> None:
    """Drop what loops load and carry for the producer alone, such as coordinates.

    What a loop carries besides for nothing are counters, which cost nothing: ptxas drops them.
    """
    for loop in reversed([op for op in consumers.walk() if isinstance(op, scf.For)]):
        live = needed_values(loop)
        loads = [op.out for op in loop.body if isinstance(op, gpu.Load)]
        tiles = [value for value in loop.carried if is_tile(value)]
        if any(value not in live for value in (*loads, *tiles)):
            drop_unused_carried(loop)


# ---- registers --------------------------------------------------------------------------------


def _registers(
    kernel: Kernel, consumers: Block, producer: Block, target: Target
) -> tuple[int, ...]:
    """Return how many registers a thread of each role gets, or nothing to leave them as they are.

    Where accumulators leave few for all else, consumers take registers that the producer frees.
    """
    dots = [op for op in consumers.walk() if op.has(Trait.DOT)]
    # A dot that accumulates onto another one has no accumulator of its own.
    live = sum(registers_of(op.results[0]) for op in dots if not _continues_dot(op))
    by_threads = any(isinstance(op, gpu.Dot) for op in dots)
    working = CONSUMER_RESERVE + (FRAGMENT_RESERVE if by_threads else 0)
    fits = live + working <= registers_of_thread(kernel, target)
    num_copies = roles.num_thread_copies(producer)
    return () if fits else register_split(kernel, target, num_copies=num_copies)


def _continues_dot(op: Op) -> bool:
    acc: Value = getattr(op, "acc")  # noqa: B009 - every dot has one
    return acc.op is not None and acc.op.has(Trait.DOT)


# ---- the producer -----------------------------------------------------------------------------


class _Producer:
    """Emit the producer's ops in place of loads: all of a group's at its last one.

    Its state is the position of each ring. With several consumer groups, iterations of the
    `loop` over tiles are for one after the other; after the state for the current one come those
    for the next ones, of rings with owners, and at the end the index of the current one. A kernel with
    maps made ahead has one group; their positions are at the end.
    """

    def __init__(
        self, groups: Sequence[LoadGroup], loop: scf.For | None, count: int, maps: MapRings
    ) -> None:
        self.groups = groups
        self.maps = maps
        self.group_of = {load: group for group in groups for load in group.loads}
        self.loop = loop
        self.count = count
        self._has_copies = any(
            isinstance(load, thread_copy.SyncThreadLoad) for load in self.group_of
        )
        self._rings = ring_users(groups)
        self._owned = [
            index for group in self._rings if group.ring.num_owners > 1 for index in group.indices
        ]

    def start(self) -> State:
        """Return the state at the start of the kernel."""
        initial = initial_state(self.groups)
        other_owners = (self.count - 1) * [initial[index] for index in self._owned]
        return [
            *initial,
            *other_owners,
            *(initial[:1] if self.loop is not None else ()),
            *self.maps.start,
        ]

    def issue(
        self, load: tma.SyncLoad, builder: Builder, mapping: dict[Value, Value], state: State
    ) -> State:
        """Wait for a free stage and issue a group's loads to it, if `load` is its last."""
        group = self.group_of[load]
        if load is not group.loads[-1]:
            return state
        position = group.position(state, group.ring.first_stage(state[-1], builder))
        loads: list[Load] = []
        for group_load in group.loads:
            inputs = [mapping.get(value, value) for value in group_load.inputs]
            buffer = group.ring.stage(buffers_of(group_load).out, position, builder)
            loads.append((group_load, buffer, inputs))
        group.ring.fill(loads, position, builder, beside_copies=self._has_copies)
        return group.advanced(state, builder)

    def make_map(
        self, maker: tma.MakeTensorMap, builder: Builder, mapping: dict[Value, Value], state: State
    ) -> State:
        """Acquire a map that was made ahead, or make it."""
        if self.maps.index_of(maker) is None:
            self._await_copies(maker, builder, state)
            builder(maker.clone(mapping))
            return state
        first = len(state) - len(self.maps.start)
        slot = mapping.get(maker.slot, maker.slot)
        mapping[maker.out], positions = self.maps.acquire(maker, slot, builder, state[first:])
        return [*state[:first], *positions]

    def _await_copies(self, maker: tma.MakeTensorMap, builder: Builder, state: State) -> None:
        """Wait for the copies that read a map before it is made anew, in a loop."""
        if not any(op.has(Trait.LOOP) for op in maker.ancestors()):
            return
        rings = {
            group.index: group
            for group in self.groups
            if any(_is_of(load, maker) for load in group.loads)
        }
        for group in rings.values():
            group.ring.await_issued(group.position(state), builder)

    def hand_over(self, loop: scf.For, builder: Builder, state: State) -> State:
        """Make the next iteration of the loop over tiles that of the next consumer group."""
        if self.loop is None or loop is not self.loop:
            return state
        now, size = 2 * len(self._rings), len(self._owned)
        current, other_owners = (
            state[:now],
            [*state[now:-1], *(state[index] for index in self._owned)],
        )
        for index, value in zip(self._owned, other_owners[:size], strict=True):
            current[index] = value
        return [*current, *other_owners[size:], builder(gpu.NextStage(state[-1], self.count)).out]


def _is_of(load: tma.SyncLoad, maker: tma.MakeTensorMap) -> bool:
    return isinstance(load, tma.SyncTmaLoad) and load.tensor is maker.out
