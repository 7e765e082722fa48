"""The rule for inline assembly: consecutive registers, `pack` at a time.

A thread with fewer elements than an instance needs repeats its last one.
"""

from __future__ import annotations

from aotc.backend import nvvm_inline
from aotc.backend.lower import Lowering, Results, lowers, num_registers
from aotc.backend.packing import pack, unpack
from aotc.ir.assembly import Register
from aotc.ir.dialects.assembly import InlineAsm, VolatileAsm


@lowers(InlineAsm, VolatileAsm)
def lower_assembly(ctx: Lowering, op: InlineAsm | VolatileAsm) -> Results:
    """Lower assembly: one instance for every `pack` registers of the tiles."""
    operands = op.registers
    columns = [ctx.registers(value) for value in op.arguments]
    results: list[list[str]] = [[] for _ in op.outs]
    count = num_registers(op.outs[0].type)
    for start in range(0, count, op.pack):
        words = [
            _word(ctx, columns[register.value], start + register.first, register)
            for register in operands.inputs
        ]
        outs = nvvm_inline.inline_asm(ctx.emit, op.text, operands, words, pure=op.pure)
        for out, register in zip(outs, operands.outputs, strict=True):
            elements = unpack(ctx.emit, [out], register.element, register.num_elems)
            results[register.value] += elements
    return [tuple(values[:count]) for values in results]


def _word(ctx: Lowering, column: list[str], first: int, register: Register) -> str:
    """Return the word of a register's elements from `first` on."""
    group = column[first : first + register.num_elems]
    group += column[-1:] * (register.num_elems - len(group))
    return pack(ctx.emit, group, register.element)[0]
