"""Find softmax references (running maxima) on which a kernel's results do not depend.

The online softmax subtracts a running maximum, the *reference*, from each row's scores, and rescales its
sums whenever the maximum moves:

    m' = max(m, reduce_max(x));  p = exp2(x - m');  f = exp2(m - m');  s = s * f + sum of p

Lowering it by d multiplies weights and sums by 2^d, and leaves the stored quotients and logarithms
unchanged. This pass proves the property for a loop and marks the maximum `is_reference`, so
`rescale_lazily` may skip it. A later loop may go on with the reference and all that follows it, as masked
blocks of keys come after others. If references are whole numbers, as with `ceil(reduce_max(x))`, results are the
same to the bit. Others are marked only if the config asks for `conditional_rescaling`: weights and sums are
rounded elsewhere, by as much. Then `exp` and `log` serve as well.

A value's *degree* (a, b) tells how it follows its rows' references. Lowering them by d0 at the start of an
iteration and by d1 at its end multiplies the value by 2^(a d0 + b d1). A value of kind shift, such as a
reference, drops by a d0 + b d1 instead. The terms of a sum share one degree, and products add degrees.
Results outside the rows, memory above all, must have degree 0.

Invariant: multiplying by a power of two is exact except near the ends of a type's range. `rescale_lazily`
bounds d by 15 and weights by 2^15.
Source: FlashAttention-4, conditional rescaling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import BF16, FP16, FP32, TileType, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark

# Weights stay below 2^15 and so fit fp16; sums and accumulators are unbounded.
_WIDE = (FP32, BF16)

# Loops may go on with a reference one after another, and each is proved with all that follow.
_MAX_LOOPS = 32

_Base: TypeAlias = tuple[type[arith.Unary], type[arith.Unary]]
# Exponential and logarithm of one base; powers of two scale floats exactly.
_EXACT: tuple[_Base, ...] = ((arith.Exp2, arith.Log2),)
_BASES: tuple[_Base, ...] = (*_EXACT, (arith.Exp, arith.Log))


def mark_references(kernel: Kernel, schedule: Schedule) -> None:
    """Mark the references of loops whose results do not depend on them."""
    asked = schedule.config.conditional_rescaling
    if asked is False:
        return
    loops = [op for op in kernel.walk() if isinstance(op, scf.For)]
    for loop in loops if len(loops) <= _MAX_LOOPS else ():
        references = [
            (arg, new) for arg in loop.carried if (new := _reference(loop, arg)) is not None
        ]
        if len(references) != 1:
            continue
        arg, new = references[0]
        is_whole = _is_whole(loop, arg, new)
        if not is_whole and _truncates_weights(loop):
            continue
        if not _is_free(loop, arg, new, _EXACT if is_whole and not asked else _BASES):
            continue
        if is_whole or asked:
            new.replace_with(Builder.before_op(new)(new.clone({}, is_reference=True)).results)
        else:
            schedule.remark(new.loc, Remark.RESCALED_ALWAYS())


def _reference(loop: scf.For, arg: Value) -> arith.Max | None:
    """Return the op computing the next value of `arg` as max(arg, ...) by rows, or None."""
    op = loop.body.terminator.operands[arg.index - 1].op
    if not isinstance(op, arith.Max) or op.block is not loop.body or element_of(arg.type) != FP32:
        return None
    is_rows = isinstance(arg.type, TileType) and len(arg.type.shape) == 1
    return op if is_rows and arg in op.operands else None


def _is_whole(loop: scf.For, arg: Value, new: arith.Max) -> bool:
    """Return whether a reference is a whole number in each iteration, also of loops going on."""
    init = loop.init[arg.index - 1]
    if isinstance(init.op, scf.For):
        earlier = init.op.carried[init.index]
        before = _reference(init.op, earlier)
        return before is not None and _is_whole(init.op, earlier, before)
    starts_whole = isinstance(init.op, arith.Constant) and float(init.op.value).is_integer()
    return starts_whole and _is_rounded(loop, arg, new)


def _is_rounded(loop: scf.For, arg: Value, new: arith.Max) -> bool:
    """Return whether candidates for a reference are rounded up, also in loops going on with it."""
    out = loop.outs[arg.index - 1]
    following = [
        (user, user.carried[index], _reference(user, user.carried[index]))
        for user in out.users
        if isinstance(user, scf.For)
        for index, init in enumerate(user.init)
        if init is out
    ]
    return any(isinstance(value.op, arith.Ceil) for value in new.operands) and all(
        op is not None and _is_rounded(later, value, op) for later, value, op in following
    )


def _truncates_weights(loop: scf.For) -> bool:
    """Return whether a dot may round fp32 operands to tf32, which verification takes for exact."""
    dots = [op for op in loop.body if isinstance(op, tile.Dot)]
    return any(element_of(operand.type) == FP32 for dot in dots for operand in (dot.a, dot.b))


@dataclass(frozen=True)
class _Degree:
    """How a value follows its rows' references: as a factor or a `shift`, rows along `axis`."""

    start: int = 0
    end: int = 0
    shift: bool = False
    axis: int = 0

    @property
    def is_free(self) -> bool:
        """Whether the value is independent of the references."""
        return not self.start and not self.end


