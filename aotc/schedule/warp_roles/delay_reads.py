"""Read what tensor loads bring to registers where it is first used.

The read of a buffer that threads compute with follows its load. What is loaded when an iteration begins, and
used when it ends, would be in registers throughout; and loads with a read between them do not share a stage
(`load_groups`). So reads move down, with what only changes the shape of what they read, to the first op that
computes with it, or ahead of the wait for a dot that this op computes with as well:

    load x; a = read x; load y; b = read y; t = dot; wait for t; u = f(a, t); v = f(b, u)
    load x; load y; t = dot; a = read x; wait for t; u = f(a, t); b = read y; v = f(b, u)

Invariant: a read stays in the block of the load that fills its buffer, and nothing else there fills it.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.dialects import gpu, tma, wgmma
from aotc.ir.effects import Trait
from aotc.ir.order import enclosing_in
from aotc.ir.rewrite import is_pure
from aotc.schedule.analysis.alias import allocation_of
from aotc.schedule.context import Schedule


def delay_reads(kernel: Kernel, schedule: Schedule) -> None:
    """Move reads of what a producer's loads bring down to their first use; drop those without a use."""
    del schedule
    if not kernel.producer_warps:
        return
    for op in list(kernel.walk()):
        if isinstance(op, gpu.SharedLoad) and not op.out.users:
            op.erase()
        elif isinstance(op, gpu.SharedLoad) and op.block and _is_filled_in(op.block, op):
            _delay(op, op.block)


def _is_filled_in(block: Block, read: gpu.SharedLoad) -> bool:
    """Return whether one load of a block fills the buffer of a read."""
    filled = [allocation_of(op.buffer) for op in block if isinstance(op, tma.SyncLoad)]
    return filled.count(allocation_of(read.buffer)) == 1


def _delay(read: gpu.SharedLoad, block: Block) -> None:
    reads = _reshaped(read, block)
    users = [user for op in reads for value in op.results for user in value.users]
    uses = {enclosing_in(user, block) for user in users if user not in reads}
    first = next((op for op in block if op in uses), None)
    if first is None:
        return
    target = _ahead_of_wait(first)
    for op in reads:
        op.remove()
        block.insert(op, target)


def _ahead_of_wait(first: Op) -> Op:
    """Return the wait for dots that comes before an op with nothing but pure ops between, or the op."""
    op = first.prev
    while op is not None and is_pure(op):
        op = op.prev
    return op if isinstance(op, wgmma.WgmmaWait) else first


def _reshaped(read: gpu.SharedLoad, block: Block) -> list[Op]:
    """Return a read and the ops of its block that only rename or repeat what it reads, in order."""
    reads: list[Op] = [read]
    for op in reads:
        users = [user for value in op.results for user in value.users]
        reads += [
            user
            for user in users
            if user.block is block
            and is_pure(user)
            and user.has(Trait.SHAPE_ONLY)
            and len(user.operands) == 1
            and user not in reads
        ]
    return reads
