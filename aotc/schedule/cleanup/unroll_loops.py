"""Unroll loops by the factor of `tl.range(loop_unroll_factor=…)`.

A loop becomes an unrolled loop and a loop for the remainder. The first keeps the other hints, so its
`num_stages` count unrolled iterations. The second is not pipelined: it is too short to pay.

Invariant: the iterations are the same, in the same order, for every bound and step.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Value, build
from aotc.ir.diagnostics import CompileError, at
from aotc.ir.dialects import arith, scf
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.loop_bounds import lowered_bounds
from aotc.schedule.context import Schedule


def unroll_loops(kernel: Kernel, schedule: Schedule) -> None:
    """Unroll every loop with an unroll factor, innermost first.

    Raises: CompileError if the kernel exceeds the limit of ops.
    """
    loops = [op for op in kernel.walk() if isinstance(op, scf.For) and op.unroll > 1]
    num_ops = sum(1 for _ in kernel.walk()) if loops else 0
    for op in reversed(loops):
        num_ops += op.unroll * sum(1 for _ in op.body.walk())
        if num_ops > schedule.max_ops:
            message = f"the kernel expands to {num_ops} operations, the limit is {schedule.max_ops}"
            remedy = f"a loop_unroll_factor below {op.unroll}"
            raise CompileError(message, op.loc, remedy=remedy)
        with at(op.loc):
            _unroll(op)


def _unroll(loop: scf.For) -> None:
    builder = Builder.before_op(loop)
    bounds = lowered_bounds(loop, loop.unroll - 1, builder)
    factor = builder(arith.Constant(loop.unroll, loop.step.type)).out
    stride = builder(arith.Mul(loop.step, factor)).out
    body = _unrolled_body(loop, bounds[1])
    main = [loop.lower, bounds[-1], stride, *loop.init, loop.lower]
    hints = {**loop.attributes, "unroll": scf.NEVER_UNROLLED}
    *carried, following = builder(build(scf.For, main, hints, [body], loop.loc)).outs
    rest = [following, loop.upper, loop.step, *carried]
    hints["num_stages"] = 1
    last = builder(build(scf.For, rest, hints, [_copied_body(loop)], loop.loc))
    loop.replace_with(last.outs)


def _unrolled_body(loop: scf.For, last_but_one: Value) -> Block:
    """Return the body repeated `unroll` times; it also carries the next iteration's index.

    If the last index is below `last_but_one`, the bound less one step, another iteration follows.
    Else the index is set to the upper bound, since the sum might wrap.
    """
    block = Block(
        [arg.type for arg in (*loop.body.args, loop.induction)],
        [*(arg.hint for arg in loop.body.args), "following"],
    )
    builder = Builder(block)
    index, *carried = block.args[:-1]
    for turn in range(loop.unroll):
        if turn:
            index = builder(arith.Add(index, loop.step)).out
        carried = _run_once(loop, index, carried, builder)
    goes_on = builder(arith.Compare(index, last_but_one, "lt")).out
    stepped = builder(arith.Add(index, loop.step)).out
    following = builder(arith.Select(goes_on, stepped, loop.upper)).out
    builder(scf.Yield([*carried, following]))
    return block


def _copied_body(loop: scf.For) -> Block:
    args = loop.body.args
    block = Block([arg.type for arg in args], [arg.hint for arg in args])
    builder = Builder(block)
    builder(scf.Yield(_run_once(loop, block.args[0], block.args[1:], builder)))
    return block


def _run_once(
    loop: scf.For, index: Value, carried: Sequence[Value], builder: Builder
) -> list[Value]:
    """Clone one iteration; return its yields."""
    mapping = dict(zip(loop.body.args, [index, *carried], strict=True))
    for op in loop.body:
        if not op.terminator:
            builder(op.clone(mapping))
    return [mapping.get(value, value) for value in loop.body.terminator.operands]
