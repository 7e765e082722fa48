"""Divide a kernel into consumers, which compute, and a producer, which fetches for them.

Fetches of a block that stand together, with no look at what they bring and no wait for other grids
in between, are a *group*: they go to one slot of their rings and share its two mbarriers. The producer runs a copy of what
decides about fetches:

    producer: wait for empty[slot]; announce the group's bytes to full[slot]; start its copies
    consumers: wait for full[slot]; read; each warp arrives at empty[slot]

Both count slots and turns of the ring through all loops and branches, so nothing ends between two
tiles of work. A slot is given back behind the last op that reads it; if that is a product which
runs on into the next iteration, behind the wait for it there, and the last one behind the loop.

Invariant: full and empty change hands in turn, beginning with empty; a wait for phase n of either
comes before anything that the other side does in phase n + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import arith, gpu, grid, roles, scf, tma, wgmma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, SharedType, TileType, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.expand_fetches import place_mbarrier
from aotc.schedule.global_order import is_inside
from aotc.schedule.producer_slice import SliceCopy, find_slice

_REGISTERS_PER_LANE = 65536 // 32  # of an SM
_REGISTER_UNIT = 8
_REGISTER_BITS = 32
_MAX_CONSUMER_REGISTERS = 240
_PRODUCER_REGISTERS = 40
_FEW_PRODUCER_REGISTERS = 32
_MANY_GROUPS = 3
# What addresses, counters and the way of results to memory take besides the sums.
_WORKING_REGISTERS = 64


@dataclass(eq=False)
class _Group:
    """Fetches that go together; `index` is the group's number, `block` where they stand."""

    index: int
    fetches: list[tma.Fetch]
    full: Value
    empty: Value

    @property
    def block(self) -> Block:
        block = self.fetches[0].block
        assert block is not None
        return block

    @property
    def num_parts(self) -> int:
        """How many blocks of a cluster fill a slot together, and wait for all to have read it."""
        return max(fetch.num_parts for fetch in self.fetches)

    @property
    def num_slots(self) -> int:
        kind = _ring(self.fetches[0]).out.type
        assert isinstance(kind, SharedType)
        return kind.num_slots


@dataclass(frozen=True)
class _Turn:
    """The slot that a group is at, and the parity of the ring's turn, both i32."""

    slot: Value
    parity: Value


def specialize_warps(kernel: Kernel, schedule: Schedule) -> None:
    """Divide the roles of a kernel that `ring_fetches` gave producer warps."""
    if not kernel.producer_warps:
        return
    found = find_slice(kernel)
    if found.obstacle:
        raise IRError(f"fetches cannot be divided off any more: {found.obstacle}", kernel.loc)
    with at(kernel.loc):
        consumers = Block()
        for op in list(kernel.body):
            if not op.terminator:
                op.remove()
                consumers.insert(op)
        place = Builder.before_op(kernel.body.terminator)
        groups = [_group(number, run, place) for number, run in enumerate(_runs(consumers))]
        for group in groups:
            place(tma.MbarrierInit(group.full, 1))
            place(tma.MbarrierInit(group.empty, kernel.num_warps * group.num_parts))
        in_cluster = kernel.num_ctas > 1
        place(grid.ClusterBarrier() if in_cluster else gpu.Barrier())
        start = [place(arith.Constant(0, I32)).out] * 2 * len(groups)
        producer = Block()
        SliceCopy(found, _Producer(groups).issue).copy_block(consumers, Builder(producer), start)
        _Consumers(groups, kernel.num_warps).run(consumers, start)
        for block in (consumers, producer):
            Builder(block)(scf.Yield([]))
        registers = _registers(kernel, consumers)
        if registers:
            schedule.remark(
                kernel.loc,
                f"{registers[0]} registers for threads that compute, {registers[1]} else",
            )
        place(roles.Specialize(consumers, producer, *registers))
        if in_cluster:
            # Until then others may copy here, or arrive.
            place(grid.ClusterBarrier())


# ---- registers --------------------------------------------------------------------------------


