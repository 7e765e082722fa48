"""Values that no later stage takes for what they are, so that what follows from them is computed again.

This is gpu IR. LLVM and ptxas merge equal computations and move them up, which makes live ranges longer; a
pass that shortens them on purpose hides from both that two values are one.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, operand, result
from aotc.ir.dialects.tile import tile_type
from aotc.ir.effects import Resource, Trait, reads, writes
from aotc.ir.types import PointerType, Type


class OpaqueThreadId(
    Op,
    opcode="gpu.opaque_thread_id",
    effects=(writes(Resource.CONTROL),),
    traits=(Trait.NO_INSTRUCTION,),
):
    """Make the thread id opaque to LLVM, so that what depends on it is recomputed from here on.

    It stands in the kernel's own block; its only effect is to shorten live ranges.
    """

    def infer(self) -> Sequence[Type]:
        return ()


class Opaque(Op, opcode="gpu.opaque", effects=(reads(Resource.CONTROL),)):
    """The same tile, which neither LLVM nor ptxas takes for the same, nor knows ahead of a scalar.

    What is computed from it is not merged with what was computed before, so a tile that is cheap
    to compute again need not be kept. It takes an instruction for each register of the tile.
    """

    value: Value = operand()
    after: Value | None = operand(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = tile_type(self, self.value)
        self.expect(not isinstance(kind.element, PointerType), "pointers are never opaque")
        return (kind,)
