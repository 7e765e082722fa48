"""Issue loads early: hoist independent loads above the first use of other loads.

A thread stalls at the first use of a load, not at the load, so adjacent loads are in flight
together and share one latency. ptxas clusters loads within a basic block; this pass also hoists
them past branches and past the barriers of reductions and conversions, where ptxas does not.

Ops between two fences are list-scheduled: a load whose address is ready goes first, until the
registers of the loads in flight reach a bound; else the next op in the old order.

Invariant: only pure ops and loads are reordered, loads never past a fence, and no load is delayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.dialects import gpu
from aotc.ir.effects import Trait
from aotc.schedule.analysis.global_order import fences, free_operands
from aotc.schedule.analysis.loop_slice import is_cheap
from aotc.schedule.analysis.register_budget import LOADS_BUDGET, loaded_registers
from aotc.schedule.context import Schedule

_MAX_BLOCKED = 64
"""Loads that are passed over, as they need others first, before the rest is left for later."""


def advance_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Reorder every block so that loads are issued early."""
    del schedule
    _visit(kernel.body)


def _visit(block: Block) -> None:
    for op in block:
        if op.has(Trait.CONTROL_FLOW):
            for nested in op.blocks:
                _visit(nested)
    for stretch in _stretches(block):
        if any(_words(op) for op in stretch):
            _relist(stretch)


def _stretches(block: Block) -> Iterator[list[Op]]:
    """Yield the ops between two fences; a loop is a fence, as its register need is not known."""
    stretch: list[Op] = []
    for op in block:
        if op.terminator or op.has(Trait.LOOP) or any(fences((op,))):
            yield stretch
            stretch = []
        else:
            stretch.append(op)
    yield stretch


def _words(op: Op) -> int:
    """Return the registers that a movable load fills; 0 for other ops."""
    return loaded_registers(op) if isinstance(op, gpu.Load) and not op.volatile else 0


class _Order:
    """List-schedule the ops of a stretch.

    A load is `waiting` until its first use, and `in_flight` until its last. `changed` says that a
    load has reached one of the two, so that another load may be ready.
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self.left = dict.fromkeys(ops)
        self.numbers = {op: number for number, op in enumerate(ops)}
        self.loads = {op: words for op in ops if (words := _words(op))}
        self.sources = {
            op: [source for value in free_operands(op) if (source := value.op) in self.left]
            for op in ops
        }
        self.users_left: dict[Op, int] = dict.fromkeys(self.loads, 0)
        for sources in self.sources.values():
            for source in dict.fromkeys(sources):
                if source in self.users_left:
                    self.users_left[source] += 1
        self.unissued = dict(self.loads)
        self.fewest_words = min(self.loads.values())
        self.num_words = 0
        self.waiting: dict[Op, None] = {}
        self.in_flight: dict[Op, int] = {}
        self.listed: list[Op] = []
        self.changed = False

    def run(self) -> list[Op]:
        """Return the ops in their new order."""
        while self.left:
            self._issue_ready()
            self.changed = False
            while self.left and not self.changed:
                self._take(next(iter(self.left)))
        return self.listed

    def _issue_ready(self) -> None:
        blocked = 0
        for load in list(self.unissued):
            words = self.unissued.get(load)
            if blocked > _MAX_BLOCKED or self.num_words + self.fewest_words > LOADS_BUDGET:
                break
            if words is None or self.num_words + words > LOADS_BUDGET:
                continue
            inputs = self._inputs(load)
            blocked += inputs is None
            if inputs is not None:
                for op in inputs:
                    self._take(op)
                self._take(load)

    def _inputs(self, load: Op) -> list[Op] | None:
        """Return the ops to issue before a load, or None if one of them uses another load."""
        inputs: dict[Op, None] = {}
        worklist = [load]
        while worklist:
            for source in self.sources[worklist.pop()]:
                if source in inputs:
                    continue
                if source in self.waiting:
                    return None
                if source in self.left:
                    if source in self.loads or not _moves(source):
                        return None
                    inputs[source] = None
                    worklist.append(source)
        return sorted(inputs, key=self.numbers.__getitem__)

    def _take(self, op: Op) -> None:
        del self.left[op]
        self.listed.append(op)
        for source in dict.fromkeys(self.sources[op]):
            if source not in self.loads:
                continue
            self.changed |= self.waiting.pop(source, 0) is None
            self.users_left[source] -= 1
            if self.users_left[source] == 0:
                words = self.in_flight.pop(source, 0)
                self.num_words -= words
                self.changed |= words > 0
        if op in self.loads:
            self.waiting[op] = None
            self.in_flight[op] = self.unissued.pop(op)
            self.num_words += self.in_flight[op]


def _moves(op: Op) -> bool:
    return is_cheap(op)


def _relist(ops: Sequence[Op]) -> None:
    block, after = ops[0].block, ops[-1].next
    order = _Order(ops).run()
    if block is None or order == list(ops):
        return
    for op in ops:
        op.remove()
    for op in order:
        block.insert(op, before=after)
