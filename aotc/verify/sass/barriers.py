"""Barrier registers: the `BSSY` of each, and the registers with a saved one.

`barriers` maps a register, `B0` or one with its saved value, to the address of the `BSSY` that
named the lanes to await.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from aotc.verify.sass.instructions import results
from aotc.verify.sass.text import Instruction

Barriers: TypeAlias = dict[str, int]

INNER: Final = -1
"""In place of the address of a `BSSY` reached by a part of the warp only."""

Breaks: TypeAlias = frozenset[tuple[int, str, bool]]
"""Barriers left by `@P0 BREAK`, with the predicate and whether it is negated."""


def _set(barriers: Barriers, instruction: Instruction) -> None:
    barriers[instruction.operands[0]] = instruction.address


def _use(barriers: Barriers, instruction: Instruction) -> None:
    barriers.pop(instruction.operands[0], None)


def _leave(barriers: Barriers, instruction: Instruction) -> None:
    if instruction.guard is None:
        barriers.pop(instruction.operands[-1], None)


def _copy(barriers: Barriers, instruction: Instruction) -> None:
    """Follow `BMOV B0, R1` and `BMOV R1, B0`."""
    if len(instruction.operands) < 2:
        return
    to, origin = instruction.operands[0], instruction.operands[1]
    if origin in barriers:
        barriers[to] = barriers[origin]
    else:
        barriers.pop(to, None)


_RULES: Final = {
    "BSSY": _set,
    "BSYNC": _use,
    "BREAK": _leave,
    "BMOV": _copy,
}


def move(barriers: Barriers, instruction: Instruction) -> None:
    """Follow an instruction's effect on barriers and saved barriers."""
    rule = _RULES.get(instruction.name)
    if rule is not None:
        rule(barriers, instruction)
    elif barriers and instruction.name[0] != "U":
        for name in results(instruction):
            barriers.pop(name, None)


def still(breaks: Breaks, instructions: Iterable[Instruction]) -> Breaks:
    """Return breaks after instructions: an overwritten predicate no longer identifies its lanes."""
    if not breaks:
        return breaks
    written = {name for instruction in instructions for name in results(instruction)}
    return frozenset((token, "" if name in written else name, n) for token, name, n in breaks)
