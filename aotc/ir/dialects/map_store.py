"""Tensor maps that a kernel stores in global memory for kernels after it.

Invariant: the kernel that stores a map copies nothing by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, attribute, operand, operands
from aotc.ir.dialects.mbarrier import one_stage_type
from aotc.ir.effects import Resource, writes
from aotc.ir.types import I32, I64, U64, PointerType, TensorMapType, Type


def _check(op: Op, slot: Value, sizes: Sequence[Value], rank: int) -> None:
    op.expect(isinstance(slot.type, PointerType), f"a slot at {slot.type}")
    types = [size.type for size in sizes]
    expected = [I32] * rank + [I64] * (rank - 1)
    op.expect(types == expected, f"{rank} axes of sizes ({', '.join(map(str, types))})")


class StoreMap(Op, opcode="tile.store_map", effects=(writes(Resource.GLOBAL, of="slot"),)):
    """Store the tensor map of the tensor at `pointer` to `slot`, for tiles of `shape`.

    The slot has 128 bytes at a multiple of 128. `sizes` are the extents, i32 and at least 1, and the
    strides of all axes but the last, i64 in elements. The address and the strides are multiples of
    16 bytes.
    """

    slot: Value = operand()
    pointer: Value = operand()
    sizes: Sequence[Value] = operands()
    shape: tuple[int, ...] = attribute()

    def infer(self) -> Sequence[Type]:
        self.expect(isinstance(self.pointer.type, PointerType), f"a tensor at {self.pointer.type}")
        _check(self, self.slot, self.sizes, len(self.shape))
        return ()


class PublishMap(
    Op,
    opcode="gpu.publish_map",
    effects=(writes(Resource.SHARED, of="template"), writes(Resource.GLOBAL, of="slot")),
):
    """Build a tensor map in `template` and publish it at `slot`, by one warp of the role.

    The template has 128 bytes, unused by all other ops; all else is as in `tile.store_map`.
    """

    slot: Value = operand()
    pointer: Value = operand()
    template: Value = operand()
    sizes: Sequence[Value] = operands()
    type: TensorMapType = attribute()

    def infer(self) -> Sequence[Type]:
        fits = self.pointer.type == PointerType(self.type.element)
        self.expect(fits, f"a map of {self.type} at {self.pointer.type}")
        _check(self, self.slot, self.sizes, len(self.type.box))
        memory = one_stage_type(self, self.template)
        self.expect((memory.element, memory.shape) == (U64, (16,)), f"a template in {memory}")
        return ()
