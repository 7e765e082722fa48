"""Load groups: tensor loads that fill a stage together, with the ring of mbarriers they share.

Adjacent loads of a block into as many buffers each, with no use of their results and no wait for other
grids in between, are a group: they share a stage, its `full` and its `empty`. Groups of loops that come one after the
other share a ring if their loads are of the same shapes: attention's unmasked loop and the masked one
that follows are then one pipeline, which does not drain between them, and the buffers are there once. So do
groups of which a branch runs one at most, and groups outside of loops of which the one has been read before the other
is loaded.
Whoever uses a ring keeps its position; those of all rings together are a *state*, two values for each.

Invariant: the buffers of a group have as many stages as its ring of mbarriers; of two groups that share
a ring, in each iteration of the loop around both, all of one comes before all of the other, or only one comes at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.carried_state import State
from aotc.ir.core import Block, Op, Value, build
from aotc.ir.dialects import arith, gpu, grid, scf, thread_copy, tma, wgmma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.tiles import is_tile
from aotc.ir.types import I32
from aotc.ir.walks import reached
from aotc.schedule.analysis.global_order import stands_before
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing, RingPosition
from aotc.schedule.warp_roles.read_ends import done_at

_LOCAL = (Trait.ELEMENTWISE, Trait.VIEW, Trait.SHAPE_ONLY, Trait.SOURCE, Trait.BROADCAST)
_MIN_OWN_STAGES = 2  # of a consumer group, so that one is filled while another one is read


@dataclass(eq=False)
class LoadGroup:
    """Tensor loads that share the stages of `ring`, whose number is `index`.

    `readers` are the consumers' ops that read what these load, which other groups may replace there.
    """

    index: int
    loads: list[tma.SyncLoad]
    ring: MbarrierRing
    readers: list[Op]

    @property
    def block(self) -> Block:
        """The block of all its loads."""
        block = self.loads[0].block
        assert block is not None
        return block

    @property
    def indices(self) -> tuple[int, int]:
        """The indices of its position's values in a state."""
        return 2 * self.index, 2 * self.index + 1

    def position(self, state: State, first: Value | None = None) -> RingPosition:
        """Return the group's position in a state; `first` is as for `RingPosition`."""
        index, parity = self.indices
        return RingPosition(state[index], state[parity], first)

    def advanced(self, state: State, builder: Builder) -> State:
        """Return the state after the group has advanced to its next stage."""
        after, position = list(state), self.ring.next(self.position(state), builder)
        for index, value in zip(self.indices, (position.index, position.parity), strict=True):
            after[index] = value
        return after


def initial_state(groups: Sequence[LoadGroup]) -> State:
    """Return the state at the start of the kernel."""
    return [group.ring.start for group in ring_users(groups) for _ in group.indices]


def ring_users(groups: Sequence[LoadGroup]) -> list[LoadGroup]:
    """Return the first group of each ring, in the order of the rings."""
    return [group for number, group in enumerate(groups) if _is_first(groups, number)]


def _is_first(groups: Sequence[LoadGroup], number: int) -> bool:
    return all(group.index != groups[number].index for group in groups[:number])


def adjacent_loads(block: Block) -> Iterator[list[tma.SyncLoad]]:
    """Yield the loads of each group in a block and all nested in it.

    Where wgmma multiplies, all that an iteration loads is for its dots: what threads only read to
    their registers, and convert, may wait for the next load, too.
    """
    run: list[tma.SyncLoad] = []
    is_read = False
    in_flight = any(isinstance(op, wgmma.Wgmma) for op in block)
    for op in block:
        nested = [nested_group for inner in op.blocks for nested_group in adjacent_loads(inner)]
        parts = nested or isinstance(op, grid.GridWait) or (run and _is_of_other_ring(op, run[0]))
        reads = any(_reads(op, load) for load in run)
        is_read |= reads
        if parts or (reads and not in_flight) or (is_read and not _is_brief(op)):
            if run:
                yield run
            run, is_read = [], False
        yield from nested
        if isinstance(op, tma.SyncLoad):
            run.append(op)
    if run:
        yield run


def _is_of_other_ring(op: Op, load: tma.SyncLoad) -> bool:
    if not isinstance(op, tma.SyncLoad):
        return False
    return buffers_of(op).num_stages != buffers_of(load).num_stages


def _reads(op: Op, load: tma.SyncLoad) -> bool:
    return any(reader is op or is_inside(reader, op) for reader in readers_of(load.buffer))


def _is_brief(op: Op) -> bool:
    """Return whether an op brings a tile to registers, or is done in them one by one."""
    is_local = op.pure and not op.blocks and not op.has(Trait.DOT)
    is_local &= op.has(*_LOCAL) or not any(map(is_tile, op.results))
    return is_local or isinstance(op, gpu.SharedAlloc | gpu.SharedLoad | tma.SyncLoad)


def readers_of(buffer: Value) -> Iterator[Op]:
    """Yield the consumers' ops that read a buffer."""
    writers = tma.SyncLoad | tma.TmaLoad | thread_copy.ThreadLoad
    for user in reached(
        buffer.users, lambda op: op.out.users if isinstance(op, gpu.SharedTrans) else ()
    ):
        if not isinstance(user, gpu.SharedTrans | writers):
            yield user


def buffers_of(load: tma.SyncLoad) -> gpu.SharedAlloc:
    """Return the allocation of a load's buffer, with all its stages."""
    op = load.buffer.op
    if isinstance(op, gpu.SharedStage):
        op = op.buffer.op
    assert isinstance(op, gpu.SharedAlloc)
    return op


