"""Hints to the L2 cache, of gpu IR.

Invariant: no value depends on one. It may be left out, and orders nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, attribute, operand, operands
from aotc.ir.effects import Resource, writes
from aotc.ir.types import I32, TensorMapType, Type


class TmaPrefetch(Op, opcode="gpu.tma_prefetch", effects=(writes(Resource.CACHE, of="tensor"),)):
    """Begin to bring the tile of `shape` at `coords` to the L2 cache, in boxes of the map."""

    tensor: Value = operand()
    coords: Sequence[Value] = operands()
    shape: tuple[int, ...] = attribute()

    def infer(self) -> Sequence[Type]:
        kind = self.tensor.type
        if not isinstance(kind, TensorMapType):
            self.error(f"expected a tensor map, got {kind}")
        types = [coord.type for coord in self.coords]
        self.expect(types == [I32] * len(kind.box), f"{kind} at ({', '.join(map(str, types))})")
        fits = len(self.shape) == len(kind.box)
        fits = fits and not any(map(int.__mod__, self.shape, kind.box))
        self.expect(fits, f"{self.shape} is not made of boxes of {kind}")
        return ()
