"""Typing rules of control flow: a carried value has one type all the way round."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, scf
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP32, I1, I32, I64, Type


def _yields(args: list[Type], *values: Value | int) -> Block:
    block = Block(args)
    chosen = [block.args[value] if isinstance(value, int) else value for value in values]
    Builder(block)(scf.Yield(chosen))
    return block


N, J, X, F = Block([I32, I64, FP32, I1]).args


def test_for() -> None:
    loop = scf.For(N, N, N, [X, N], _yields([I32, FP32, I32], 1, 0))
    assert [value.type for value in loop.outs] == [FP32, I32]
    assert loop.induction is loop.body.args[0]
    assert list(loop.carried) == loop.body.args[1:]


@pytest.mark.parametrize(
    ("bounds", "init", "args", "yielded", "message"),
    [
        ((N, J, N), [], [I32], [], "bounds and step differ in type"),
        ((X, X, X), [], [FP32], [], "bounds are fp32"),
        ((N, N, N), [X], [I32], [], r"block arguments are \(i32\), expected \(i32, fp32\)"),
        ((N, N, N), [X], [I32, FP32], [0], r"yielded values are \(i32\), expected \(fp32\)"),
        ((N, N, N), [], [I32], [0], r"yielded values are \(i32\), expected \(\)"),
    ],
)
def test_for_refuses(
    bounds: tuple[Value, Value, Value],
    init: list[Value],
    args: list[Type],
    yielded: list[int],
    message: str,
) -> None:
    with pytest.raises(IRError, match=message):
        scf.For(*bounds, init, _yields(args, *yielded))


def test_if() -> None:
    branch = scf.If(F, _yields([], X, N), _yields([], X, N))
    assert [value.type for value in branch.outs] == [FP32, I32]
    with pytest.raises(IRError, match="the condition is i32, not i1"):
        scf.If(N, _yields([]), _yields([]))
    with pytest.raises(IRError, match="values yielded by `else`"):
        scf.If(F, _yields([], X), _yields([], N))
    with pytest.raises(IRError, match="block has no terminator"):
        scf.If(F, Block(), _yields([]))


def _before(types: list[Type], *passed: int) -> Block:
    block = Block(types)
    Builder(block)(scf.Condition(F, [block.args[index] for index in passed]))
    return block


def test_while() -> None:
    loop = scf.While([N, X], _before([I32, FP32], 1), _yields([FP32], N, 0))
    assert [value.type for value in loop.outs] == [FP32]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda: _yields([I32], 0), lambda: _yields([I32], 0), "must end in scf.condition"),
        (lambda: _before([FP32], 0), lambda: _yields([FP32], N), "arguments of `before`"),
        (lambda: _before([I32], 0), lambda: _yields([FP32], N), "arguments of `after`"),
        (lambda: _before([I32], 0), lambda: _yields([I32], X), "values yielded by `after`"),
    ],
)
def test_while_refuses(before: object, after: object, message: str) -> None:
    assert callable(before)
    assert callable(after)
    with pytest.raises(IRError, match=message):
        scf.While([N], before(), after())


def test_terminators() -> None:
    assert scf.Yield.terminator
    assert scf.Return.terminator
    assert scf.Condition.terminator
    assert not scf.If.terminator
    assert not arith.Add.terminator
    assert not scf.While.pure