def make_group(
    before: Sequence[LoadGroup],
    loads: list[tma.SyncLoad],
    builder: Builder,
    num_warps: int,
    num_owners: int = 1,
    producer_threads: int = 0,
) -> LoadGroup:
    """Return a group, with a ring of one of the groups `before` it or with its own.

    The buffers of a ring move to where both roles see them. Each of `num_owners` consumer groups of
    `num_warps` warps gets stages of its own. Loads by threads have each of `producer_threads` arrive.
    """
    num_stages = buffers_of(loads[0]).num_stages
    if num_owners > 1:
        num_stages = max(num_stages // num_owners, min(num_stages, _MIN_OWN_STAGES))
    readers = [reader for load in loads for reader in readers_of(load.buffer)]
    shared = _ring_to_share(before, loads, num_stages, num_owners)
    if shared is not None:
        for load, other in zip(loads, shared.loads, strict=True):
            buffers_of(load).replace_with([buffers_of(other).out])
        return LoadGroup(shared.index, loads, shared.ring, readers)
    for load in loads:
        alloc = buffers_of(load)
        if num_owners > 1:
            _replace_buffers(alloc, num_stages * num_owners, builder)
        else:
            alloc.remove()
            builder(alloc)
    # CTAs of a cluster that fill a stage together wait until all have read it.
    num_ctas = max(load.num_parts for load in loads)
    by_threads = sum(isinstance(load, thread_copy.SyncThreadLoad) for load in loads)
    ring = MbarrierRing(
        builder,
        num_stages,
        arrivals=by_threads * producer_threads + (by_threads < len(loads)),
        num_warps=num_warps,
        num_ctas=num_ctas,
        num_owners=num_owners,
    )
    return LoadGroup(len(ring_users(before)), loads, ring, readers)


def _ring_to_share(
    groups: Sequence[LoadGroup], loads: Sequence[tma.SyncLoad], num_stages: int, num_owners: int
) -> LoadGroup | None:
    """Return a group that never runs together with `loads`, with the same kinds of buffers."""
    used_indices = {
        group.index
        for group in groups
        if not (_excludes(group.loads[0], loads[0]) or _comes_before(group, loads[0]))
    }
    kinds = [_kind_of(load) for load in loads]
    for group in groups:
        ring = group.ring
        if group.index in used_indices or (ring.num_stages, ring.num_owners) != (
            num_stages,
            num_owners,
        ):
            continue
        if [_kind_of(load) for load in group.loads] == kinds:
            return group
    return None


def _excludes(load: tma.SyncLoad, other: tma.SyncLoad) -> bool:
    """Return whether two loads are in different regions of one branch."""
    regions = {block.parent: block for block in _blocks_around(load)}
    for block in _blocks_around(other):
        if block.parent in regions:
            return isinstance(block.parent, scf.If) and regions[block.parent] is not block
    return False


def _blocks_around(op: Op) -> Iterator[Block]:
    """Yield the blocks that contain an op, from the innermost on."""
    inner: Op | None = op
    while inner is not None and inner.block is not None:
        yield inner.block
        inner = inner.parent_op


def _comes_before(group: LoadGroup, load: tma.SyncLoad) -> bool:
    """Return whether all of a group comes before a load, in each iteration of the loop around both.

    Of loops, neither is run by the other. What loops do not load in stages has been read by then.
    """
    loop, other = _innermost_loop(load), _innermost_loop(group.loads[0])
    if loop is not None and other is not None:
        return other is not loop and _loop_around(other) is _loop_around(loop)
    return loop is other and group.block is load.block and _is_read_before(group, load)


def _is_read_before(group: LoadGroup, load: tma.SyncLoad) -> bool:
    """Return whether all that a group loads has been read where a later load of its block stands."""
    for reader in group.readers:
        if not any(op.block is group.block for op in (reader, *reader.ancestors())):
            return False
        end = done_at(reader, group.block)
        if end is None or end[1] or not stands_before(end[0], load):
            return False
    return True


def _loop_around(op: Op) -> Op | None:
    return next((ancestor for ancestor in op.ancestors() if ancestor.has(Trait.LOOP)), None)


def _innermost_loop(load: tma.SyncLoad) -> Op | None:
    """Return the loop whose own body has a load in stages."""
    loop = load.parent_op
    if loop is None or not loop.has(Trait.LOOP):
        return None
    return loop if isinstance(load.buffer.op, gpu.SharedStage) else None


def _kind_of(load: tma.SyncLoad) -> tuple[object, ...]:
    """Return what two loads have in common that may go to one buffer."""
    alloc = buffers_of(load)
    attributes = alloc.element, alloc.shape, alloc.layout, alloc.alignment_bytes, alloc.unused_bytes
    return type(load), *attributes, load.num_parts


def _replace_buffers(alloc: gpu.SharedAlloc, num_stages: int, builder: Builder) -> None:
    """Replace an allocation by one with as many stages as are given."""
    attributes = {**alloc.attributes, "num_stages": num_stages}
    ring = builder(build(gpu.SharedAlloc, (), attributes, (), alloc.loc)).out
    if alloc.num_stages == 1:
        before = Builder.before_op(alloc)
        # The stage index comes from the wait for the load.
        ring = before(gpu.SharedStage(ring, before(arith.Constant(0, I32)).out)).out
    alloc.replace_with([ring])
