"""Groups of tensor loads: their rings, the mbarriers of these, and which stages each consumer owns.

Adjacent loads of a block, with no use of their results and no wait for other grids
in between, are a *group*: they share a stage and its two mbarriers, *full* and *empty*. Whoever
uses a ring keeps its stage index and phase; all of these together are a *state*, two
values for each group.

Invariant: the rings of a group have equally many stages, and as many mbarriers of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Op, Value, build
from aotc.ir.dialects import arith, gpu, grid, tma
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import I32
from aotc.schedule.shared_memory.mbarriers import place_mbarrier

_FEWEST_SLOTS = 2  # of a consumer group, so that one is filled while another one is read


@dataclass(eq=False)
class FetchGroup:
    """Tensor loads that share a stage; `index` is the group's number, `block` where they are.

    Its rings have `num_stages` stages, or so many for each of `num_owners` consumer groups.
    """

    index: int
    fetches: list[tma.Fetch]
    full: Value
    empty: Value
    num_stages: int
    num_owners: int

    @property
    def block(self) -> Block:
        """The block of all its loads."""
        block = self.fetches[0].block
        assert block is not None
        return block

    @property
    def num_parts(self) -> int:
        """How many CTAs of a cluster fill a stage together, and wait until all have read it."""
        return max(fetch.num_parts for fetch in self.fetches)


@dataclass(frozen=True)
class RingTurn:
    """The current stage of a group, and the phase of its mbarriers, both i32.

    Where a consumer group has stages of its own, they begin with number `first`.
    """

    slot: Value
    parity: Value
    first: Value | None = None


def runs_of(block: Block) -> Iterator[list[tma.Fetch]]:
    """Yield the groups of loads of a block and all nested in it."""
    run: list[tma.Fetch] = []
    for op in block:
        nested = [each for inner in op.blocks for each in runs_of(inner)]
        parts = nested or isinstance(op, grid.GridWait)
        if parts or any(_reads(op, fetch) for fetch in run):
            if run:
                yield run
            run = []
        yield from nested
        if isinstance(op, tma.Fetch):
            run.append(op)
    if run:
        yield run


def _reads(op: Op, fetch: tma.Fetch) -> bool:
    return any(reader is op or is_inside(reader, op) for reader in readers_of(fetch.buffer))


def readers_of(buffer: Value) -> Iterator[Op]:
    """Yield the consumers' ops that read a buffer."""
    for user in buffer.users:
        if isinstance(user, gpu.SharedTrans):
            yield from readers_of(user.out)
        elif not isinstance(user, tma.Fetch | tma.TmaLoad):
            yield user


def ring_of(fetch: tma.Fetch) -> gpu.SharedAlloc:
    """Return the allocation of a load's ring, with all its stages."""
    op = fetch.buffer.op
    if isinstance(op, gpu.SharedStage):
        op = op.buffer.op
    assert isinstance(op, gpu.SharedAlloc)
    return op


def make_group(
    number: int, fetches: list[tma.Fetch], place: Builder, num_owners: int
) -> FetchGroup:
    """Return a group with its mbarriers; its rings move to where both roles see them."""
    num_stages = ring_of(fetches[0]).num_stages
    if num_owners > 1:
        num_stages = max(num_stages // num_owners, min(num_stages, _FEWEST_SLOTS))
    for fetch in fetches:
        ring = ring_of(fetch)
        if num_owners > 1:
            _replace_ring(ring, num_stages * num_owners, place)
        else:
            ring.remove()
            place(ring)
    full, empty = (place_mbarrier(place, num_stages * num_owners) for _ in range(2))
    return FetchGroup(number, fetches, full, empty, num_stages, num_owners)


def _replace_ring(ring: gpu.SharedAlloc, num_stages: int, place: Builder) -> None:
    """Replace a ring, or a buffer, by a ring with as many stages as are given."""
    attributes = {**ring.attributes, "num_stages": num_stages}
    made = place(build(gpu.SharedAlloc, (), attributes, (), ring.loc)).out
    if ring.num_stages == 1:
        before = Builder.before_op(ring)
        # The stage index comes from the wait for the load.
        made = before(gpu.SharedStage(made, before(arith.Constant(0, I32)).out)).out
    ring.replace_with([made])


def turn_of(state: Sequence[Value], group: FetchGroup, first: Value | None = None) -> RingTurn:
    """Return stage and phase of a group in a state."""
    return RingTurn(state[2 * group.index], state[2 * group.index + 1], first)


def first_slot(number: Value, group: FetchGroup, place: Builder) -> Value | None:
    """Return the first stage that a consumer group owns in the rings of a group of loads."""
    if group.num_owners == 1:
        return None
    return place(arith.Mul(number, place(arith.Constant(group.num_stages, I32)).out)).out


def next_state(state: Sequence[Value], group: FetchGroup, place: Builder) -> list[Value]:
    """Return the state after the group has advanced to its next stage."""
    turn, one = turn_of(state, group), place(arith.Constant(1, I32)).out
    following = turn.slot
    parity = one
    if group.num_stages > 1:
        following = place(gpu.NextStage(turn.slot, group.num_stages)).out
        zero = place(arith.Constant(0, I32)).out
        wraps = place(arith.Compare(following, zero, "eq")).out
        parity = place(arith.Cast(wraps, I32)).out
    after = list(state)
    after[2 * group.index] = following
    after[2 * group.index + 1] = place(arith.Xor(turn.parity, parity)).out
    return after


def slot_of(
    buffer: Value, group: FetchGroup, turn: RingTurn, place: Builder, *, behind: int = 0
) -> Value:
    """Return the current stage of a ring, or the one `behind` stages before."""
    if turn.first is not None:
        return place(gpu.SharedStage(buffer, slot_number(group, turn, place, behind))).out
    if group.num_stages == 1:
        return buffer
    return place(gpu.SharedStage(buffer, turn.slot, -behind % group.num_stages)).out


def slot_number(group: FetchGroup, turn: RingTurn, place: Builder, behind: int = 0) -> Value:
    """Return the index of the current stage, or of the one `behind` stages before."""
    slot = turn.slot
    if behind and group.num_stages > 1:
        slot = place(gpu.NextStage(slot, group.num_stages, -behind % group.num_stages)).out
    if turn.first is None:
        return slot
    return turn.first if group.num_stages == 1 else place(arith.Add(turn.first, slot)).out
