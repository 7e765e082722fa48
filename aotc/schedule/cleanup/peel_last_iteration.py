"""Peel a loop's last iteration where only there a branch over loads goes the other way.

Kernels write `if start + BLOCK > end:` around a masked load, with an unmasked load in the other arm: only
the last block is partial. The branch keeps both loads from being pipelined. So the loop splits into one
for all iterations but the last, with a constant condition, and one for the last.

Invariant: the iterations are the same, in the same order, for every bound and step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.context import Schedule

_MIRRORED: dict[arith.Predicate, arith.Predicate] = {
    "lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne",
}  # fmt: skip
_NEGATED = {"lt": "ge", "le": "gt", "ne": "eq"}


def peel_last_iteration(kernel: Kernel, schedule: Schedule) -> None:
    """Peel innermost loops with such a branch, unless the kernel becomes too large."""
    num_ops = sum(1 for _ in kernel.walk())
    for loop in [op for op in kernel.walk() if isinstance(op, scf.For)]:
        if any(isinstance(op, scf.For | scf.While) for op in loop.body.walk()):
            continue
        decided = dict(_known(loop))
        num_ops += sum(1 for _ in loop.body.walk())
        if decided and num_ops <= schedule.max_ops:
            with at(loop.loc):
                _peel(loop, decided)


def _known(loop: scf.For) -> Iterator[tuple[scf.If, bool]]:
    """Yield branches over loads with a condition constant before the last iteration."""
    for op in loop.body:
        if isinstance(op, scf.If) and any(map(_has_load, op.blocks)):
            value = _before_the_last(op.condition, loop)
            if value is not None:
                yield op, value


def _has_load(block: Block) -> bool:
    return any(isinstance(op, tile.Load) for op in block.walk())


def _before_the_last(condition: Value, loop: scf.For) -> bool | None:
    """Return a comparison's value while induction + step < bound, or None if it varies.

    `induction + a` and `bound - b` do not wrap then, for a and b from 0 up to the step.
    """
    compare, step = condition.op, _constant(loop.step)
    if not isinstance(compare, arith.Compare) or step is None:
        return None
    lhs, rhs, predicate = _shifted(compare.lhs), _shifted(compare.rhs), compare.predicate
    if rhs.value is loop.induction:
        lhs, rhs, predicate = rhs, lhs, _MIRRORED[predicate]
    if lhs.value is not loop.induction or rhs.value is not loop.upper:
        return None
    if not (0 <= lhs.by <= step and -step <= rhs.by <= 0):
        return None
    # lhs - rhs = induction - bound + distance <= distance - step - 1.
    most = lhs.by - rhs.by - step - 1
    is_negated = predicate in _NEGATED
    predicate = _NEGATED.get(predicate, predicate)
    if most < 0 or (predicate == "gt" and most == 0):
        return is_negated
    return None


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A value plus a constant."""

    value: Value
    by: int


def _shifted(value: Value) -> _Shifted:
    op = value.op
    if isinstance(op, arith.Add | arith.Sub):
        by = _constant(op.rhs)
        if by is not None:
            return _Shifted(op.lhs, by if isinstance(op, arith.Add) else -by)
    return _Shifted(value, 0)


def _constant(value: Value) -> int | None:
    op = value.op
    return int(op.value) if isinstance(op, arith.Constant) else None


def _peel(loop: scf.For, conditions: dict[scf.If, bool]) -> None:
    builder = Builder.before_op(loop)
    last = lowered_bounds(loop, 1, builder)[1]
    hints = dict(loop.attributes)
    main = [loop.lower, last, loop.step, *loop.init, loop.lower]
    *carried, following = builder(
        build(scf.For, main, hints, [_body(loop, conditions)], loop.loc)
    ).outs
    rest = [following, loop.upper, loop.step, *carried]
    # One iteration: nothing could be loaded ahead.
    hints |= {"num_stages": 1, "unroll": scf.NEVER_UNROLLED}
    tail = builder(build(scf.For, rest, hints, [_body(loop, {}, is_last=True)], loop.loc))
    loop.replace_with(tail.outs)


def _body(loop: scf.For, conditions: dict[scf.If, bool], *, is_last: bool = False) -> Block:
    """Return the body with decided branches inlined; except for the last, also carry the next index."""
    args = [*loop.body.args, *([] if is_last else [loop.induction])]
    block = Block([arg.type for arg in args], [arg.hint for arg in args])
    builder = Builder(block)
    mapping = dict(zip(loop.body.args, block.args, strict=False))

    def copied(ops: Block) -> list[Value]:
        for op in ops:
            if op.terminator:
                break
            if isinstance(op, scf.If) and op in conditions:
                arm = op.then if conditions[op] else op.orelse
                mapping.update(zip(op.results, copied(arm), strict=True))
            else:
                builder(op.clone(mapping))
        return [mapping.get(value, value) for value in ops.terminator.operands]

    out = copied(loop.body)
    if not is_last:
        out.append(builder(arith.Add(block.args[0], loop.step)).out)
    builder(scf.Yield(out))
    return block
