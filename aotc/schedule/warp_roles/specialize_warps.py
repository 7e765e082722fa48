"""Split a kernel into consumers, which compute, and a producer, which issues their tensor loads.

Adjacent loads fill one stage of their rings and share its two mbarriers, see
`fetch_groups`. The producer runs a copy of the code that decides about loads:

    producer: wait for empty[stage]; expect the group's bytes at full[stage]; issue its loads
    consumers: wait for full[stage]; read; each warp arrives at empty[stage]

Both keep stage index and phase through all loops and branches, so nothing drains between two
tiles of work. A stage is released after the last op that reads it; if that is a dot which
stays in flight across iterations, after the wait for it there, and the last one after the loop.

Several consumer groups share the rings of their dots' operands in the order of tiles: a group
advances its state over the tiles of the others. Of any other ring each has stages of its own, and
the producer keeps the state of each.

Invariant: full and empty alternate, beginning with empty; a wait for phase n of either
comes before anything that the other side does in phase n + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import arith, gpu, grid, roles, scf, tma, wgmma
from aotc.ir.rewrite import Builder, append_carried, is_inside
from aotc.ir.types import I32
from aotc.schedule.analysis.producer_slice import Slice, SliceCopy, find_slice
from aotc.schedule.analysis.register_budget import (
    register_share,
    register_split,
    registers_of,
    split_remark,
)
from aotc.schedule.context import Schedule
from aotc.schedule.warp_roles.consumer_groups import (
    GroupTurns,
    loop_of_tiles,
    ordered_loop,
    take_turns,
)
from aotc.schedule.warp_roles.fetch_groups import (
    FetchGroup,
    RingTurn,
    first_slot,
    make_group,
    next_state,
    readers_of,
    ring_of,
    runs_of,
    slot_number,
    slot_of,
    turn_of,
)

_FRAGMENT_REGISTERS = 32  # of operands of dots on CUDA cores
_PRODUCTS = (gpu.Dot, wgmma.Wgmma)
# Addresses, counters and the epilogue's values, besides the accumulators.
_WORKING_REGISTERS = 64


def specialize_warps(kernel: Kernel, schedule: Schedule) -> None:
    """Split the roles of a kernel that `choose_warp_roles` gave producer warps."""
    if not kernel.producer_warps:
        return
    found = find_slice(kernel)
    if found.obstacle:
        raise IRError(
            f"tensor loads can no longer be moved to a producer warp: {found.obstacle}", kernel.loc
        )
    with at(kernel.loc):
        consumers = Block()
        for op in list(kernel.body):
            if not op.terminator:
                op.remove()
                consumers.insert(op)
        place = Builder.before_op(kernel.body.terminator)
        producer = _divide(kernel, consumers, found, place)
        for block in (consumers, producer):
            Builder(block)(scf.Yield([]))
        registers = _registers(kernel, consumers)
        if registers:
            schedule.remark(kernel.loc, split_remark(registers))
        place(roles.Specialize(consumers, producer, *registers))
        if kernel.num_ctas > 1:
            # Until then other CTAs may copy here, or arrive.
            place(grid.ClusterBarrier())


def _divide(kernel: Kernel, consumers: Block, found: Slice, place: Builder) -> Block:
    """Take the tensor loads out of the consumers; return a producer that issues them.

    What both need is placed ahead of them.
    """
    count = kernel.num_consumer_groups
    loop = loop_of_tiles(consumers) if count > 1 else None
    ordered = ordered_loop(loop.body) if loop else None
    groups: list[FetchGroup] = []
    for run in list(runs_of(consumers)):
        shared = count == 1 or (ordered is not None and is_inside(run[0], ordered))
        groups.append(make_group(len(groups), run, place, 1 if shared else count))
    for group in groups:
        place(tma.MbarrierInit(group.full, 1))
        place(tma.MbarrierInit(group.empty, kernel.num_warps * group.num_parts))
    zero = place(arith.Constant(0, I32)).out
    issuer = _Producer(groups, loop, count)
    producer = Block()
    copy = SliceCopy(found, issuer.issue, issuer.hand_over)
    copy.copy_block(consumers, Builder(producer), issuer.start(zero))
    turns = take_turns(consumers, kernel, place) if count > 1 else None
    place(grid.ClusterBarrier() if kernel.num_ctas > 1 else gpu.Barrier())
    waits = _Consumers(groups, kernel.num_warps, found, turns)
    waits.run(consumers, [zero] * 2 * len(groups))
    return producer


# ---- registers --------------------------------------------------------------------------------


def _registers(kernel: Kernel, consumers: Block) -> tuple[int, ...]:
    """Return how many registers a thread of each role gets, or nothing to leave them as they are.

    Where accumulators leave few for all else, consumers take registers that the producer frees.
    """
    products = [op for op in consumers.walk() if isinstance(op, _PRODUCTS)]
    # A dot that accumulates onto another one has no accumulator of its own.
    held = sum(registers_of(op.out) for op in products if not isinstance(op.acc.op, _PRODUCTS))
    by_threads = any(isinstance(op, gpu.Dot) for op in products)
    working = _WORKING_REGISTERS + (_FRAGMENT_REGISTERS if by_threads else 0)
    return register_split(kernel) if held + working > register_share(kernel) else ()


# ---- the producer -----------------------------------------------------------------------------


class _Producer:
    """Emit the producer's ops in place of loads: all of a group's at its last one.

    Its state is stage and phase of each group. With several consumer groups, iterations of the
    `loop` over tiles are for each in turn; after the state for the current one come those for the
    next ones, of rings with owners, and at the end the index of the current one.
    """

    def __init__(self, groups: Sequence[FetchGroup], loop: scf.For | None, count: int) -> None:
        self.groups = groups
        self.group_of = {fetch: group for group in groups for fetch in group.fetches}
        self.loop = loop
        self.count = count
        owned = [2 * group.index for group in groups if group.num_owners > 1]
        self._owned = [place for start in owned for place in (start, start + 1)]

    def start(self, zero: Value) -> list[Value]:
        """Return the state at the start of the kernel."""
        others = (self.count - 1) * len(self._owned)
        return [zero] * (2 * len(self.groups) + others + (self.loop is not None))

    def issue(
        self, fetch: tma.Fetch, place: Builder, mapping: dict[Value, Value], state: list[Value]
    ) -> list[Value]:
        """Wait for a free stage and issue a group's loads to it, if `fetch` is its last."""
        group = self.group_of[fetch]
        if fetch is not group.fetches[-1]:
            return state
        turn = turn_of(state, group, first_slot(state[-1], group, place))
        one = place(arith.Constant(1, I32)).out
        # Stages are empty at the start, so the first wait is for the phase before the first.
        emptied = place(arith.Xor(turn.parity, one)).out
        place(tma.MbarrierWait(slot_of(group.empty, group, turn, place), emptied))
        full = slot_of(group.full, group, turn, place)
        for each in group.fetches:
            inputs = [mapping.get(value, value) for value in each.inputs]
            buffer = slot_of(ring_of(each).out, group, turn, place)
            place(each.as_async_load(inputs, buffer, full, arrive=each is fetch))
        return next_state(state, group, place)

    def hand_over(self, loop: scf.For, place: Builder, state: list[Value]) -> list[Value]:
        """Make the next iteration of the loop over tiles that of the next consumer group."""
        if self.loop is None or loop is not self.loop:
            return state
        now, size = 2 * len(self.groups), len(self._owned)
        own, others = state[:now], [*state[now:-1], *(state[each] for each in self._owned)]
        for each, value in zip(self._owned, others[:size], strict=True):
            own[each] = value
        return [*own, *others[size:], place(gpu.NextStage(state[-1], self.count)).out]


