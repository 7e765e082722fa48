"""Canonicalize, fold constants, and drop no-ops.

Covers integer arithmetic on constants, identities of arithmetic and of shapes, and branches with constant
conditions. Floats are left alone except casts of exactly representable constants, since folding must not
change a rounding.

Invariant: all results keep their bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from aotc.ir.core import Kernel, Op, Value, clone_block
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.dialects.tma import MAX_BOX_ELEMS
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, Pattern, rewrite
from aotc.ir.types import I1, PointerType, ScalarType, TileType, Type, element_of, shape_of
from aotc.schedule.context import Schedule

Result = Sequence[Value] | None
Number = int | float | bool


def simplify(kernel: Kernel, schedule: Schedule) -> None:
    """Apply all folding patterns until none applies."""
    del schedule
    rewrite(kernel, _PATTERNS)


# ---- constants --------------------------------------------------------------------------------


def known(value: Value | None) -> Number | None:
    """Return the value of a constant, scalar or splat, or None."""
    op = None if value is None else value.op
    return op.value if isinstance(op, arith.Constant) else None


def wrap(value: int, kind: ScalarType) -> int:
    """Return `value` modulo the width of an integer type, in its range."""
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.is_signed and value >> (kind.bits - 1) else value


def _constant(builder: Builder, value: Number, type_: Type) -> list[Value]:
    return [builder(arith.Constant(value, type_)).out]


def _truncated_div(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_INTEGER: dict[type[Op], Callable[[int, int], int]] = {
    arith.Add: operator.add,
    arith.Sub: operator.sub,
    arith.Mul: operator.mul,
    arith.And: lambda left, right: left & right,
    arith.Or: lambda left, right: left | right,
    arith.Xor: lambda left, right: left ^ right,
    arith.Min: min,
    arith.Max: max,
    arith.Div: _truncated_div,
    arith.Rem: lambda left, right: left - right * _truncated_div(left, right),
    arith.Shl: lambda left, right: left << right,
    arith.Shr: lambda left, right: left >> right,
}
_PREDICATES: dict[str, Callable[[Number, Number], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _is_defined(op: Op, right: int, kind: ScalarType) -> bool:
    if isinstance(op, arith.Div | arith.Rem):
        return right != 0
    return not isinstance(op, arith.Shl | arith.Shr) or 0 <= right < kind.bits


def fold_integers(op: Op, builder: Builder) -> Result:
    """Compute an integer op on constants."""
    assert isinstance(op, arith.Binary)
    left, right = known(op.lhs), known(op.rhs)
    kind = element_of(op.out.type)
    if left is None or right is None or isinstance(kind, PointerType) or kind.is_float:
        return None
    left, right = int(left), int(right)
    if not _is_defined(op, right, kind):
        return None
    value = wrap(_INTEGER[type(op)](left, right), kind)
    return _constant(builder, bool(value) if kind == I1 else value, op.out.type)


def fold_compare(op: Op, builder: Builder) -> Result:
    """Fold a comparison of constants, or of an index range with a constant."""
    assert isinstance(op, arith.Compare)
    ends, right = _ends(op.lhs), known(op.rhs)
    if ends is None or right is None:
        return None
    outcomes = {_PREDICATES[op.predicate](end, right) for end in ends}
    is_same = len(outcomes) == 1 and (ends[0] == ends[1] or op.predicate not in ("eq", "ne"))
    return _constant(builder, outcomes.pop(), op.out.type) if is_same else None


def _ends(value: Value) -> tuple[Number, Number] | None:
    """Return the least and greatest element of a constant or an index range."""
    constant, op = known(value), value.op
    if constant is not None:
        return constant, constant
    while op is not None and op.has(Trait.VIEW, Trait.BROADCAST):
        op = op.operands[0].op
    return (op.start, op.end - 1) if isinstance(op, tile.Arange) else None


def is_exact(value: float, kind: ScalarType) -> bool:
    """Return whether a float type holds `value` as it is, as a normal number, zero or infinity."""
    if value == 0 or math.isinf(value):
        return math.isfinite(value) or kind.name != "fp8e4nv"
    if math.isnan(value):
        return False
    mantissa, exponent = math.frexp(value)
    bias = (1 << (kind.bits - 2 - kind.mantissa_bits)) - 1
    in_range = 1 - bias < exponent <= bias
    return in_range and math.ldexp(mantissa, kind.mantissa_bits + 1).is_integer()


def fold_cast(op: Op, builder: Builder) -> Result:
    """Drop a cast to the same type; cast a constant if exact."""
    assert isinstance(op, arith.Cast)
    if op.value.type == op.out.type:
        return [op.value]
    value = known(op.value)
    if value is None:
        return _truth_of_select(op, builder) if op.dtype == I1 else None
    if not op.dtype.is_float:
        if isinstance(value, float):
            return None
        cast = value != 0 if op.dtype == I1 else wrap(int(value), op.dtype)
        return _constant(builder, cast, op.out.type)
    return _constant(builder, float(value), op.out.type) if is_exact(value, op.dtype) else None


def _truth_of_select(op: arith.Cast, builder: Builder) -> Result:
    """Return the condition of a select between 0 and another constant, cast to bool."""
    select = op.value.op
    if not isinstance(select, arith.Select):
        return None
    arms = known(select.if_true), known(select.if_false)
    if arms[0] is None or arms[1] is None:
        return None
    if bool(arms[0]) == bool(arms[1]):
        return _constant(builder, bool(arms[0]), op.out.type)
    is_condition = bool(arms[0]) and select.condition.type == op.out.type
    return [select.condition] if is_condition else None


def fold_shape(op: Op, builder: Builder) -> Result:
    """Reshape a constant, or drop an identity shape op."""
    value = known(op.operands[0])
    if value is not None:
        return _constant(builder, value, op.results[0].type)
    if isinstance(op, tile.Trans) and op.order != tuple(range(len(op.order))):
        return None  # a square tile keeps its type and changes its elements
    return [op.operands[0]] if op.operands[0].type == op.results[0].type else None


def fold_splat_of_splat(op: Op, builder: Builder) -> Result:
    """Splat to the final shape at once."""
    source = op.operands[0].op
    out = op.results[0].type
    if isinstance(source, tile.Splat) and isinstance(out, TileType) and out.layout is None:
        return [builder(tile.Splat(source.value, out.shape)).out]
    return None


def fold_trans_of_trans(op: Op, builder: Builder) -> Result:
    """Merge two transpositions; drop both if they cancel."""
    assert isinstance(op, tile.Trans)
    source = op.value.op
    if not isinstance(source, tile.Trans):
        return None
    order = tuple(source.order[axis] for axis in op.order)
    if order != tuple(range(len(order))):
        return [builder(tile.Trans(source.value, order)).out]
    return [source.value] if source.value.type == op.out.type else None


# ---- identities -------------------------------------------------------------------------------


def _is_integer(value: Value) -> bool:
    element = element_of(value.type)
    return isinstance(element, ScalarType) and element.is_int


def _is_all_ones(value: Value) -> bool:
    element, number = element_of(value.type), known(value)
    return (
        isinstance(element, ScalarType) and number is not None and wrap(-1, element) == int(number)
    )


def right_identity(op: Op, _: Builder) -> Result:
    """Drop the neutral operand of x+0, x-0, x|0, x^0, x<<0, x>>0, x*1, x//1, x & all ones."""
    assert isinstance(op, arith.Binary)
    neutral = 1 if isinstance(op, arith.Mul | arith.Div) else 0
    if not _is_integer(op.rhs):
        return None
    if isinstance(op, arith.And):
        return [op.lhs] if _is_all_ones(op.rhs) else None
    return [op.lhs] if known(op.rhs) == neutral else None


