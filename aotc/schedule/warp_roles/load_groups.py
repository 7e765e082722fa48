"""Load groups: tensor loads that fill a stage together, with the ring of mbarriers they share.

Adjacent loads of a block, with no use of their results and no wait for other grids in between, are
a group: they share a stage, its `full` and its `empty`. Whoever uses a ring keeps its position;
those of all groups together are a *state*, two values for each group.

Invariant: the buffers of a group have as many stages as its ring of mbarriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.carried_state import State
from aotc.ir.core import Block, Op, Value, build
from aotc.ir.dialects import arith, gpu, grid, tma
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import I32
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing, RingPosition

_MIN_OWN_STAGES = 2  # of a consumer group, so that one is filled while another one is read


@dataclass(eq=False)
class LoadGroup:
    """Tensor loads that share the stages of `ring`; `index` is the group's number."""

    index: int
    loads: list[tma.SyncLoad]
    ring: MbarrierRing

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

    def advanced(self, state: State, place: Builder) -> State:
        """Return the state after the group has advanced to its next stage."""
        after, position = list(state), self.ring.next(self.position(state), place)
        for index, value in zip(self.indices, (position.index, position.parity), strict=True):
            after[index] = value
        return after


def initial_state(groups: Sequence[LoadGroup]) -> State:
    """Return the state at the start of the kernel."""
    return [group.ring.start for group in groups for _ in group.indices]


def adjacent_loads(block: Block) -> Iterator[list[tma.SyncLoad]]:
    """Yield the loads of each group in a block and all nested in it."""
    run: list[tma.SyncLoad] = []
    for op in block:
        nested = [each for inner in op.blocks for each in adjacent_loads(inner)]
        parts = nested or isinstance(op, grid.GridWait)
        if parts or any(_reads(op, load) for load in run):
            if run:
                yield run
            run = []
        yield from nested
        if isinstance(op, tma.SyncLoad):
            run.append(op)
    if run:
        yield run


def _reads(op: Op, load: tma.SyncLoad) -> bool:
    return any(reader is op or is_inside(reader, op) for reader in readers_of(load.buffer))


def readers_of(buffer: Value) -> Iterator[Op]:
    """Yield the consumers' ops that read a buffer."""
    for user in buffer.users:
        if isinstance(user, gpu.SharedTrans):
            yield from readers_of(user.out)
        elif not isinstance(user, tma.SyncLoad | tma.TmaLoad):
            yield user


def buffers_of(load: tma.SyncLoad) -> gpu.SharedAlloc:
    """Return the allocation of a load's buffer, with all its stages."""
    op = load.buffer.op
    if isinstance(op, gpu.SharedStage):
        op = op.buffer.op
    assert isinstance(op, gpu.SharedAlloc)
    return op


def make_group(
    number: int, loads: list[tma.SyncLoad], place: Builder, num_warps: int, num_owners: int = 1
) -> LoadGroup:
    """Return a group with its mbarriers; its buffers move to where both roles see them.

    Each of `num_owners` consumer groups of `num_warps` warps gets stages of its own.
    """
    num_stages = buffers_of(loads[0]).num_stages
    if num_owners > 1:
        num_stages = max(num_stages // num_owners, min(num_stages, _MIN_OWN_STAGES))
    for load in loads:
        alloc = buffers_of(load)
        if num_owners > 1:
            _replace_buffers(alloc, num_stages * num_owners, place)
        else:
            alloc.remove()
            place(alloc)
    # CTAs of a cluster that fill a stage together wait until all have read it.
    num_ctas = max(load.num_parts for load in loads)
    ring = MbarrierRing(
        place, num_stages, num_warps=num_warps, num_ctas=num_ctas, num_owners=num_owners
    )
    return LoadGroup(number, loads, ring)


def _replace_buffers(alloc: gpu.SharedAlloc, num_stages: int, place: Builder) -> None:
    """Replace an allocation by one with as many stages as are given."""
    attributes = {**alloc.attributes, "num_stages": num_stages}
    made = place(build(gpu.SharedAlloc, (), attributes, (), alloc.loc)).out
    if alloc.num_stages == 1:
        before = Builder.before_op(alloc)
        # The stage index comes from the wait for the load.
        made = before(gpu.SharedStage(made, before(arith.Constant(0, I32)).out)).out
    alloc.replace_with([made])
