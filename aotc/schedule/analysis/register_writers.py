"""Ops that write the registers of a tile.

An op that only renames elements, such as `gpu.extract`, computes nothing: its result is in the
registers of its operand. A dot in flight reads registers, not values, so their writers must wait.
"""

from __future__ import annotations

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import arith, scf
from aotc.ir.effects import Trait
from aotc.ir.types import ScalarType, element_of

_RENAMES = (Trait.SHAPE_ONLY, Trait.VIEW, Trait.SAME_VALUES)


def register_writers(value: Value) -> dict[Op | Block, None]:
    """Return the ops that write a tile's registers, or the blocks with the tile as argument.

    LLVM may give a branch's result the registers of a yielded value, and a loop's result the
    registers of its initial value, so these are included.
    """
    writers: dict[Op | Block, None] = {}
    seen: set[Value] = set()
    worklist = [value]
    while worklist:
        current = worklist.pop()
        if current in seen:
            continue
        seen.add(current)
        op = current.op
        if op is not None and _renames(op):
            worklist += op.operands
            continue
        writers[current.owner] = None
        if isinstance(op, scf.If):
            worklist += (block.terminator.operands[current.index] for block in op.blocks)
        elif isinstance(op, scf.For):
            worklist.append(op.init[current.index])
    return writers


def _renames(op: Op) -> bool:
    """Return whether an op may leave its operand in its registers."""
    if isinstance(op, arith.Cast):
        kinds = [element_of(value.type) for value in (op.operands[0], op.results[0])]
        return all(isinstance(kind, ScalarType) and not kind.is_float for kind in kinds) and (
            kinds[0].bits == kinds[1].bits
        )
    return isinstance(op, arith.Bitcast) or op.has(*_RENAMES)
