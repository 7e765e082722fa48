"""Interleave the copies of a pipelined loop with the slices of its dots.

Copies take issue slots, too: with all of them at the head of the loop the tensor cores idle until
the last is issued. Placed before one slice of the dots each, they are issued while those run. ptxas
interleaves an adjacent copy and MMA, but it moves no read of shared memory past a copy, and
issues copies eagerly; so a copy comes after the reads of the following slice, and early
enough that few reads are before it, which would all be hoisted and hold registers.

What a copy writes is read after a wait, and what it reads was ready when it was issued, iterations
ahead of its use: up to the next wait it may stand anywhere. In a pipelined loop that is
the next iteration's wait; in a loop around it, where the first copies are issued, the inner loop's.

Invariant: the commit group of an iteration's copies is closed after all of them, before its last
slice and before any wait.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, scf
from aotc.schedule.context import Schedule
from aotc.schedule.pipelining.expand_loop import reorder_body
from aotc.schedule.pipelining.loop_schedule import LoopSchedule


def interleave_copies(kernel: Kernel, schedule: Schedule) -> None:
    """Put each copy of a loop before a slice of its dots, from the first to the last but one."""
    del schedule
    for loop in kernel.walk():
        if isinstance(loop, scf.For):
            _interleave(loop)


def _interleave(loop: scf.For) -> None:
    copies = [op for op in loop.body if isinstance(op, gpu.AsyncCopy)]
    commits = [op for op in loop.body if isinstance(op, gpu.AsyncCommit)]
    slices = _slices_after(copies[-1]) if copies else []
    if len(commits) != 1 or len(slices) < 2:
        return
    interleaved = LoopSchedule.in_order(loop)
    last = len(slices) - 2
    for number, copy in enumerate(copies):
        ops = [copy, *commits] if copy is copies[-1] else [copy]
        interleaved.move(ops, before=slices[min(number, last)])
    reorder_body(interleaved)


def _slices_after(op: Op) -> list[Op]:
    """Return the MMAs between an op and the next wait of its block."""
    slices: list[Op] = []
    following = op.next
    while following is not None and not _waits(following):
        if isinstance(following, gpu.Dot) and following.shape:
            slices.append(following)
        following = following.next
    return slices


def _waits(op: Op) -> bool:
    """Return whether an op or its blocks wait for copies."""
    nested = (inner for block in op.blocks for inner in block.walk())
    return any(isinstance(candidate, gpu.AsyncWait) for candidate in (op, *nested))
