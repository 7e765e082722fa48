"""The consumers' side of tensor loads: wait for full stages, release them once they have been read.

A stage is released after the last op that reads it; if that is a dot which stays in flight across
iterations, after the wait for it there, and the last one after the loop.

Invariant: every path releases each stage that it has waited for, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.carried_state import CarriedState, State
from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, thread_copy, tma, wgmma
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_tile
from aotc.schedule.analysis.producer_slice import Slice, SliceCopy
from aotc.schedule.shared_memory.mbarrier_ring import RingPosition
from aotc.schedule.warp_roles.consumer_groups import OwnTiles
from aotc.schedule.warp_roles.load_groups import LoadGroup, initial_state
from aotc.schedule.warp_roles.read_ends import done_at


class ConsumerStages(CarriedState):
    """Replace loads by waits, and release stages once they have been read.

    Of several consumer groups, `tiles` says which one runs this, and where.
    """

    def __init__(
        self, groups: Sequence[LoadGroup], loads_slice: Slice, tiles: OwnTiles | None
    ) -> None:
        self.groups = groups
        self.found = loads_slice
        self.tiles = tiles
        self._group_of: dict[Op, LoadGroup] = {group.loads[0]: group for group in groups}
        self._first_stages: dict[LoadGroup, Value | None] = {}
        self._positions: dict[LoadGroup, RingPosition] = {}
        self._skipped: dict[Block, State] = {}
        self._after: dict[Block, State] = {}

    def run(self, consumers: Block) -> None:
        """Rewrite the consumers' whole block."""
        if self.tiles is not None:
            number = self.tiles.group
            builder = Builder(consumers, consumers.first.next if consumers.first else None)
            self._first_stages = {
                load_group: load_group.ring.first_stage(number, builder)
                for load_group in self.groups
            }
        self.visit(consumers, initial_state(self.groups))
        for group in self.groups:
            with at(group.loads[0].loc):
                self._release(group)
        for group in self.groups:
            for load in group.loads:
                load.erase()

    def _position(self, group: LoadGroup, state: State) -> RingPosition:
        return group.position(state, self._first_stages.get(group))

    # -- waits -----------------------------------------------------------------

    def updated_by(self, op: Op, state: State) -> State | None:
        """Put a wait before the first load of a group."""
        group = self._group_of.get(op)
        if group is None:
            return None
        with at(op.loc):
            builder = Builder.before_op(op)
            position = self._positions[group] = self._position(group, state)
            by_threads = any(isinstance(load, thread_copy.SyncThreadLoad) for load in group.loads)
            # Dots are issued as soon as there is a stage: what is loaded for later comes after.
            early = Builder.before_op(_first_load(op, state, tiles=by_threads))
            group.ring.await_full(position, early)
            if by_threads:
                # Dots read what threads wrote. The fence would wait for loads on their way, too.
                early(tma.ProxyFence())
            for load in group.loads:
                stage = load.buffer.op
                if isinstance(stage, gpu.SharedStage):
                    index = group.ring.stage_index(position, Builder.before_op(stage))
                    stage.set_slots([stage.buffer, index])
            return group.advanced(state, builder)

    def indices_in(self, op: Op) -> Sequence[int]:
        nested = dict.fromkeys(inner for block in op.blocks for inner in block.walk())
        inside = [group.indices for group in self.groups if group.loads[0] in nested]
        return list(dict.fromkeys(index for indices in inside for index in indices))

    def hint(self, index: int) -> str:
        return "parity" if index % 2 else "stage"

    def visit(self, block: Block, state: State) -> State:
        """Thread the state through a block; see `_skip_tile` for that of a tile of others'."""
        return self._skipped[block] if block in self._skipped else super().visit(block, state)

    def through(self, op: Op, state: State) -> State:
        """Thread the state through a loop or branch; note it as the one after its blocks."""
        if self.tiles is not None and op is self.tiles.branch:
            self._skip_tile(self.tiles.branch, state)
        blocks = op.blocks
        after = super().through(op, state)
        self._after.update(dict.fromkeys(blocks, after))
        return after

    def _skip_tile(self, branch: scf.If, state: State) -> None:
        """Let a consumer group that skips a tile advance the state of the shared rings.

        That comes before the arm that runs the tile is visited, as its loads become waits.
        """
        last = {group.loads[-1]: group for group in self.groups if group.ring.num_owners == 1}
        if not last:
            return

        def skip(
            load: tma.SyncLoad, builder: Builder, mapping: dict[Value, Value], state: State
        ) -> State:
            del mapping
            return last[load].advanced(state, builder) if load in last else state

        builder = Builder.before_op(branch.orelse.terminator)
        end = SliceCopy(self.found, skip).copy_block(branch.then, builder, state)
        self._skipped[branch.orelse] = end

    # -- releases --------------------------------------------------------------

    def _release(self, group: LoadGroup) -> None:
        """Let all warps arrive at `empty` after the last op that reads a group's stage."""
        block, position = group.block, self._positions[group]
        order = {op: number for number, op in enumerate(block)}
        last: Op = group.loads[-1]
        late: Op | None = None
        for reader in group.readers:
            end, is_later = _done_at(reader, block)
            if is_later:
                late = end if late is None else max(late, end, key=order.__getitem__)
            else:
                last = max(last, end, key=order.__getitem__)
        if late is None:
            group.ring.release(position, Builder.after_op(last))
            return
        loop = block.parent
        assert isinstance(loop, scf.For)
        builder = Builder.after_op(late)
        not_first = builder(arith.Compare(loop.induction, loop.lower, "ne")).out
        group.ring.release(position, builder, before=1, enabled=not_first)
        position = self._position(group, self._after[block])
        group.ring.release(position, Builder.after_op(_drain_after(loop)), before=1)


def _first_load(op: Op, state: State, *, tiles: bool) -> Op:
    """Return the first load to registers ahead of `op` in a block with dots, or `op`.

    It stands after what computes the state at `op` and, without `tiles`, after all loads of tiles: those
    may take longer than an iteration, and are issued before the wait.
    """
    first, before = op, op.prev
    has_dots = op.block is not None and any(isinstance(other, wgmma.Wgmma) for other in op.block)
    while has_dots and before is not None and not any(out in state for out in before.results):
        if isinstance(before, gpu.Load):
            if is_tile(before.out) and not tiles:
                break
            first = before
        before = before.prev
    return first


def _done_at(reader: Op, block: Block) -> tuple[Op, bool]:
    end = done_at(reader, block)
    if end is None:
        reader.error("is not waited for")
    return end


def _drain_after(loop: Op) -> Op:
    """Return the wait after a loop that leaves no dot in flight."""
    op = loop.next
    while not isinstance(op, wgmma.WgmmaWait) or op.pending:
        if op is None:
            loop.error("leaves dots in flight")
        op = op.next
    return op
