"""A function of scalars applied to the elements of tiles: control flow for each element.

The op is the same in tile IR and in gpu IR. One run of the body handles `pack` elements of each
operand. The choice of these elements is undefined, so a result element may depend only on the same
element of each operand.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Value, attribute, block, operands, results
from aotc.ir.dialects.arith import Elementwise, same_place
from aotc.ir.effects import Trait
from aotc.ir.types import Type, element_of, with_element


class Map(Elementwise, opcode="map.elements", pure=True, traits=(Trait.COSTLY,)):
    """The results of `body` for the elements of tiles.

    Its arguments are `pack` elements of the first operand, then of the next; it yields `pack`
    elements of the first result, then of the next. It has no effects, and uses no outside values.
    """

    inputs: Sequence[Value] = operands()
    pack: int = attribute()
    body: Block = block()
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        types = [value.type for value in self.operands]
        self.expect(bool(types), "needs at least one operand")
        for other in types:
            if not same_place(types[0], other):
                self.error(f"operands {types[0]} and {other} differ in shape or layout")
        self.expect(self.pack >= 1, f"pack is {self.pack}")
        arg_types = [element_of(kind) for kind in types for _ in range(self.pack)]
        self.expect(
            [arg.type for arg in self.body.args] == arg_types, "wrong arguments of the body"
        )
        yielded = [value.type for value in self.body.terminator.operands]
        groups = [yielded[start : start + self.pack] for start in range(0, len(yielded), self.pack)]
        self.expect(
            all(group == group[:1] * self.pack for group in groups),
            "the body yields no whole groups of one type",
        )
        return [with_element(types[0], element_of(group[0])) for group in groups]
