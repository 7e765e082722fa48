"""Fetches that go together: their rings, the mbarriers of these, and whose slots are whose.

Fetches of a block that stand together, with no look at what they bring and no wait for other grids
in between, are a *group*: they share a slot and its two mbarriers, *full* and *empty*. Who uses a
ring counts its slots and the parity of its turns; all such numbers together are a *state*, two
values for each group.

Invariant: the rings of a group have equally many slots, and as many mbarriers of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Op, Value, build
from aotc.ir.dialects import arith, gpu, grid, tma
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import I32
from aotc.schedule.shared_memory.mbarriers import place_mbarrier

_FEWEST_SLOTS = 2  # of a group of consumers, so that one is filled while another one is read


@dataclass(eq=False)
class FetchGroup:
    """Fetches that go together; `index` is the group's number, `block` where they stand.

    Its rings have `num_slots`, or so many for each of `num_owners` groups of consumers.
    """

    index: int
    fetches: list[tma.Fetch]
    full: Value
    empty: Value
    num_slots: int
    num_owners: int

    @property
    def block(self) -> Block:
        """The block of all its fetches."""
        block = self.fetches[0].block
        assert block is not None
        return block

    @property
    def num_parts(self) -> int:
        """How many blocks of a cluster fill a slot together, and wait for all to have read it."""
        return max(fetch.num_parts for fetch in self.fetches)


@dataclass(frozen=True)
class RingTurn:
    """The slot that a group is at, and the parity of the ring's turn, both i32.

    Where a group of consumers has slots of its own, they begin with number `first`.
    """

    slot: Value
    parity: Value
    first: Value | None = None


def runs_of(block: Block) -> Iterator[list[tma.Fetch]]:
    """Yield the groups of a block and all nested in it."""
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
    """Return what is allocated for what a fetch brings, of as many slots as there are."""
    op = fetch.buffer.op
    if isinstance(op, gpu.SharedSlot):
        op = op.buffer.op
    assert isinstance(op, gpu.SharedAlloc)
    return op


def make_group(
    number: int, fetches: list[tma.Fetch], place: Builder, num_owners: int
) -> FetchGroup:
    """Return a group with its mbarriers; its rings move to where both roles see them."""
    num_slots = ring_of(fetches[0]).num_slots
    if num_owners > 1:
        num_slots = max(num_slots // num_owners, min(num_slots, _FEWEST_SLOTS))
    for fetch in fetches:
        ring = ring_of(fetch)
        if num_owners > 1:
            _replace_ring(ring, num_slots * num_owners, place)
        else:
            ring.remove()
            place(ring)
    full, empty = (place_mbarrier(place, num_slots * num_owners) for _ in range(2))
    return FetchGroup(number, fetches, full, empty, num_slots, num_owners)


def _replace_ring(ring: gpu.SharedAlloc, num_slots: int, place: Builder) -> None:
    """Replace a ring, or a buffer, by a ring with as many slots as are given."""
    attributes = {**ring.attributes, "num_slots": num_slots}
    made = place(build(gpu.SharedAlloc, (), attributes, (), ring.loc)).out
    if ring.num_slots == 1:
        before = Builder.before_op(ring)
        # Which slot it is, the wait for what is fetched there says.
        made = before(gpu.SharedSlot(made, before(arith.Constant(0, I32)).out)).out
    ring.replace_with([made])


def turn_of(state: Sequence[Value], group: FetchGroup, first: Value | None = None) -> RingTurn:
    """Return where a group is, of a state."""
    return RingTurn(state[2 * group.index], state[2 * group.index + 1], first)


def first_slot(number: Value, group: FetchGroup, place: Builder) -> Value | None:
    """Return the first slot that a group of consumers owns in the rings of a group of fetches."""
    if group.num_owners == 1:
        return None
    return place(arith.Mul(number, place(arith.Constant(group.num_slots, I32)).out)).out


def next_state(state: Sequence[Value], group: FetchGroup, place: Builder) -> list[Value]:
    """Return the state once the group has gone on to its next slot."""
    turn, one = turn_of(state, group), place(arith.Constant(1, I32)).out
    following = turn.slot
    parity = one
    if group.num_slots > 1:
        following = place(gpu.NextSlot(turn.slot, group.num_slots)).out
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
    """Return the slot of a ring that a group is at, or the one that it was at before."""
    if turn.first is not None:
        return place(gpu.SharedSlot(buffer, slot_number(group, turn, place, behind))).out
    if group.num_slots == 1:
        return buffer
    return place(gpu.SharedSlot(buffer, turn.slot, -behind % group.num_slots)).out


def slot_number(group: FetchGroup, turn: RingTurn, place: Builder, behind: int = 0) -> Value:
    """Return the number of the slot that a group is at, or was at before."""
    slot = turn.slot
    if behind and group.num_slots > 1:
        slot = place(gpu.NextSlot(slot, group.num_slots, -behind % group.num_slots)).out
    if turn.first is None:
        return slot
    return turn.first if group.num_slots == 1 else place(arith.Add(turn.first, slot)).out
