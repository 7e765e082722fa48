"""Drop loop-carried variables used only to compute their own next value.

Invariant: the remaining variables are computed and yielded as before.
"""

from __future__ import annotations

from aotc.ir.core import Block, Op, Value, build
from aotc.ir.dialects import scf
from aotc.ir.rewrite import Builder, is_unobserved
from aotc.schedule.analysis.global_order import free_operands


def drop_unused_carried(loop: scf.For) -> None:
    """Replace `loop` by a loop without its unused carried variables."""
    live = needed_values(loop)
    indices = [index for index, arg in enumerate(loop.carried) if arg in live]
    if len(indices) == len(loop.carried):
        return
    old_args = [loop.induction, *(loop.carried[index] for index in indices)]
    body = Block([arg.type for arg in old_args], [arg.hint for arg in old_args])
    for old, new in zip(old_args, body.args, strict=True):
        old.replace_all_uses_with(new)
    *ops, end = loop.body
    yielded = [end.operands[index] for index in indices]
    end.erase()
    for op in reversed(ops):
        if _is_observed(op) or any(out in live for out in op.results):
            op.remove()
            body.insert(op, before=body.first)
        else:
            op.erase()
    body.insert(scf.Yield(yielded))
    slots = [loop.lower, loop.upper, loop.step, *(loop.init[index] for index in indices)]
    new = Builder.before_op(loop)(build(scf.For, slots, loop.attributes, [body], loop.loc))
    for index, out in zip(indices, new.outs, strict=True):
        loop.outs[index].replace_all_uses_with(out)
        out.hint = loop.outs[index].hint
    loop.erase()


def _is_observed(op: Op) -> bool:
    """Return whether an op has other effects than its results."""
    return not is_unobserved(op)


def needed_values(loop: scf.For) -> dict[Value, None]:
    """Return values live after the loop or used by its side effects."""
    yielded = loop.body.terminator.operands
    live: dict[Value, None] = {}
    worklist = [arg for arg, out in zip(loop.carried, loop.outs, strict=True) if out.users]
    for op in loop.body:
        if not op.terminator and _is_observed(op):
            worklist += free_operands(op)
    while worklist:
        value = worklist.pop()
        if value in live:
            continue
        live[value] = None
        if value.op is not None and value.op.block is loop.body:
            worklist += free_operands(value.op)
        elif value.owner is loop.body and value.index > 0:
            worklist.append(yielded[value.index - 1])
    return live