def _registers(kernel: Kernel, consumers: Block) -> tuple[int, ...]:
    """Return how many registers a thread of each role gets, or nothing to leave them as they are.

    A launch gives all threads as many, and at most what each may have. Sums that leave few of these
    for all else take those that a producer has no use for.

    Source: PTX ISA, "setmaxnreg".
    """
    warps = kernel.num_warps + kernel.producer_warps
    each = _REGISTERS_PER_LANE // warps // _REGISTER_UNIT * _REGISTER_UNIT
    sums = max((_words(op) for op in consumers.walk() if isinstance(op, wgmma.Wgmma)), default=0)
    if kernel.maxnreg or sums + _WORKING_REGISTERS <= each:
        return ()
    groups, rest = divmod(kernel.num_warps, kernel.producer_warps)
    least = _PRODUCER_REGISTERS if groups < _MANY_GROUPS else _FEW_PRODUCER_REGISTERS
    spare = each * (groups + 1) - least
    own = min(spare // groups // _REGISTER_UNIT * _REGISTER_UNIT, _MAX_CONSUMER_REGISTERS)
    return (own, least) if not rest and own > each else ()


def _words(op: wgmma.Wgmma) -> int:
    """Return how many 32-bit registers of a thread hold a product's result."""
    kind = op.out.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    return kind.layout.in_size("register") * element_of(kind).bits // _REGISTER_BITS


# ---- groups -----------------------------------------------------------------------------------


def _runs(block: Block) -> Iterator[list[tma.Fetch]]:
    """Yield the groups of a block and all nested in it."""
    run: list[tma.Fetch] = []
    for op in block:
        nested = [each for inner in op.blocks for each in _runs(inner)]
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
    return any(reader is op or is_inside(reader, op) for reader in _readers(fetch.buffer))


def _readers(buffer: Value) -> Iterator[Op]:
    """Yield the consumers' ops that read a buffer."""
    for user in buffer.users:
        if isinstance(user, gpu.SharedTrans):
            yield from _readers(user.out)
        elif not isinstance(user, tma.Fetch | tma.TmaLoad):
            yield user


def _ring(fetch: tma.Fetch) -> gpu.SharedAlloc:
    op = fetch.buffer.op
    if isinstance(op, gpu.SharedSlot):
        op = op.buffer.op
    assert isinstance(op, gpu.SharedAlloc)
    return op


def _group(number: int, fetches: list[tma.Fetch], place: Builder) -> _Group:
    """Return a group with its mbarriers; its rings move to where both roles see them."""
    for fetch in fetches:
        ring = _ring(fetch)
        ring.remove()
        place(ring)
    kind = _ring(fetches[0]).out.type
    assert isinstance(kind, SharedType)
    full, empty = (place_mbarrier(place, kind.num_slots) for _ in range(2))
    return _Group(number, fetches, full, empty)


def _turn(state: Sequence[Value], group: _Group) -> _Turn:
    return _Turn(*state[2 * group.index : 2 * group.index + 2])


def _next_state(state: Sequence[Value], group: _Group, place: Builder) -> list[Value]:
    """Return the state once the group has gone on to its next slot."""
    turn, one = _turn(state, group), place(arith.Constant(1, I32)).out
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


def _slot(buffer: Value, turn: _Turn, place: Builder, *, behind: int = 0) -> Value:
    """Return the slot of a ring that a group is at, or the one that it was at before."""
    kind = buffer.type
    assert isinstance(kind, SharedType)
    if kind.num_slots == 1:
        return buffer
    return place(gpu.SharedSlot(buffer, turn.slot, -behind % kind.num_slots)).out


# ---- the producer -----------------------------------------------------------------------------


class _Producer:
    """Write what the producer does in place of fetches: all of a group's at its last one."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.group_of = {fetch: group for group in groups for fetch in group.fetches}

    def issue(
        self, fetch: tma.Fetch, place: Builder, mapping: dict[Value, Value], state: list[Value]
    ) -> list[Value]:
        """Wait for a slot and start a group's copies to it, if `fetch` is its last."""
        group = self.group_of[fetch]
        if fetch is not group.fetches[-1]:
            return state
        turn = _turn(state, group)
        one = place(arith.Constant(1, I32)).out
        # Empty slots are there from the start, so the first turn waits for the phase before.
        emptied = place(arith.Xor(turn.parity, one)).out
        place(tma.MbarrierWait(_slot(group.empty, turn, place), emptied))
        full = _slot(group.full, turn, place)
        for each in group.fetches:
            inputs = [mapping.get(value, value) for value in each.inputs]
            buffer = _slot(_ring(each).out, turn, place)
            place(each.started(inputs, buffer, full, arrive=each is fetch))
        return _next_state(state, group, place)


# ---- the consumers ----------------------------------------------------------------------------


class _Consumers:
    """Turn fetches into waits, and give slots back once they have been read."""

    def __init__(self, groups: Sequence[_Group], num_warps: int) -> None:
        self.groups = groups
        self.num_warps = num_warps
        self.turns: dict[_Group, _Turn] = {}
        self.ends: dict[Block, list[Value]] = {}

    def run(self, block: Block, state: list[Value]) -> None:
        """Rewrite the consumers' whole block."""
        self._visit(block, state)
        for group in self.groups:
            with at(group.fetches[0].loc):
                self._release(group)
        for group in self.groups:
            for fetch in group.fetches:
                fetch.erase()

    # -- waits -----------------------------------------------------------------

    def _visit(self, block: Block, state: list[Value]) -> list[Value]:
        """Put waits in front of the groups of a block; return the state at its end."""
        firsts = {group.fetches[0]: group for group in self.groups if group.block is block}
        for op in block:
            group = firsts.get(op)  # pyright: ignore[reportArgumentType]
            if group is not None:
                with at(op.loc):
                    state = self._wait(group, state, Builder.before_op(op))
            elif any(self._holds_group(nested) for nested in op.blocks):
                state = self._thread(op, state)
        return state

    def _holds_group(self, block: Block) -> bool:
        return any(isinstance(op, tma.Fetch) for op in block.walk())

    def _wait(self, group: _Group, state: list[Value], place: Builder) -> list[Value]:
        turn = self.turns[group] = _turn(state, group)
        place(tma.MbarrierWait(_slot(group.full, turn, place), turn.parity))
        for fetch in group.fetches:
            slot = fetch.buffer.op
            if isinstance(slot, gpu.SharedSlot):
                slot.set_slots([slot.buffer, turn.slot])
        return _next_state(state, group, place)

    def _thread(self, op: Op, state: list[Value]) -> list[Value]:
        """Pass the turns of the groups in a loop or branch through it."""
        is_loop = isinstance(op, scf.For | scf.While)
        inside = [
            index
            for group in self.groups
            if any(group.fetches[0] in set(nested.walk()) for nested in op.blocks)
            for index in (2 * group.index, 2 * group.index + 1)
        ]
        for block in op.blocks:
            before = list(state)
            for index in inside if is_loop else ():
                before[index] = block.add_arg(I32, "turn" if index % 2 else "slot")
            end = self._visit(block, before)
            terminator = block.terminator
            terminator.set_slots([*terminator.slots, *(end[index] for index in inside)])
        blocks, op.blocks = op.blocks, ()
        slots = [*op.slots, *(state[index] for index in inside)] if is_loop else op.slots
        made = Builder.before_op(op)(build(type(op), slots, op.attributes, blocks, op.loc))
        own = len(made.results) - len(inside)
        op.replace_with(made.results[:own])
        after = list(state)
        for index, value in zip(inside, made.results[own:], strict=True):
            after[index] = value
        for block in blocks:
            self.ends[block] = after
        return after

    # -- releases --------------------------------------------------------------

    def _release(self, group: _Group) -> None:
        """Let all warps arrive at `empty` behind the last op that reads what a group brought."""
        block, turn = group.block, self.turns[group]
        order = {op: number for number, op in enumerate(block)}
        own: Op = group.fetches[-1]
        late: Op | None = None
        for fetch in group.fetches:
            for reader in _readers(fetch.buffer):
                done, runs_on = _done_at(reader, block)
                if runs_on:
                    late = done if late is None else max(late, done, key=order.__getitem__)
                else:
                    own = max(own, done, key=order.__getitem__)
        if late is None:
            place = Builder.after_op(own)
            self._arrive(_slot(group.empty, turn, place), None, group, place)
            return
        loop = block.parent
        assert isinstance(loop, scf.For)
        place = Builder.after_op(late)
        later = place(arith.Compare(loop.induction, loop.lower, "ne")).out
        before = _slot(group.empty, turn, place, behind=1)
        self._arrive(before, later, group, place)
        place = Builder.after_op(_drain_after(loop))
        turn = _turn(self.ends[block], group)
        before = _slot(group.empty, turn, place, behind=1)
        self._arrive(before, None, group, place)

    def _arrive(self, barrier: Value, enabled: Value | None, group: _Group, place: Builder) -> None:
        place(tma.MbarrierArrive(barrier, self.num_warps, enabled, group.num_parts))


def _done_at(reader: Op, block: Block) -> tuple[Op, bool]:
    """Return the op of `block` behind which a reader is done, and whether that is an iteration on.

    A product is done behind the wait that covers it.
    """
    if not isinstance(reader, wgmma.Wgmma):
        return _inside(reader, block), False
    op: Op = reader
    newer = 0
    while True:
        found, newer = _wait_behind(op.next, newer)
        if found is not None:
            return _inside(found, block), False
        if op.block is block:
            found, _ = _wait_behind(block.first, newer)
            if found is None:
                reader.error("is not waited for")
            return found, True
        parent = op.parent_op
        if parent is None:
            reader.error("is not waited for")
        if not isinstance(parent, scf.If):
            newer = 0
        op = parent


def _wait_behind(op: Op | None, newer: int) -> tuple[Op | None, int]:
    """Return the first wait from `op` on that leaves only `newer` products, or fewer, in flight."""
    while op is not None:
        if isinstance(op, wgmma.Wgmma):
            newer += 1
        elif isinstance(op, wgmma.WgmmaWait) and op.pending <= newer:
            return op, newer
        op = op.next
    return None, newer


def _inside(op: Op, block: Block) -> Op:
    """Return the op of `block` that is `op` or that it is nested in."""
    while op.block is not block:
        parent = op.parent_op
        if parent is None:
            op.error("is not in the block of what it reads")
        op = parent
    return op


def _drain_after(loop: Op) -> Op:
    """Return the wait behind a loop that leaves no product in flight."""
    op = loop.next
    while not isinstance(op, wgmma.WgmmaWait) or op.pending:
        if op is None:
            loop.error("leaves products in flight")
        op = op.next
    return op