_FREE = _Degree()


class _DependsError(Exception):
    """A result depends on the reference."""


def _is_free(loop: scf.For, reference: Value, new: arith.Max, bases: Collection[_Base]) -> bool:
    """Return whether the loop's results are independent of the reference, in one of `bases`."""
    return any(_degrees(loop, reference, new, base) is not None for base in bases)


def _degrees(loop: scf.For, reference: Value, new: arith.Max, base: _Base) -> list[_Degree] | None:
    """Return the degrees of carried values, or None if a result depends on the reference."""
    # Sums and accumulators rescaled by the reference's movement follow it.
    rescaled = {arg: _Degree(start=-1) for arg in loop.carried if arg is not reference}
    followers: dict[Value, _Degree] = {
        reference: _Degree(1, shift=True),
        new.out: _Degree(end=1, shift=True),
    }
    for arg in _rescaled(loop, followers, list(rescaled), base):
        followers[arg] = replace(rescaled[arg], axis=_rows_axis(arg, reference))
    walk = _Walk(followers, base)
    try:
        walk.block(loop.body, passed=new)
        after = _Walk({}, base)
        for arg, out, value in zip(
            loop.carried, loop.outs, loop.body.terminator.operands, strict=True
        ):
            at_start, at_end = walk.of(arg), walk.of(value)
            if at_end != replace(at_start, start=0, end=at_start.start):
                return None
            after.degrees[out] = at_start
        after.rest(loop)
    except _DependsError:
        return None
    return [walk.of(arg) for arg in loop.carried]


def _rows_axis(value: Value, reference: Value) -> int:
    """Return an accumulator's row axis: the first as long as the reference, or axis 0."""
    assert isinstance(reference.type, TileType)
    shape = value.type.shape if isinstance(value.type, TileType) else ()
    return next((axis for axis, extent in enumerate(shape) if extent == reference.type.shape[0]), 0)


def _rescaled(
    loop: scf.For, followers: dict[Value, _Degree], args: Sequence[Value], base: _Base
) -> list[Value]:
    """Return carried variables rescaled by the reference's movement."""
    walk = _Walk(dict(followers), base, strict=False)
    walk.block(loop.body)
    products: list[Value] = []
    for op in loop.body:
        if isinstance(op, arith.Mul):
            for multiplicand, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                degree = walk.of(factor)
                if multiplicand in args and (degree.start, degree.end, degree.shift) == (
                    1,
                    -1,
                    False,
                ):
                    products.append(multiplicand)
    return products


class _Walk:
    """Propagate degrees from operands to results, op by op."""

    def __init__(self, degrees: dict[Value, _Degree], base: _Base, *, strict: bool = True) -> None:
        self.degrees = degrees
        self.base = base
        self.strict = strict

    def of(self, value: Value) -> _Degree:
        """Return the degree of a value, free by default."""
        return self.degrees.get(value, _FREE)

    def block(self, block: Block, passed: Op | None = None) -> None:
        """Walk a block, skipping the op `passed`, whose degree is set already."""
        for op in block:
            if op is not passed and not op.terminator:
                self.op(op)

    def rest(self, loop: scf.For) -> None:
        """Walk the ops after a loop; raise if another block uses its results."""
        op = loop.next
        while op is not None:
            if not (isinstance(op, scf.For) and self._goes_on(op)):
                self.op(op)
            op = op.next
        for value, degree in self.degrees.items():
            if not degree.is_free and any(user.block is not loop.block for user in value.users):
                raise _DependsError

    def _goes_on(self, loop: scf.For) -> bool:
        """Return whether a loop goes on with the reference: its own proof covers its results."""
        inside = [value for value, degree in self.degrees.items() if not degree.is_free]
        if any(is_inside(user, loop) for value in inside for user in value.users):
            return False
        for arg in loop.carried:
            new = _reference(loop, arg)
            if new is not None and not self.of(loop.init[arg.index - 1]).is_free:
                return _degrees(loop, arg, new, self.base) == list(map(self.of, loop.init))
        return False

    def op(self, op: Op) -> None:
        """Set the degrees of the results of an op."""
        if op.blocks and not isinstance(op, tile.Reduce):
            inside = [value for value, degree in self.degrees.items() if not degree.is_free]
            if any(is_inside(user, op) for value in inside for user in value.users):
                self._depends()
        operands = [self.of(value) for value in op.operands]
        if all(operand.is_free for operand in operands):
            return
        try:
            degree = _degree(op, operands, self.base)
        except _DependsError:
            self._depends()
            return
        for value in op.results:
            self.degrees[value] = degree

    def _depends(self) -> None:
        if self.strict:
            raise _DependsError


