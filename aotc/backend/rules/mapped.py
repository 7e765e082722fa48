"""The rule for functions applied to elements: the body once for every `pack` registers.

A thread with fewer elements than the body takes repeats its last one. Registers with the same
element share a run.
"""

from __future__ import annotations

from aotc.backend.lower import Lowering, Results, layout_of, lowers
from aotc.backend.thread_map import first_holders
from aotc.ir.dialects.mapped import Map
from aotc.ir.types import TileType, element_of


@lowers(Map)
def lower_map(ctx: Lowering, op: Map) -> Results:
    """Lower a body of scalars, in place, for the elements of each thread."""
    columns = [ctx.registers(value) for value in op.inputs]
    kind = op.inputs[0].type
    holders = first_holders(layout_of(kind)) if isinstance(kind, TileType) else [0]
    distinct = list(dict.fromkeys(holders))
    outputs: dict[int, list[str]] = {}
    elements = [element_of(value.type) for value in op.body.terminator.operands]
    for start in range(0, len(distinct), op.pack):
        group = distinct[start : start + op.pack]
        padded = group + group[-1:] * (op.pack - len(group))
        yielded = ctx.inline(op.body, [column[element] for column in columns for element in padded])
        # A base plus a constant is known where it is made; after a branch, it is a register.
        texts = [
            ctx.operand(component, kind) for component, kind in zip(yielded, elements, strict=True)
        ]
        for position, register in enumerate(group):
            outputs[register] = texts[position :: op.pack]
    return [
        tuple(outputs[register][index] for register in holders) for index in range(len(op.outs))
    ]