def left_identity(op: Op, _: Builder) -> Result:
    """Drop the neutral operand of 0+x, 0|x, 0^x, 1*x, all ones & x."""
    assert isinstance(op, arith.Binary)
    if not _is_integer(op.lhs):
        return None
    if isinstance(op, arith.And):
        return [op.rhs] if _is_all_ones(op.lhs) else None
    return [op.rhs] if known(op.lhs) == (1 if isinstance(op, arith.Mul) else 0) else None


def absorb_zero(op: Op, _: Builder) -> Result:
    """Replace x*0, 0*x, x&0, 0&x by 0, for integers only."""
    assert isinstance(op, arith.Binary)
    for value in (op.lhs, op.rhs):
        if _is_integer(value) and known(value) == 0:
            return [value]
    return None


def remainder_by_one(op: Op, builder: Builder) -> Result:
    """Replace x % 1 by 0."""
    assert isinstance(op, arith.Rem)
    if _is_integer(op.rhs) and known(op.rhs) == 1:
        return _constant(builder, 0, op.out.type)
    return None


def add_nothing_to_pointer(op: Op, _: Builder) -> Result:
    """A pointer plus 0 is the pointer."""
    assert isinstance(op, arith.AddPtr)
    return [op.pointer] if known(op.offset) == 0 else None


