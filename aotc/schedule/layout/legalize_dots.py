"""Rewrite dots into those that the target's instructions compute.

- fp8 operands on a target without fp8 MMA become fp16, which holds every fp8 number; fp16
  products are exact in fp32 as well.
- An addition to the result of a dot becomes its accumulator: `acc += dot(a, b)` keeps its
  accumulator in the instruction, whichever way it was written. Tensor cores sum fp8 products with
  fewer bits than fp32, so these are promoted to the accumulator at the end of the dot's K.
- A dot at "tf32x3" is three at tf32. The residual of an operand is the operand minus its
  leading bits, exactly; the smallest terms are accumulated first, apart from the accumulator, so
  that its magnitude does not cost them their bits. Where an operand is infinite, its residual is
  NaN, and the term that has it is dropped.

Invariant: afterwards `input_precision` is "tf32" or "ieee", and operands have a type that the
target multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.tiles import tile_shape
from aotc.ir.types import FP8E4NV, FP8E5, FP16, FP32, U32, TileType, element_of, with_element
from aotc.schedule.context import Schedule
from aotc.target import Feature

_TF32_BITS = 0xFFFFE000


def legalize_dots(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite dots for the target; see the module docstring."""
    if Feature.FP8_MMA not in schedule.target.features:
        rewrite(kernel, {tile.Dot: [_widen_fp8]})
    rewrite(kernel, {arith.Add: [_add_to_accumulator]})
    rewrite(kernel, {tile.Dot: [_split_tf32x3]})


def _add_to_accumulator(op: Op, place: Builder) -> Sequence[Value] | None:
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
            return [place(tile.Dot(dot.a, dot.b, other, dot.input_precision, most)).out]
    return None


def _is_zero(value: Value) -> bool:
    return isinstance(value.op, arith.Constant) and value.op.value == 0


def _widen_fp8(op: Op, place: Builder) -> Sequence[Value] | None:
    assert isinstance(op, tile.Dot)
    if element_of(op.a.type) not in (FP8E4NV, FP8E5):
        return None
    a, b = (place(arith.Cast(value, FP16)).out for value in (op.a, op.b))
    return [place(tile.Dot(a, b, op.acc)).out]


def _split_tf32x3(op: Op, place: Builder) -> Sequence[Value] | None:
    assert isinstance(op, tile.Dot)
    if op.input_precision != "tf32x3":
        return None
    if element_of(op.a.type) != FP32:
        return [place(tile.Dot(op.a, op.b, op.acc, "tf32", op.max_num_imprecise_acc)).out]
    kind = op.acc.type
    zero = place(arith.Constant(0.0, kind)).out
    small_a, small_b = (_beyond_tf32(value, place) for value in (op.a, op.b))
    cross = place(tile.Dot(small_a, op.b, zero)).out
    cross = place(tile.Dot(op.a, small_b, cross)).out
    is_number = place(arith.Compare(cross, cross, "eq")).out
    cross = place(arith.Select(is_number, cross, zero)).out
    product = place(tile.Dot(op.a, op.b, cross)).out
    return [place(arith.Add(product, op.acc)).out]


def _beyond_tf32(value: Value, place: Builder) -> Value:
    """Return the residual of fp32 numbers when their tf32 bits are subtracted."""
    kind = value.type
    assert isinstance(kind, TileType)
    mask = place(arith.Constant(_TF32_BITS, with_element(kind, U32))).out
    bits = place(arith.Bitcast(value, U32)).out
    big = place(arith.Bitcast(place(arith.And(bits, mask)).out, FP32)).out
    return place(arith.Sub(value, big)).out
