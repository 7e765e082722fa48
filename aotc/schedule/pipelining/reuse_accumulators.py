"""Let dots that begin sums one after the other do so in the same registers.

Where threads add up the results of several dots of a loop, each waited for before the next one is
issued, ptxas gives each result registers of its own, and where sums fill the others, it spills. A dot
whose accumulator is the result before it, though it does not add to that, keeps it in its registers.

It is done where the results do not fit beside each other: elsewhere ptxas may begin the next dot while
threads still compute with the last one.

Invariant: no dot adds to what it did not add to.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, roles, scf, wgmma
from aotc.ir.tiles import is_tile
from aotc.schedule.analysis.register_budget import (
    DOTS_AHEAD_RESERVE,
    registers_of,
    registers_of_thread,
    registers_of_tiles,
)
from aotc.schedule.context import Schedule


def reuse_accumulators(kernel: Kernel, schedule: Schedule) -> None:
    """Chain the dots of loops through the registers of their results where these are few."""
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        limit = role.consumer_registers or registers_of_thread(kernel, schedule.target)
        for loop in [op for op in role.consumers.walk() if isinstance(op, scf.For)]:
            dots = [op for op in loop.body if _begins(op)]
            live_registers = registers_of_tiles([value for value in loop.carried if is_tile(value)])
            live_registers += sum(registers_of(op.results[0]) for op in dots)
            if len(dots) > 1 and live_registers + DOTS_AHEAD_RESERVE > limit:
                _chain(loop.body)


def _chain(block: Block) -> None:
    """Give each dot that begins a sum the last result that is there, and needed no longer."""
    order = {op: number for number, op in enumerate(block)}
    dead: Value | None = None
    for op in block:
        if isinstance(op, wgmma.WgmmaWait) and not op.pending and len(op.values) == 1:
            dead = op.results[0]
        elif isinstance(op, wgmma.Wgmma):
            if _begins(op) and dead is not None and _is_free(dead, op, order):
                slots = [*op.slots]
                slots[2] = dead
                op.set_slots(slots)
            dead = None


def _begins(op: Op) -> bool:
    """Return whether a dot begins a sum, in registers that hold nothing."""
    if not isinstance(op, wgmma.Wgmma) or not isinstance(op.acc.op, gpu.Undefined):
        return False
    flag = None if op.accumulate is None else op.accumulate.op
    return isinstance(flag, arith.Constant) and not flag.value


def _is_free(result: Value, dot: wgmma.Wgmma, order: dict[Op, int]) -> bool:
    """Return whether all that uses a result of its block comes before a dot of the same type."""
    if result.type != dot.out.type:
        return False
    return all(user in order and order[user] < order[dot] for user in result.users)
