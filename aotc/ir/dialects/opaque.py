"""Values that LLVM and ptxas cannot recognize as equal, to force recomputation.

This is gpu IR. LLVM and ptxas merge equal computations and move them up, which makes live ranges
longer. A pass that shortens them on purpose hides the equality from both.
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
    """Make the thread id opaque to LLVM, so its users are recomputed from here on.

    It is in the kernel's own block; its only effect is to shorten live ranges.
    """

    def infer(self) -> Sequence[Type]:
        return ()


class Opaque(Op, opcode="gpu.opaque", effects=(reads(Resource.CONTROL),)):
    """The same tile, opaque to LLVM and ptxas, and unknown before the scalar `after`.

    Computations on it are not merged with earlier ones, so a tile that is cheap to recompute need
    not stay live. It takes an instruction for each register of the tile.
    """

    value: Value = operand()
    after: Value | None = operand(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = tile_type(self, self.value)
        self.expect(not isinstance(kind.element, PointerType), "pointers are never opaque")
        return (kind,)
