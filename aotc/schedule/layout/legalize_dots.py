"""Rewrite dots for the target's instructions.

- fp8 operands on a target without fp8 MMA become fp16, which holds every fp8 number; fp16
  products are exact in fp32 as well.
- An addition to the result of a dot becomes its accumulator: `acc += dot(a, b)` keeps its
  accumulator in the instruction, in either form. Tensor cores sum fp8 products with
  fewer bits than fp32, so these are promoted to the accumulator at the end of the dot's K.
- A dot at "tf32x3", "bf16x3" or "bf16x6" is three or six dots of parts of its operands: the leading bits in
  tf32 or bf16, then the bits of the exact residual. The smallest terms are accumulated first, apart
  from the accumulator, whose magnitude would cost them their bits. Where an operand is infinite, its
  residual is NaN, and the terms with it are dropped.

Invariant: afterwards `input_precision` is "tf32" or "ieee", and the target can multiply the operand
types.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.tiles import tile_shape
from aotc.ir.types import BF16, FP8E4NV, FP8E5, FP16, FP32, U32, TileType, element_of, with_element
from aotc.schedule.context import Schedule
from aotc.target import Feature

_TF32_BITS = 0xFFFFE000
_CROSS_TERMS = {
    "tf32x3": ((1, 0), (0, 1)),
    "bf16x3": ((1, 0), (0, 1)),
    "bf16x6": ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1)),
}
"""The parts of both operands that are multiplied besides the leading ones, the smallest first."""


def legalize_dots(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite dots for the target; see the module docstring."""
    if Feature.FP8_MMA not in schedule.target.features:
        rewrite(kernel, {tile.Dot: [_widen_fp8]})
    rewrite(kernel, {arith.Add: [_add_to_accumulator]})
    rewrite(kernel, {tile.Dot: [_split_precision]})


def _add_to_accumulator(op: Op, builder: Builder) -> Sequence[Value] | None:
    """Rewrite `dot(a, b, 0) + c` as `dot(a, b, c)`; the sum of fp8 products stays apart from `c`."""
    assert isinstance(op, arith.Add)
    for value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        dot = value.op
        if not isinstance(dot, tile.Dot) or len(value.users) > 1:
            continue
        most = dot.max_num_imprecise_acc
        if element_of(dot.a.type) in (FP8E4NV, FP8E5):
            most = most or tile_shape(dot.a)[-1]
        elif most:
            continue
        # The dot moves to the addition, so it must not move into a loop.
        if _is_zero(dot.acc) and other is not value and dot.block is op.block:
            return [builder(tile.Dot(dot.a, dot.b, other, dot.input_precision, most)).out]
    return None


def _is_zero(value: Value) -> bool:
    return isinstance(value.op, arith.Constant) and value.op.value == 0


def _widen_fp8(op: Op, builder: Builder) -> Sequence[Value] | None:
    assert isinstance(op, tile.Dot)
    if element_of(op.a.type) not in (FP8E4NV, FP8E5):
        return None
    a, b = (builder(arith.Cast(value, FP16)).out for value in (op.a, op.b))
    return [builder(tile.Dot(a, b, op.acc)).out]


def _split_precision(op: Op, builder: Builder) -> Sequence[Value] | None:
    assert isinstance(op, tile.Dot)
    if op.input_precision not in _CROSS_TERMS:
        return None
    if element_of(op.a.type) != FP32:
        return [builder(tile.Dot(op.a, op.b, op.acc, "tf32", op.max_num_imprecise_acc)).out]
    split = _tf32_parts if op.input_precision == "tf32x3" else _bf16_parts
    a, b = (split(value, builder) for value in (op.a, op.b))
    zero = builder(arith.Constant(0.0, op.acc.type)).out
    cross = zero
    for of_a, of_b in _CROSS_TERMS[op.input_precision]:
        cross = builder(tile.Dot(a[of_a], b[of_b], cross)).out
    is_number = builder(arith.Compare(cross, cross, "eq")).out
    cross = builder(arith.Select(is_number, cross, zero)).out
    product = builder(tile.Dot(a[0], b[0], cross)).out
    return [builder(arith.Add(product, op.acc)).out]


def _bf16_parts(value: Value, builder: Builder) -> list[Value]:
    """Return fp32 numbers as the sum of three bf16 numbers, the largest first; unused ones are removed."""
    parts: list[Value] = []
    for _ in range(3):
        part = builder(arith.Cast(value, BF16)).out
        value = builder(arith.Sub(value, builder(arith.Cast(part, FP32)).out)).out
        parts.append(part)
    return parts


def _tf32_parts(value: Value, builder: Builder) -> list[Value]:
    """Return fp32 numbers, for dots to truncate to tf32, and their residual."""
    return [value, _beyond_tf32(value, builder)]


def _beyond_tf32(value: Value, builder: Builder) -> Value:
    """Return the residual of fp32 numbers when their tf32 bits are subtracted."""
    kind = value.type
    assert isinstance(kind, TileType)
    mask = builder(arith.Constant(_TF32_BITS, with_element(kind, U32))).out
    bits = builder(arith.Bitcast(value, U32)).out
    big = builder(arith.Bitcast(builder(arith.And(bits, mask)).out, FP32)).out
    return builder(arith.Sub(value, big)).out
