"""Carry the first fragments of a loop's dots over the back edge, so that it begins with them.

An iteration of a pipelined loop waits for its copies, meets a barrier, and reads the first
fragments before the first MMA; with one or two warps a scheduler, the tensor cores are idle for
that long. So the loop

    for i: wait for copy i; barrier; a = read(i, 0); b = read(i, 1); multiply(a); …; multiply(z)

becomes

    wait for copy 0; barrier; a = read(0, 0)
    for i: b = read(i, 1); multiply(a); …; wait for copy i+1; barrier; a = read(i+1, 0); multiply(z)

and the last MMA of an iteration runs while the next one's first fragments are read.
The barrier still separates the last read of a stage from the copies that refill it: those
are the next iteration's. The last iteration reads a stage that nothing was copied to: the memory
exists, and the values are unused.

Invariant: an iteration reads from its stages what it read before, after the same copies.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.dialects import gpu, scf
from aotc.ir.rewrite import is_pure
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_loop import expand_loop
from aotc.schedule.pipelining.loop_schedule import LoopSchedule


def prefetch_fragments(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop whose first dot reads what asynchronous copies brought."""
    del schedule
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        ahead = _with_fragments_ahead(loop)
        if ahead is not None:
            expand_loop(ahead)


def _with_fragments_ahead(loop: scf.For) -> LoopSchedule | None:
    """Return the loop with the next iteration's first fragments before its last dot, if it can."""
    ops = {op: number for number, op in enumerate(loop.body)}
    waits = [op for op in ops if isinstance(op, gpu.AsyncWait)]
    dots = [op for op in ops if isinstance(op, gpu.Dot)]
    if len(waits) != 1 or not dots or not dots[0].shape or _uses_stages_otherwise(loop):
        return None
    wait, last = waits[0], dots[-1]
    reads = {op: stage for op in ops if (stage := _stage_read(op)) is not None}
    commits = [op for op in ops if isinstance(op, gpu.AsyncCommit)]
    if any(ops[op] > ops[last] for op in (*reads, *commits)) or ops[wait] > ops[dots[0]]:
        return None
    sources = _needed(dots[0], loop.body)
    copied = [stage.buffer for op in ops if (stage := _stage_copied_to(op)) is not None]
    fragments = [
        op
        for op, stage in reads.items()
        if op in sources and stage.buffer in copied and _is_current(stage, loop)
    ]
    if not fragments:
        return None
    ahead = LoopSchedule.in_order(loop)
    ahead.carried = [(variable, 0) for variable in loop.carried]
    ahead.move([wait, *fragments], before=last, distance=1)
    return ahead


def _uses_stages_otherwise(loop: scf.For) -> bool:
    """Return whether threads write a stage, or a nested block reads one."""
    for op in loop.body.walk():
        if isinstance(op, gpu.SharedStore) and isinstance(op.buffer.op, gpu.SharedStage):
            return True
        if op.block is not loop.body and _stage_read(op) is not None:
            return True
    return False


def _stage_read(op: Op) -> gpu.SharedStage | None:
    """Return the stage that an op reads, or None."""
    stage = op.buffer.op if isinstance(op, gpu.SharedLoad) else None
    return stage if isinstance(stage, gpu.SharedStage) else None


def _stage_copied_to(op: Op) -> gpu.SharedStage | None:
    """Return the stage that an op starts a copy to, or None."""
    stage = op.buffer.op if isinstance(op, gpu.AsyncCopy) else None
    return stage if isinstance(stage, gpu.SharedStage) else None


def _is_current(stage: gpu.SharedStage, loop: scf.For) -> bool:
    """Return whether a stage is the current iteration's, by a stage index that the loop advances."""
    counter = stage.index
    if counter.owner is not loop.body or counter.index == 0 or stage.ahead:
        return False
    following = loop.body.terminator.operands[counter.index - 1].op
    return isinstance(following, gpu.NextStage) and following.index is counter


def _needed(dot: gpu.Dot, body: Block) -> dict[Op, None]:
    """Return the ops of the body that the operands of a dot are computed from."""
    sources: dict[Op, None] = {}
    worklist = [dot.a, dot.b]
    while worklist:
        op = worklist.pop().op
        if op is not None and op.block is body and op not in sources:
            sources[op] = None
            if is_pure(op):
                worklist += op.operands
    return sources
