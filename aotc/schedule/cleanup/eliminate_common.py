"""Common subexpression elimination: compute each pure value once.

Two pure ops of one class with equal operands and attributes compute the same value. The later op is
replaced if the earlier dominates it. One walk with a table per nested block finds them.

Invariant: only pure ops without blocks are merged, so nothing observable moves.
"""

from __future__ import annotations

from collections.abc import Hashable

from aotc.ir.core import Block, Kernel, Op
from aotc.ir.effects import Trait
from aotc.schedule.context import Schedule

_Table = dict[Hashable, Op]


def eliminate_common(kernel: Kernel, schedule: Schedule) -> None:
    """Merge equal pure ops."""
    del schedule
    _visit(kernel.body, {})


def _visit(block: Block, table: _Table) -> None:
    for op in block:
        if op.has(Trait.CONTROL_FLOW):
            for nested in op.blocks:
                _visit(nested, dict(table))
        if not op.pure or op.blocks or op.terminator or not op.results:
            continue
        key = _key(op)
        earlier = table.get(key)
        if earlier is None:
            table[key] = op
        else:
            op.replace_with(earlier.results)


def _key(op: Op) -> Hashable:
    attributes = tuple(map(distinct, op.attributes.values()))
    return type(op), tuple(map(id, op.slots)), attributes


def distinct(value: Hashable) -> Hashable:
    """Return a key that tells apart 1, 1.0 and True, or 0.0 and -0.0, equal in Python."""
    if isinstance(value, bool):
        return bool, value
    return (float, repr(value)) if isinstance(value, float) else value
