"""Inline assembly of a kernel's source, on the elements of scalars and tiles.

The ops are the same in tile IR and in gpu IR. The text works on `pack` elements at a time, from
neighbouring registers of a thread. The choice of these elements is undefined, so a result element
may depend only on the same element of each operand.

Invariant: text, constraints and operands pass `ir.assembly.check`.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.assembly import Operands, check
from aotc.ir.core import Op, Value, attribute, operands, results
from aotc.ir.dialects.arith import Elementwise, same_place
from aotc.ir.effects import Resource, Trait, orders, reads, writes
from aotc.ir.types import ScalarType, Type, element_of, with_element


class Assembly(Op):
    """Base of ops with a PTX text; its operands are written as in LLVM, such as `$0`."""

    text: str = attribute()
    constraints: str = attribute()
    dtypes: tuple[ScalarType, ...] = attribute()
    pack: int = attribute()
    arguments: Sequence[Value] = operands()
    outs: Sequence[Value] = results()

    @property
    def registers(self) -> Operands:
        """The registers of an instance of the text."""
        elements = [element_of(value.type) for value in self.operands]
        return check(self.text, self.constraints, elements, self.dtypes, self.pack)

    def infer(self) -> Sequence[Type]:
        _ = self.registers
        types = [value.type for value in self.operands]
        if not types:
            return self.dtypes
        for other in types:
            if not same_place(types[0], other):
                self.error(f"operands {types[0]} and {other} differ in shape or layout")
        return [with_element(types[0], dtype) for dtype in self.dtypes]


class InlineAsm(Assembly, Elementwise, opcode="asm.inline", pure=True, traits=(Trait.COSTLY,)):
    """Assembly without side effects: it may be removed when its results are unused."""


class VolatileAsm(
    Assembly,
    opcode="asm.volatile",
    effects=(
        reads(Resource.GLOBAL),
        writes(Resource.GLOBAL),
        orders(Resource.GLOBAL),
        reads(Resource.SHARED),
        writes(Resource.SHARED),
        orders(Resource.SHARED),
    ),
):
    """Assembly with any effect: it is neither moved nor removed nor duplicated."""
