"""Typing rules of assembly."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Op
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects.assembly import InlineAsm, VolatileAsm
from aotc.ir.rewrite import is_pure
from aotc.ir.types import FP32, I32, I64, TileType
from tests.support.op_sampler import ROW, SWAPPED

MOVE = "mov.b32 $0, $1;"


@pytest.mark.parametrize("cls", [InlineAsm, VolatileAsm])
def test_results_are_where_the_operands_are(cls: type[Op]) -> None:
    x, scalar = Block([TileType(FP32, (128,), ROW), I32]).args
    (out,) = cls(MOVE, "=r,f", (I32,), 1, [x]).results  # type: ignore[call-arg]
    assert out.type == TileType(I32, (128,), ROW)
    first, two = cls("", "=r,=l,r", (I32, I64), 1, [scalar]).results  # type: ignore[call-arg]
    assert (first.type, two.type) == (I32, I64)
    assert cls("", "=l", (I64,), 1, []).results[0].type == I64  # type: ignore[call-arg]


def test_operands_are_in_one_place() -> None:
    x, y, scalar = Block([TileType(I32, (128,), ROW), TileType(I32, (128,), SWAPPED), I32]).args
    for other in (y, scalar):
        with pytest.raises(IRError, match="differ in shape or layout"):
            InlineAsm("", "=r,r,r", (I32,), 1, [x, other])


def test_constraints_fit() -> None:
    (x,) = Block([I32]).args
    with pytest.raises(IRError, match=r"asm.inline: expected 1 input constraints"):
        InlineAsm(MOVE, "=r", (I32,), 1, [x])


def test_effects() -> None:
    assert is_pure(InlineAsm("", "=r", (I32,), 1, []))
    assert not is_pure(VolatileAsm("", "=r", (I32,), 1, []))
    assert VolatileAsm.effects
