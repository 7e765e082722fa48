"""Branch around all-true masks, and fuse a dot's scale with the subtraction after it.

Attention masks the scores of every iteration, but only the last iterations, or those near the diagonal,
need it. A mask costs one or two instructions a score. A scale applied before the row maximum costs more:
it cannot fuse with the later subtraction. So

    y = select(mask, s * c, -inf);  m = max(row, reduce_max(y));  p = exp2(y - m)

becomes

    x, k = if all of the mask is true and 0 < c < inf: s, c   else: select(mask, s * c, -inf), 1
    m = max(row, k * reduce_max(x));  p = exp2(x * k - m)

where `x * k - m` is one multiply-add. Multiplying by a positive number is monotonic, rounding included,
so the scale can follow the maximum; multiplying by one is exact.

Only results of dots are rewritten: elsewhere memory bounds the time.

Invariant: all elements keep their bits, except for the rounding a fused multiply-add omits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tile, wgmma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import FP32, TileType, element_of
from aotc.schedule.analysis.tile_bounds import all_true
from aotc.schedule.context import Schedule

# A thread's elements; with fewer, the branch costs as much as it saves.
_FEWEST_ELEMS = 16


def branch_on_masks(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite masked and scaled results of dots."""
    del schedule
    for op in [op for op in kernel.walk() if isinstance(op, arith.Select | arith.Mul)]:
        if op.block is None or not _is_large(op.out):
            continue
        with at(op.loc):
            if isinstance(op, arith.Select):
                _rewrite(op.out, op.if_true, op.condition)
            elif _scale_of(op.out) is not None and _max_of(op.out) is not None:
                _rewrite(op.out, op.out, None)


def _rewrite(masked: Value, value: Value, mask: Value | None) -> None:
    """Rewrite a masked or scaled tile if a dot computes it; `value` is the unmasked tile."""
    op = masked.op
    assert op is not None
    dot, scale = _scale_of(value) or (value, None)
    is_reduced = _max_of(masked) is not None
    is_dot = _is_dot_result(dot) or (is_reduced and _is_carried_dot(dot))
    if not is_dot or not (is_reduced or _is_in_loop(op)):
        return
    factor = scale if is_reduced else None
    builder = Builder.before_op(op)
    conditions: list[Value] = []
    if mask is not None:
        condition = all_true(mask, builder)
        if condition is None:
            return
        conditions.append(condition)
    if factor is not None:
        conditions.append(_is_positive(factor, builder))
    if not conditions:
        return
    holds = conditions[0]
    for positive in conditions[1:]:
        holds = builder(arith.And(holds, positive)).out
    _hoist(builder.added)
    then, otherwise = Block(), Block()
    slow = Builder(otherwise)
    mapping: dict[Value, Value] = {}
    if factor is not None and value.op is not None and value is not masked:
        # The product is computed in the branch alone.
        mapping[value] = slow(value.op.clone({})).results[0]
    results = [slow(op.clone(mapping)).results[0]]
    if factor is not None:
        results.append(slow(arith.Constant(1.0, FP32)).out)
    slow(scf.Yield(results))
    Builder(then)(scf.Yield([value] if factor is None else [dot, factor]))
    branch = builder(build(scf.If, [holds], {}, [then, otherwise], op.loc))
    if factor is None:
        op.replace_with(branch.outs)
        return
    _spread(masked, branch.outs[0], branch.outs[1])
    op.erase()


def _is_positive(factor: Value, builder: Builder) -> Value:
    """Return whether a factor is positive and finite."""
    zero, infinity = (builder(arith.Constant(bound, FP32)).out for bound in (0.0, math.inf))
    above = builder(arith.Compare(zero, factor, "lt")).out
    below = builder(arith.Compare(factor, infinity, "lt")).out
    return builder(arith.And(above, below)).out


def _hoist(ops: Sequence[Op]) -> None:
    """Hoist scalar ops, in order, out of loops defining none of their operands."""
    for op in ops:
        target = op
        for ancestor in op.ancestors():
            if not ancestor.has(Trait.LOOP) or any(
                is_inside(v.owner, ancestor) for v in op.operands
            ):
                break
            target = ancestor
        if target is not op:
            op.remove()
            Builder.before_op(target)(op)


def _spread(old: Value, new: Value, factor: Value) -> None:
    """Replace `old` by `new * factor` in its users; the maximum is scaled after it."""
    for user in dict.fromkeys(old.users):
        builder = Builder.before_op(user)
        if user is _max_of(old):
            clone = builder(user.clone({old: new}))
            user.replace_with([_scaled(clone.results[0], factor, builder)])
        else:
            user.replace_operand(old, _scaled(new, factor, builder))


def _scaled(value: Value, factor: Value, builder: Builder) -> Value:
    kind = value.type
    assert isinstance(kind, TileType)
    return builder(arith.Mul(value, builder(tile.Splat(factor, kind.shape, kind.layout)).out)).out


def _scale_of(value: Value) -> tuple[Value, Value] | None:
    """Return the unscaled tile and its scalar scale, or None."""
    op = value.op
    if not isinstance(op, arith.Mul) or element_of(value.type) != FP32:
        return None
    for tile_, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        if isinstance(other.op, tile.Splat):
            return tile_, other.op.value
    return None


def _max_of(value: Value) -> gpu.Reduce | None:
    """Return the max-reduction of a tile if all its other users subtract from it."""
    reduction: gpu.Reduce | None = None
    for user in value.users:
        if isinstance(user, gpu.Reduce) and _takes_max(user) and reduction is None:
            reduction = user
        elif not isinstance(user, arith.Sub) or user.lhs is not value:
            return None
    return reduction


def _takes_max(op: gpu.Reduce) -> bool:
    first, *rest = op.combine
    return (
        isinstance(first, arith.Max)
        and not first.propagate_nan
        and {first.lhs, first.rhs} == set(op.combine.args)
        and len(rest) == 1
    )


def _is_dot_result(value: Value) -> bool:
    return value.op is not None and (
        value.op.has(Trait.DOT) or isinstance(value.op, wgmma.WgmmaWait)
    )


def _is_carried_dot(value: Value) -> bool:
    """Return whether a loop carries the previous iteration's dot result in `value`."""
    loop = value.owner.parent if isinstance(value.owner, Block) else None
    if not isinstance(loop, scf.For) or value.index == 0:
        return False
    return _is_dot_result(loop.body.terminator.operands[value.index - 1])


def _is_in_loop(op: Op) -> bool:
    return any(ancestor.has(Trait.LOOP) for ancestor in op.ancestors())


def _is_large(value: Value) -> bool:
    kind = value.type
    return (
        isinstance(kind, TileType)
        and kind.layout is not None
        and kind.layout.in_size("register") >= _FEWEST_ELEMS
    )
