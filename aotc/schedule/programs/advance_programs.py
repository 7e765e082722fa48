"""Compute the numbers of a CTA's next program while the results of this one are converted.

The loop of a persistent kernel begins with what its program is: row, head and block, by divisions
that take some hundred cycles one after the other. At the head of an iteration a consumer has nothing
else to do, with its operands loaded. After the dots of the program before, it has: conversions of
the accumulators are between these divisions. So they are computed there for the next iteration,
and carried to it; before the loop, for the first one. Past the last program they are computed for
that once more.

It is not done where the conversion itself waits for the next mainloop, as `overlap_epilogue` has it.

Invariant: only pure ops on scalars move, whose operands are the loop's own number and what is
computed before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, mbarrier, roles, scf
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, append_carried, pass_on
from aotc.ir.tiles import is_tile
from aotc.schedule.context import Schedule


def advance_programs(kernel: Kernel, schedule: Schedule) -> None:
    """Carry the numbers of programs through a persistent kernel's loop over them."""
    del schedule
    if not kernel.is_persistent or kernel.num_consumer_groups > 1:
        return
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        for loop in [op for op in role.consumers if isinstance(op, scf.For)]:
            with at(loop.loc):
                _advance(loop)


def _advance(loop: scf.For) -> None:
    last = _last_mainloop(loop.body)
    if last is None or any(map(is_tile, loop.init)):
        return
    numbers = _numbers(loop, last)
    if not any(op.has(Trait.COSTLY) for op in numbers):
        return
    results = [value for op in numbers for value in op.results]
    carried = [value for value in results if any(user not in numbers for user in value.users)]
    starts = _computed(numbers, carried, loop.induction, loop.lower, Builder.before_op(loop))
    if isinstance(last, scf.If):
        ahead = _in_arms(last, numbers, carried, loop)
    else:
        ahead = _following(numbers, carried, loop, Builder.after_op(last))
    for value in carried:
        value.replace_all_uses_with(loop.body.add_arg(value.type, value.hint))
    pass_on(loop.body, ahead)
    for op in reversed(numbers):
        op.erase()
    append_carried(loop, starts)


def _in_arms(
    branch: scf.If, numbers: Sequence[Op], carried: Sequence[Value], loop: scf.For
) -> list[Value]:
    """Compute the next program's numbers in both arms, ahead of the last dot where there is one."""
    for arm in branch.blocks:
        pass_on(arm, _following(numbers, carried, loop, Builder.before_op(_before_last_dot(arm))))
    made = append_carried(branch)
    return list(made.results[len(made.results) - len(carried) :])


def _before_last_dot(block: Block) -> Op:
    """Return the wait for the operand of a block's last dot, or else its end.

    What is computed before that has what threads compute with the result of the dot before beside it;
    ptxas would move it below a wait for dots, but not below one for a stage, which is a loop.
    """
    waits: list[Op] = []
    found: Op | None = None
    for op in block:
        if isinstance(op, mbarrier.MbarrierWait):
            waits.append(op)
        if op.has(Trait.DOT):
            found = waits[-1] if waits else None
    return found or block.terminator


def _following(
    numbers: Sequence[Op], carried: Sequence[Value], loop: scf.For, place: Builder
) -> list[Value]:
    """Compute what is carried for the next program; after the last one, for that again."""
    left = place(arith.Sub(loop.upper, loop.induction)).out
    another = place(arith.Compare(left, loop.step, "gt")).out
    following = place(arith.Add(loop.induction, loop.step)).out
    program = place(arith.Select(another, following, loop.induction)).out
    return _computed(numbers, carried, loop.induction, program, place)


def _last_mainloop(block: Block) -> Op | None:
    """Return the last op that has dots inside, if all dots of a block are in loops or branches."""
    if any(op.has(Trait.DOT) for op in block):
        return None
    return next((op for op in reversed(list(block)) if any(map(_multiplies, op.blocks))), None)


def _multiplies(block: Block) -> bool:
    return any(op.has(Trait.DOT) for op in block.walk())


def _numbers(loop: scf.For, last: Op) -> list[Op]:
    """Return what is computed from the loop's own number alone, ahead of the end of its dots."""
    found: dict[Op, None] = {}
    for op in loop.body:
        if op is last:
            break
        own = [value for value in op.operands if _is_own(value, loop.body)]
        known = all(value is loop.induction or value.op in found for value in own)
        if own and known and op.pure and not op.blocks and not any(map(is_tile, op.results)):
            found[op] = None
    return list(found)


def _is_own(value: Value, block: Block) -> bool:
    return value.owner is block or (value.op is not None and value.op.block is block)


def _computed(
    numbers: Sequence[Op], wanted: Sequence[Value], number: Value, program: Value, place: Builder
) -> list[Value]:
    """Compute numbers again for a program; return those that are wanted."""
    known = {number: program}
    for op in numbers:
        place(op.clone(known))
    return [known[value] for value in wanted]
