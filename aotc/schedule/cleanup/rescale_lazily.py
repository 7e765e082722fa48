"""Conditional rescaling: keep the softmax reference until weights grow large.

The online softmax subtracts a reference, at least the maximum, from the scores. In every iteration it
rescales sums and accumulators by the reference's movement:

    m' = max(m, reduce_max(x));  p = exp2(x - m');  f = exp2(m - m');  s = s * f + sum of p;  acc = acc * f

Another reference multiplies p, s and acc by one factor, which cancels in their quotients. So the old
reference serves too, without a maximum, unless weights leave the range of their type:

    q = exp2(x - m)  (but in the first iteration)
    if all sums of a thread's q in this warp are less than 2^15: p, m', f = q, m, 1
    else: as before
    acc = acc if all f in this warp are 1 else acc * f

In nearly all iterations but the first, a score costs a multiply-add, an exponential, an addition and half a
conversion. No exponential waits for a maximum and its shuffles.

Invariant: `mark_references` has proved the kernel's results independent of the reference. Where it is a whole
number, values change by powers of two, with the same rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, roles, scf, tile, wgmma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, copy_ops
from aotc.ir.types import FP32, I1, ScalarType, TileType, element_of
from aotc.schedule.analysis.references import has_room_for_scores
from aotc.schedule.context import Schedule

# Larger sums of a thread's weights move the reference, so that weights fit fp16, below 2^16.
_LARGEST_SUM = 2.0**15
# A thread's elements; with fewer, the branch costs as much as it saves.
_FEWEST_ELEMS = 16


def rescale_lazily(kernel: Kernel, schedule: Schedule) -> None:
    """Compute weights by the previous reference, and branch around rescaling."""
    factors: list[Value] = []
    for op in [op for op in kernel.walk() if isinstance(op, arith.Max) and op.is_reference]:
        softmax = _find(op)
        if softmax is not None:
            with at(op.loc):
                has_room = not _has_dot_in_flight(op) and _has_registers(softmax, kernel, schedule)
                factors.append(_rewrite(softmax) if has_room else softmax.factor[-1].results[0])
    for op in list(dict.fromkeys(_products(factors))):
        with at(op.loc):
            _branch_on_factor(op)


@dataclass(frozen=True)
class _Softmax:
    """The ops of one online-softmax step, each list in program order.

    `candidate` computes the new reference from the scores. `weights` computes weights and their sums from
    scores and a reference. `factor` computes the rescaling factor.
    """

    old: Value
    new: arith.Max
    candidate: Sequence[Op]
    weights: Sequence[Op]
    power: Op
    factor: Sequence[Op]
    total: Op


def _find(new: arith.Max) -> _Softmax | None:
    """Return the softmax step with `new` as its reference, or None."""
    for old, other in ((new.lhs, new.rhs), (new.rhs, new.lhs)):
        candidate = _candidate(other)
        if candidate is None or old.op is not None:
            continue
        spread = _spread(new.out)
        diff = _only(user for value in spread for user in value.users if _subtracts(user, value))
        factor = _only(user for user in new.out.users if _subtracts(user, new.out, old))
        if diff is None or factor is None:
            continue
        power, scaled = _only(diff.results[0].users), diff.operands[0].op
        grown = _only(factor.results[0].users)
        if not isinstance(power, arith.Exp2 | arith.Exp) or not isinstance(grown, type(power)):
            continue
        sums = _sums(power.results[0])
        if not sums:
            continue
        shapes = [value.op for value in spread if value.op is not None and value is not new.out]
        scaling = _scaling(scaled)
        weights = [*scaling, *shapes, diff, power, *sums]
        narrow = _only(user for user in power.out.users if user not in sums)
        if isinstance(narrow, arith.Cast) and narrow.block is new.block:
            # Converting each weight at once halves the registers to keep it.
            weights, power = [*weights, narrow], narrow
        return _Softmax(old, new, candidate, weights, power, [factor, grown], sums[-1])
    return None


def _has_registers(softmax: _Softmax, kernel: Kernel, schedule: Schedule) -> bool:
    """Return whether the register budget holds scores and weights together."""
    loop, role = softmax.new.parent_op, None
    for ancestor in softmax.new.ancestors():
        role = ancestor if isinstance(ancestor, roles.Specialize) else role
    scores = softmax.candidate[0].operands[0]
    while isinstance(scores.op, scf.If):  # masked in one arm, in the same registers
        scores = scores.op.then.terminator.operands[scores.index]
    live = [scores, softmax.power.results[0]]
    return isinstance(loop, scf.For) and has_room_for_scores(loop, live, role, kernel, schedule)


def _has_dot_in_flight(position: Op) -> bool:
    """Return whether a dot is in flight at `position`.

    Its register operand and the scores are then live besides the weights.
    """
    op = position.next
    while op is not None:
        if isinstance(op, wgmma.WgmmaWait):
            dots = [value.op for value in op.operands]
            if any(
                dot is not None and dot.block is op.block and _is_before(dot, position)
                for dot in dots
            ):
                return True
        op = op.next
    return False


def _is_before(op: Op, other: Op) -> bool:
    while op.next is not None:
        op = op.next
        if op is other:
            return True
    return False


def _scaling(op: Op | None) -> list[Op]:
    """Return the ops scaling scores ahead of the subtraction, to fuse with it."""
    if not isinstance(op, arith.Mul) or len(op.out.users) != 1:
        return []
    return [*(operand.op for operand in op.operands if isinstance(operand.op, tile.Splat)), op]


def _candidate(value: Value) -> list[Op] | None:
    """Return the ops computing, scaling and rounding a row maximum, in program order, or None."""
    steps: list[Op] = []
    while value.op is not None and len(value.users) == 1:
        op = value.op
        steps.insert(0, op)
        if isinstance(op, gpu.Reduce):
            return steps if _is_large(op.inputs[0]) else None
        if isinstance(op, arith.Ceil):
            value = op.value
        elif isinstance(op, arith.Mul) and isinstance(op.rhs.op, tile.Splat):
            value = op.lhs
        else:
            return None
    return None


def _spread(value: Value) -> list[Value]:
    """Return a row value and its reshaped or broadcast forms, in order."""
    forms = [value]
    for form in forms:
        for user in form.users:
            is_shape = user.has(Trait.SHAPE_ONLY) or isinstance(user, gpu.Convert)
            if is_shape and user.results[0] not in forms:
                forms.append(user.results[0])
    return forms


def _subtracts(op: Op, value: Value, other: Value | None = None) -> bool:
    return (
        isinstance(op, arith.Sub)
        and op.rhs is value
        and (op.lhs is other if other is not None else _is_large(op.lhs))
    )


def _sums(power: Value) -> list[Op]:
    """Return the reductions summing weights, in program order."""
    reductions: list[Op] = []
    values = [power]
    for value in values:
        for user in value.users:
            if isinstance(user, tile.Reshape) or (isinstance(user, gpu.Reduce) and _adds(user)):
                reductions.append(user)
                values += user.results
    return reductions if reductions and isinstance(reductions[-1], gpu.Reduce) else []


def _adds(op: gpu.Reduce) -> bool:
    ops = list(op.combine)
    return len(ops) == 2 and isinstance(ops[0], arith.Add)


def _only(ops: Iterable[Op]) -> Op | None:
    first, *rest = [*dict.fromkeys(ops)] or [None]
    return None if rest else first


def _rewrite(softmax: _Softmax) -> Value:
    """Branch around a softmax's maximum; return the rescaling factor."""
    builder = Builder.before_op(softmax.new)
    power, total, is_small = _weigh_early(softmax, builder)
    grown = softmax.factor[-1].results[0]
    shapes, products = _products_ahead(softmax)
    outs = [softmax.power.results[0], softmax.total.results[0], softmax.new.out, grown, *products]
    then, otherwise = Block(), Block()
    keep = Builder(then)
    unit = keep(arith.Constant(1.0, grown.type)).out
    outputs = [power, total, softmax.old, unit, *products.values()]
    keep(scf.Yield(outputs))
    slow = Builder(otherwise)
    ops = [*softmax.candidate, softmax.new, *softmax.weights, *softmax.factor, *shapes]
    ops += [value.op for value in products if value.op is not None]
    late = copy_ops(ops, {}, slow)
    slow(scf.Yield([late[out] for out in outs]))
    branch = builder(build(scf.If, [is_small], {}, [then, otherwise], softmax.new.loc))
    for old, new in zip(outs, branch.outs, strict=True):
        for user in dict.fromkeys(old.users):
            if user not in ops:
                user.replace_operand(old, new)
    for op in reversed(ops):
        if not any(value.users for value in op.results):
            op.erase()
    return branch.outs[3]


