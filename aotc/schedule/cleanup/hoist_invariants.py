"""Loop-invariant code motion.

Invariant: only pure ops move, and only out of loops defining none of their operands. If the loop never
runs they are computed needlessly, without visible effect.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_inside, is_pure
from aotc.schedule.context import Schedule


def hoist_invariants(kernel: Kernel, schedule: Schedule) -> None:
    """Hoist invariant ops out of loops, innermost first."""
    del schedule
    _visit(kernel.body)


def _visit(block: Block) -> None:
    for op in block:
        for nested in op.blocks:
            _visit(nested)
        if op.has(Trait.LOOP):
            _hoist(op)


def _hoist(loop: Op) -> None:
    parent = loop.block
    if parent is None:
        return
    for block in loop.blocks:
        for op in block:
            if op.terminator or not is_pure(op) or _depends_on(op, loop):
                continue
            op.remove()
            parent.insert(op, before=loop)


def _depends_on(op: Op, loop: Op) -> bool:
    """Return whether `op` uses a value defined inside `loop`."""
    inner = [op, *(nested for block in op.blocks for nested in block.walk())]
    return any(
        is_inside(value.owner, loop)
        for inner_op in inner
        for value in inner_op.operands
        if not is_inside(value.owner, op)
    )
