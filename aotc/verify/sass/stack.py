"""Find writes to the stack pointer, R1, as if it were an ordinary register."""

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
    """Yield a finding at the first write of R1 other than a stack adjustment."""
    if not any(_is_on_stack(instruction) for instruction in function.instructions):
        return
    writes = [instruction for instruction in function.instructions if _writes_pointer(instruction)]
    for instruction in writes[1:]:  # the first write is the prologue's: it loads the pointer
        if not (instruction.name in _MOVES and sources(instruction) == _ITSELF):
            meaning = "R1 gets another value, by which spilled registers are addressed"
            yield Finding(
                "stack overwritten",
                instruction.address,
                instruction.text,
                meaning,
                (),
                instruction.source,
            )
            return


def _is_on_stack(instruction: Instruction) -> bool:
    return any(operand.startswith(("[R1]", "[R1+", "[R1-")) for operand in instruction.operands)


def _writes_pointer(instruction: Instruction) -> bool:
    return _POINTER in (*results(instruction), *extra_results(instruction))