# ---- the consumers ----------------------------------------------------------------------------


class _Consumers:
    """Replace loads by waits, and release stages once they have been read.

    Of several consumer groups, `turns` says which one runs this, and where.
    """

    def __init__(
        self, groups: Sequence[FetchGroup], num_warps: int, found: Slice, turns: GroupTurns | None
    ) -> None:
        self.groups = groups
        self.num_warps = num_warps
        self.found = found
        self.group_turns = turns
        self.firsts: dict[FetchGroup, Value | None] = {}
        self.turns: dict[FetchGroup, RingTurn] = {}
        self.ends: dict[Block, list[Value]] = {}

    def run(self, block: Block, state: list[Value]) -> None:
        """Rewrite the consumers' whole block."""
        if self.group_turns is not None:
            number = self.group_turns.number
            place = Builder(block, block.first.next if block.first else None)
            self.firsts = {each: first_slot(number, each, place) for each in self.groups}
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

    def _wait(self, group: FetchGroup, state: list[Value], place: Builder) -> list[Value]:
        turn = self.turns[group] = turn_of(state, group, self.firsts.get(group))
        place(tma.MbarrierWait(slot_of(group.full, group, turn, place), turn.parity))
        for fetch in group.fetches:
            slot = fetch.buffer.op
            if isinstance(slot, gpu.SharedStage):
                index = slot_number(group, turn, Builder.before_op(slot))
                slot.set_slots([slot.buffer, index])
        return next_state(state, group, place)

    def _thread(self, op: Op, state: list[Value]) -> list[Value]:
        """Pass the state of the groups in a loop or branch through it."""
        is_loop = isinstance(op, scf.For | scf.While)
        inside = [
            index
            for group in self.groups
            if any(group.fetches[0] in set(nested.walk()) for nested in op.blocks)
            for index in (2 * group.index, 2 * group.index + 1)
        ]
        # Before the arm that skips the tile, as its loads become waits.
        counted = self._count_along(op, state)
        for block in op.blocks:
            before = list(state)
            for index in inside if is_loop else ():
                before[index] = block.add_arg(I32, "turn" if index % 2 else "slot")
            end = counted.get(block) or self._visit(block, before)
            terminator = block.terminator
            terminator.set_slots([*terminator.slots, *(end[index] for index in inside)])
        own, blocks = len(op.results), op.blocks
        made = append_carried(op, [state[index] for index in inside] if is_loop else ())
        after = list(state)
        for index, value in zip(inside, made.results[own:], strict=True):
            after[index] = value
        for block in blocks:
            self.ends[block] = after
        return after

    def _count_along(self, op: Op, state: list[Value]) -> dict[Block, list[Value]]:
        """Let a group that skips a tile advance the state of the shared rings.

        Return the state after that, by the block that it is in.
        """
        last = {group.fetches[-1]: group for group in self.groups if group.num_owners == 1}
        if not last or self.group_turns is None or op is not self.group_turns.branch:
            return {}
        branch = self.group_turns.branch

        def skip(
            fetch: tma.Fetch, place: Builder, mapping: dict[Value, Value], state: list[Value]
        ) -> list[Value]:
            del mapping
            return next_state(state, last[fetch], place) if fetch in last else state

        place = Builder.before_op(branch.orelse.terminator)
        end = SliceCopy(self.found, skip).copy_block(branch.then, place, state)
        return {branch.orelse: end}

    # -- releases --------------------------------------------------------------

    def _release(self, group: FetchGroup) -> None:
        """Let all warps arrive at `empty` after the last op that reads a group's stage."""
        block, turn = group.block, self.turns[group]
        order = {op: number for number, op in enumerate(block)}
        own: Op = group.fetches[-1]
        late: Op | None = None
        for fetch in group.fetches:
            for reader in readers_of(fetch.buffer):
                done, runs_on = _done_at(reader, block)
                if runs_on:
                    late = done if late is None else max(late, done, key=order.__getitem__)
                else:
                    own = max(own, done, key=order.__getitem__)
        if late is None:
            place = Builder.after_op(own)
            self._arrive(slot_of(group.empty, group, turn, place), None, group, place)
            return
        loop = block.parent
        assert isinstance(loop, scf.For)
        place = Builder.after_op(late)
        later = place(arith.Compare(loop.induction, loop.lower, "ne")).out
        before = slot_of(group.empty, group, turn, place, behind=1)
        self._arrive(before, later, group, place)
        place = Builder.after_op(_drain_after(loop))
        turn = turn_of(self.ends[block], group, self.firsts.get(group))
        before = slot_of(group.empty, group, turn, place, behind=1)
        self._arrive(before, None, group, place)

    def _arrive(
        self, barrier: Value, enabled: Value | None, group: FetchGroup, place: Builder
    ) -> None:
        place(tma.MbarrierArrive(barrier, self.num_warps, enabled, group.num_parts))


def _done_at(reader: Op, block: Block) -> tuple[Op, bool]:
    """Return the op of `block` that completes a reader, and whether that is an iteration later.

    A dot is done after the wait that covers it.
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
    """Return the first wait from `op` on that leaves at most `newer` dots in flight."""
    while op is not None:
        if isinstance(op, wgmma.Wgmma):
            newer += 1
        elif isinstance(op, wgmma.WgmmaWait) and op.pending <= newer:
            return op, newer
        op = op.next
    return None, newer


def _inside(op: Op, block: Block) -> Op:
    """Return the op of `block` that is `op` or contains it."""
    while op.block is not block:
        parent = op.parent_op
        if parent is None:
            op.error("is not in the block of what it reads")
        op = parent
    return op


def _drain_after(loop: Op) -> Op:
    """Return the wait after a loop that leaves no dot in flight."""
    op = loop.next
    while not isinstance(op, wgmma.WgmmaWait) or op.pending:
        if op is None:
            loop.error("leaves products in flight")
        op = op.next
    return op
