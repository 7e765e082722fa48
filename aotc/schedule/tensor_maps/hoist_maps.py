"""Hoist acquire fences of tensor maps in memory out of loops.

Each use of such a map begins with a fence, costlier than the copy after it. Maps are written before the
launch, so an acquire may cross anything but a wait for earlier grids: one of them may have written the map.
`hoist_invariants` has hoisted invariant addresses before.

Invariant: a map is acquired after the same waits as before, and after its address is computed.
"""

from __future__ import annotations

from collections.abc import Hashable

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.dialects.descriptor import DescriptorAt
from aotc.ir.dialects.grid import GridWait
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_inside
from aotc.schedule.context import Schedule


def hoist_maps(kernel: Kernel, schedule: Schedule) -> None:
    """Hoist the acquisition of maps out of loops, innermost first, and merge equal ones."""
    del schedule
    if any(isinstance(op, DescriptorAt) for op in kernel.walk()):
        _hoist(kernel.body)
        _merge(kernel.body, {})


def _waits(op: Op) -> bool:
    nested = (inner for block in op.blocks for inner in block.walk())
    return isinstance(op, GridWait) or any(isinstance(inner, GridWait) for inner in nested)


def _hoist(block: Block) -> None:
    for op in list(block):
        for nested in op.blocks:
            _hoist(nested)
        if not op.has(Trait.LOOP) or _waits(op):
            continue
        for nested in op.blocks:
            for inner in nested:
                if isinstance(inner, DescriptorAt) and not is_inside(inner.pointer.owner, op):
                    inner.remove()
                    block.insert(inner, before=op)


def _merge(block: Block, dominating: dict[Hashable, DescriptorAt]) -> None:
    """Merge equal acquisitions; `dominating` holds those since the last wait."""
    for op in block:
        for nested in op.blocks:
            # An iteration may follow a wait at the end of the previous one.
            _merge(nested, {} if _waits(op) else dict(dominating))
        if _waits(op):
            dominating.clear()
        if isinstance(op, DescriptorAt):
            earlier = dominating.setdefault((op.pointer, op.element, op.shape), op)
            if earlier is not op:
                op.replace_with(earlier.results)