def _weigh_early(softmax: _Softmax, builder: Builder) -> tuple[Value, Value, Value]:
    """Return weights by the previous reference, their sums, and whether the warp's sums are small.

    The first iteration skips them and counts as not small.
    """
    loop = softmax.new.parent_op
    assert isinstance(loop, scf.For)
    is_first = builder(arith.Compare(loop.induction, loop.lower, "eq")).out
    then, otherwise = Block(), Block()
    skip, weigh = Builder(then), Builder(otherwise)
    early = copy_ops(softmax.weights, {softmax.new.out: softmax.old}, weigh)
    power, total = early[softmax.power.results[0]], early[softmax.total.results[0]]
    limit = weigh(arith.Constant(_LARGEST_SUM, total.type)).out
    small = weigh(gpu.WarpAll(weigh(arith.Compare(total, limit, "lt")).out)).out
    weigh(scf.Yield([power, total, small]))
    # Scores stand in for the weights: undefined 16-bit weights would be zeroed in each iteration.
    scores = softmax.candidate[0].operands[0]
    dtype = element_of(power.type)
    if power.type != scores.type:
        assert isinstance(dtype, ScalarType)
        scores = skip(arith.Cast(scores, dtype)).out
    unused = [scores, skip(gpu.Undefined(total.type)).out]
    skip(scf.Yield([*unused, skip(arith.Constant(value=False, type=I1)).out]))
    branch = builder(build(scf.If, [is_first], {}, [then, otherwise], softmax.new.loc))
    power, total, is_small = branch.outs
    return power, total, is_small


