"""Read to registers what tensor loads bring where it is first used.

A tensor load whose tile threads compute with is followed by the read of its buffer. What is loaded at the
start of an iteration and used at its end would be in registers throughout, and loads with a read in between
are no longer adjacent, so that each has mbarriers of its own. So reads move down, with what only changes
their shape or layout, to the first op that computes with them.

Invariant: a read stays in its block, behind its load and ahead of the next one of the same buffer.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.dialects import gpu, tma
from aotc.ir.effects import Trait
from aotc.ir.order import enclosing_in
from aotc.ir.rewrite import is_pure
from aotc.schedule.analysis.alias import allocation_of
from aotc.schedule.context import Schedule

_MOVING = (Trait.SHAPE_ONLY, Trait.BROADCAST, Trait.VIEW, Trait.SAME_VALUES)


def delay_reads(kernel: Kernel, schedule: Schedule) -> None:
    """Move every read of what a tensor load of its block brings down to its first use."""
    del schedule
    if not kernel.producer_warps:
        return
    for op in list(kernel.walk()):
        if isinstance(op, gpu.SharedLoad) and _is_filled_in(op, op.block):
            _delay(op)


def _is_filled_in(read: gpu.SharedLoad, block: Block | None) -> bool:
    """Return whether one load of a block, and nothing else, fills the buffer of a read."""
    alloc = allocation_of(read.buffer)
    loads = [op for op in block or () if isinstance(op, tma.SyncLoad)]
    return sum(allocation_of(load.buffer) is alloc for load in loads) == 1


def _delay(read: gpu.SharedLoad) -> None:
    block = read.block
    assert block is not None
    moved: dict[Op, None] = {read: None}
    uses: dict[Op, None] = {}
    for op in moved_by(read, moved):
        for user in (user for value in op.results for user in value.users):
            if user not in moved:
                uses[enclosing_in(user, block)] = None
    first = next((op for op in block if op in uses), None)
    if first is None:
        return
    for op in [op for op in block if op in moved]:
        op.remove()
        block.insert(op, first)


def moved_by(read: Op, moved: dict[Op, None]) -> list[Op]:
    """Return a read and the ops of its block that only change the shape of what it reads."""
    worklist: list[Op] = [read]
    while worklist:
        op = worklist.pop()
        for user in (user for value in op.results for user in value.users):
            is_own = user.block is read.block and is_pure(user) and user.has(*_MOVING)
            others = [v for v in user.operands if v.op is not None and v.op not in moved and v.op.block is read.block]
            if is_own and not others and user not in moved:
                moved[user] = None
                worklist.append(user)
    return list(moved)
