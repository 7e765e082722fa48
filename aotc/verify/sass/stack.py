"""The stack pointer, R1, where ptxas uses it like other registers though the function has a stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aotc.verify.sass.findings import Finding
from aotc.verify.sass.instructions import extra_results, results, sources
from aotc.verify.sass.text import Function, Instruction

_POINTER: Final = "R1"
_ITSELF: Final = frozenset({_POINTER})
_MOVES: Final = frozenset({"VIADD", "IADD", "IADD3"})


def find_overwritten_stack(function: Function) -> Iterator[Finding]:
    """Yield a finding at the first write of R1 that is no step of the stack pointer."""
    if not any(_is_on_stack(each) for each in function.instructions):
        return
    writes = [each for each in function.instructions if _writes_pointer(each)]
    for each in writes[1:]:  # the first write is the prologue's: it loads the pointer
        if not (each.name in _MOVES and sources(each) == _ITSELF):
            meaning = "R1 gets another value, by which spilled registers are addressed"
            yield Finding("stack overwritten", each.address, each.text, meaning, (), each.source)
            return


def _is_on_stack(instruction: Instruction) -> bool:
    return any(operand.startswith(("[R1]", "[R1+", "[R1-")) for operand in instruction.operands)


def _writes_pointer(instruction: Instruction) -> bool:
    return _POINTER in (*results(instruction), *extra_results(instruction))