def _degree(op: Op, operands: Sequence[_Degree], base: _Base) -> _Degree:
    """Return the degree of an op's results, some operand following a reference."""
    if isinstance(op, tile.Dot):
        return _degree_of_dot(op, operands)
    if isinstance(op, tile.Reduce):
        return _degree_of_reduction(op, operands)
    axes = {source_degree.axis for source_degree in operands if not source_degree.is_free}
    if len(axes) > 1:
        raise _DependsError
    (axis,) = axes
    if op.has(Trait.SHAPE_ONLY) or op.has(Trait.SAME_VALUES):
        return replace(operands[0], axis=_moved_axis(op, axis))
    if any(
        not source_degree.is_free and element_of(value.type) not in _WIDE
        for value, source_degree in zip(op.operands, operands, strict=True)
    ):
        raise _DependsError
    if isinstance(op, arith.Cast):
        return _degree_of_cast(op, operands[0])
    if isinstance(op, base):
        (degree,) = operands
        if degree.shift != isinstance(op, base[0]):
            raise _DependsError
        return replace(degree, shift=not degree.shift)
    if isinstance(op, arith.Mul | arith.Div):
        sign = 1 if isinstance(op, arith.Mul) else -1
        return _sum_of(operands, sign, shift=False)
    left, *rest = operands
    if isinstance(op, arith.Sub | arith.Add) and (left.shift or rest[0].shift):
        return _sum_of(operands, 1 if isinstance(op, arith.Add) else -1, shift=True)
    if isinstance(op, arith.Add | arith.Sub | arith.MinMax):
        return _common(op.operands, operands)
    if isinstance(op, arith.Compare):
        _common(op.operands, operands)
        return _FREE
    if isinstance(op, arith.Select) and left.is_free:
        return _common(op.operands[1:], rest)
    raise _DependsError


def _sum_of(operands: Sequence[_Degree], sign: int, *, shift: bool) -> _Degree:
    """Return the degree of a product or quotient of factors, or of a sum or difference of shifts."""
    left, right = operands
    if any(degree.shift != shift for degree in operands if not degree.is_free):
        raise _DependsError
    start, end = left.start + sign * right.start, left.end + sign * right.end
    return _Degree(start, end, shift, right.axis if left.is_free else left.axis)


def _common(values: Sequence[Value], operands: Sequence[_Degree]) -> _Degree:
    """Return the operands' common degree; a zero constant matches any that is no shift."""
    is_shift = any(degree.shift for degree in operands if not degree.is_free)
    degrees = {
        degree
        for value, degree in zip(values, operands, strict=True)
        if is_shift or not degree.is_free or not _is_zero(value)
    }
    if len(degrees) != 1:
        raise _DependsError
    return degrees.pop()


def _is_zero(value: Value) -> bool:
    return isinstance(value.op, arith.Constant) and not value.op.value


def _degree_of_cast(op: arith.Cast, degree: _Degree) -> _Degree:
    element = element_of(op.results[0].type)
    is_weight = isinstance(op.operands[0].op, arith.Exp | arith.Exp2) and element == FP16
    if degree.shift or not (element in _WIDE or is_weight):
        raise _DependsError
    return degree


def _degree_of_dot(op: tile.Dot, operands: Sequence[_Degree]) -> _Degree:
    """Return the degree of a dot with one following operand, along a kept axis."""
    rank = len(op.a.type.shape) if isinstance(op.a.type, TileType) else 0
    by_value = dict(zip(op.operands, operands, strict=True))
    a, b, acc = (by_value[value] for value in (op.a, op.b, op.acc))
    factor = b if a.is_free else a
    stays = factor.axis == (rank - 1 if a.is_free else rank - 2)
    is_wide = element_of(op.acc.type) == FP32
    if factor.shift or not (a.is_free or b.is_free) or not stays or not is_wide:
        raise _DependsError
    return _common([op.a, op.acc], [factor, acc])


def _degree_of_reduction(op: tile.Reduce, operands: Sequence[_Degree]) -> _Degree:
    """Return the degree of a sum or extremum along another axis than the rows'."""
    first, *rest = op.combine
    is_one = len(operands) == 1 and len(rest) == 1 and isinstance(first, arith.Add | arith.MinMax)
    (degree, *_) = operands
    is_sum_of_shifts = degree.shift and isinstance(first, arith.Add)
    is_wide = element_of(op.inputs[0].type) in _WIDE
    if not is_one or is_sum_of_shifts or not is_wide or degree.axis == op.axis:
        raise _DependsError
    return replace(degree, axis=degree.axis - (op.axis < degree.axis))


def _moved_axis(op: Op, axis: int) -> int:
    """Return the position of `axis` after a shape op."""
    if isinstance(op, tile.ExpandDims):
        return axis + (op.axis <= axis)
    if isinstance(op, tile.Trans):
        return op.order.index(axis)
    if isinstance(op, tile.Broadcast | tile.Hint) and _shape(op.operands[0])[axis] > 1:
        return axis
    if isinstance(op, tile.Reshape):
        old, new = _shape(op.value), op.shape
        for new_axis, extent in enumerate(new):
            if extent == old[axis] and _product(new[:new_axis]) == _product(old[:axis]):
                return new_axis
    raise _DependsError


def _shape(value: Value) -> tuple[int, ...]:
    return value.type.shape if isinstance(value.type, TileType) else ()


def _product(extents: Iterable[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product
