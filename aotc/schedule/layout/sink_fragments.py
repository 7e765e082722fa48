"""Read a wide dot operand from shared memory in each loop iteration, instead of holding it.

A dot in a loop holds fragments of a tile loaded before the loop in registers. With 512 columns,
like the queries of latent attention, these are half of a thread's registers, and more than ptxas
keeps beside an accumulator. The tile has gone through shared memory on its way to the fragments; it
stays there, and `slice_dots` reads a few fragments at a time.

A dot by FMAs takes all of K for each row and column of a thread: several times the tile's other
registers. So each of its operands is made just before the dot: read again for every dot, or, by
shuffles, for the first.

Invariant: between a read's old and new places, nothing writes to its buffer.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import gpu, scf
from aotc.ir.effects import Resource
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.alias import may_alias
from aotc.schedule.analysis.register_budget import HELD_FRAGMENT_LIMIT, registers_of
from aotc.schedule.context import Schedule


def sink_fragments(kernel: Kernel, schedule: Schedule) -> None:
    """Move reads of wide operands to their dots."""
    del schedule
    for dot in [op for op in kernel.walk() if isinstance(op, gpu.Dot)]:
        for read in (dot.a.op, dot.b.op):
            if isinstance(read, gpu.SharedLoad) and _is_held(read, dot):
                assert dot.block is not None
                read.remove()
                dot.block.insert(read, before=dot)
        if not dot.shape:
            for operand in dict.fromkeys((dot.a, dot.b)):
                _delay(operand, dot)


def _delay(operand: Value, dot: gpu.Dot) -> None:
    """Make an operand of a dot by FMAs just before it."""
    op, block = operand.op, dot.block
    assert block is not None
    if op is None or op.block is not block:
        return
    if isinstance(op, gpu.SharedLoad) and not _is_written(op, dot):
        again = Builder.before_op(dot)(op.clone({}))
        dot.replace_operand(operand, again.results[0])
        if not operand.users:
            op.erase()
    elif isinstance(op, gpu.ShuffleConvert) and all(user.block is block for user in operand.users):
        first = next(user for user in block if user in operand.users)
        op.remove()
        block.insert(op, before=first)


def _is_held(read: gpu.SharedLoad, dot: gpu.Dot) -> bool:
    """Return whether a loop holds too large an operand of a dot, and need not."""
    around = [op for op in dot.ancestors() if op.block is read.block]
    loop = dot.block.parent if dot.block is not None else None
    return (
        isinstance(loop, scf.For)
        and bool(around)
        and list(read.out.users) == [dot]
        and registers_of(read.out) > HELD_FRAGMENT_LIMIT
        and not _is_written(read, around[0])
    )


def _is_written(read: gpu.SharedLoad, last: Op) -> bool:
    """Return whether any op from a read up to the op around its dot may write to its buffer."""
    op: Op | None = read
    while op is not last:
        assert op is not None
        op = op.next
        assert op is not None
        for nested in (op, *(inner for block in op.blocks for inner in block.walk())):
            for effect in nested.effects_on(Resource.SHARED, "write"):
                if not effect.of or may_alias(getattr(nested, effect.of), read.buffer):
                    return True
    return False