def fold_select(op: Op, _: Builder) -> Result:
    """Fold a select with a constant condition or equal arms."""
    assert isinstance(op, arith.Select)
    condition = known(op.condition)
    if condition is not None:
        return [op.if_true if condition else op.if_false]
    return [op.if_true] if op.if_true is op.if_false else None


def drop_known_mask(op: Op, builder: Builder) -> Result:
    """Drop an all-true mask."""
    assert isinstance(op, tile.Load)
    if op.mask is None or known(op.mask) != True:  # noqa: E712 - None is not False here
        return None
    return [builder(tile.Load(op.pointer, None, None, op.cache, op.eviction, op.volatile)).out]


def drop_block_axes(op: Op, _: Builder) -> Result:
    """Fold a reshape after a descriptor load into the load: drop unit axes, merge leading axes."""
    assert isinstance(op, tile.Reshape)
    load = op.value.op
    if not isinstance(load, descriptor.DescriptorLoad) or len(op.value.users) > 1:
        return None
    shape = shape_of(load.out.type)
    lost = len(shape) - len(op.shape)
    if (
        lost <= 0
        or load.num_merged
        or (math.prod(first := shape[: lost + 1]), *shape[lost + 1 :]) != op.shape
    ):
        return None
    dropped = next(axis for axis, extent in enumerate(first) if axis == lost or extent > 1)
    if dropped < lost and (len(op.shape) == 1 or max(first) > MAX_BOX_ELEMS):
        return None  # a box must hold merged axes whole, and rows are cut into boxes and swizzled
    builder = Builder.before_op(load)  # at the load, for the same memory state
    hints = load.cache, load.eviction, load.num_dropped + dropped, lost - dropped
    return [builder(descriptor.DescriptorLoad(load.descriptor, load.coords, *hints)).out]


def inline_known_branch(op: Op, builder: Builder) -> Result:
    """Inline the arm of a branch with a constant condition."""
    assert isinstance(op, scf.If)
    condition = known(op.condition)
    if condition is None:
        return None
    arm = clone_block(op.then if condition else op.orelse, {})
    values = arm.terminator.operands
    arm.terminator.set_slots(())
    arm.terminator.remove()
    for nested in arm:
        nested.remove()
        builder(nested)
    return values


_BINARY: tuple[Pattern[Op], ...] = (fold_integers, right_identity)
_COMMUTATIVE: tuple[Pattern[Op], ...] = (*_BINARY, left_identity)
_SHAPE: tuple[Pattern[Op], ...] = (fold_shape,)
_PATTERNS: dict[type[Op], Sequence[Pattern[Op]]] = {
    arith.Add: _COMMUTATIVE,
    arith.Or: _COMMUTATIVE,
    arith.Xor: _COMMUTATIVE,
    arith.Mul: (*_COMMUTATIVE, absorb_zero),
    arith.And: (*_COMMUTATIVE, absorb_zero),
    arith.Sub: _BINARY,
    arith.Div: _BINARY,
    arith.Shl: _BINARY,
    arith.Shr: _BINARY,
    arith.Rem: (fold_integers, remainder_by_one),
    arith.Min: (fold_integers,),
    arith.Max: (fold_integers,),
    arith.Compare: (fold_compare,),
    arith.Cast: (fold_cast,),
    arith.Select: (fold_select,),
    arith.AddPtr: (add_nothing_to_pointer,),
    tile.Splat: _SHAPE,
    tile.Broadcast: (fold_shape, fold_splat_of_splat),
    tile.ExpandDims: (fold_shape, fold_splat_of_splat),
    tile.Reshape: (fold_shape, fold_splat_of_splat, drop_block_axes),
    tile.Trans: (fold_shape, fold_splat_of_splat, fold_trans_of_trans),
    tile.Load: (drop_known_mask,),
    scf.If: (inline_known_branch,),
}
