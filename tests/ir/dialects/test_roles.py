"""The warp-specialization op: checks of its roles."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import roles, scf
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32


def _role(arguments: int = 0, results: int = 0) -> Block:
    block = Block([I32] * max(arguments, results))
    Builder(block)(scf.Yield(block.args[:results]))
    for _ in range(results - arguments):
        block.args.pop()
    return block


@pytest.mark.parametrize("registers", [(), (232, 40), (240, 24), (8, 256)])
def test_registers_are_moved_or_left(registers: tuple[int, ...]) -> None:
    op = roles.Specialize(_role(), _role(), *registers)
    assert (op.consumer_registers, op.producer_registers) == (registers or (0, 0))
    assert not op.results


@pytest.mark.parametrize("registers", [(232, 0), (0, 40), (232, 41), (264, 40), (-8, 40)])
def test_registers_are_multiples_of_eight_for_both(registers: tuple[int, int]) -> None:
    with pytest.raises(IRError, match="registers"):
        roles.Specialize(_role(), _role(), *registers)


def test_roles_take_and_return_nothing() -> None:
    with pytest.raises(IRError, match="roles take no arguments"):
        roles.Specialize(_role(arguments=1), _role())
    with pytest.raises(IRError, match="roles return nothing"):
        roles.Specialize(_role(), _role(results=1))