def _products_ahead(softmax: _Softmax) -> tuple[list[Op], dict[Value, Value]]:
    """Return the factor's broadcasts, and its products with the values multiplied.

    The multiplied values are computed ahead of the branch, so the products can move into it.
    """
    values = _spread(softmax.factor[-1].results[0])
    products: dict[Value, Value] = {}
    for value in values:
        for user in value.users:
            if isinstance(user, arith.Mul) and user.block is softmax.new.block:
                scaled = user.lhs if user.rhs is value else user.rhs
                is_ahead = scaled.op is None or _is_before(scaled.op, softmax.new)
                if is_ahead and scaled is not value:
                    products[user.out] = scaled
    operands = {
        operand for value in products if value.op is not None for operand in value.op.operands
    }
    shapes: list[Op] = []
    for value in reversed(values[1:]):
        if value in operands and value.op is not None and value.op.block is softmax.new.block:
            shapes.insert(0, value.op)
            operands.update(value.op.operands)
    return shapes, products


def _products(factors: Sequence[Value]) -> Iterator[arith.Mul]:
    """Yield products of large tiles with row factors, in this iteration or the next."""
    seen = dict.fromkeys(factors)
    values = list(seen)
    for value in values:
        for user in value.users:
            following: Sequence[Value] = ()
            if isinstance(user, arith.Mul):
                if _is_large(user.out):
                    yield user
            elif user.has(Trait.SHAPE_ONLY) or isinstance(user, gpu.Convert):
                following = user.results
            elif isinstance(user, scf.Yield) and isinstance(user.parent_op, scf.For):
                loop = user.parent_op
                indices = [i for i, candidate in enumerate(user.operands) if candidate is value]
                following = [
                    candidate for i in indices for candidate in (loop.carried[i], loop.outs[i])
                ]
            new = [candidate for candidate in following if candidate not in seen]
            seen.update(dict.fromkeys(new))
            values += new


def _branch_on_factor(op: arith.Mul) -> None:
    """Multiply a tile by row factors only if a factor of the warp is not 1."""
    for scaled, spread in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        chain: list[Op] = []
        value = spread
        while value.op is not None and isinstance(value.op, tile.Broadcast | gpu.Convert):
            if value.op.block is not op.block:
                break
            chain.insert(0, value.op)
            value = value.op.operands[0]
        if not chain:
            continue
        builder = Builder.before_op(op)
        unit = builder(arith.Constant(1.0, value.type)).out
        is_one = builder(gpu.WarpAll(builder(arith.Compare(value, unit, "eq")).out)).out
        then, otherwise = Block(), Block()
        Builder(then)(scf.Yield([scaled]))
        slow = Builder(otherwise)
        product = copy_ops([*chain, op], {}, slow)[op.out]
        slow(scf.Yield([product]))
        branch = builder(build(scf.If, [is_one], {}, [then, otherwise], op.loc))
        op.replace_with(branch.outs)
        return


def _is_large(value: Value) -> bool:
    kind = value.type
    return (
        isinstance(kind, TileType)
        and element_of(kind) == FP32
        and kind.layout is not None
        and kind.layout.in_size("register") >= _FEWEST_ELEMS
    )
