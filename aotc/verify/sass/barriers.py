"""Barrier registers: which `BSSY` each belongs to, and which registers keep one.

`barriers` maps a register, `B0` or one that keeps its value, to the address of the `BSSY` that named
the lanes to await.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from aotc.verify.sass.instructions import results
from aotc.verify.sass.text import Instruction

Barriers: TypeAlias = dict[str, int]

INNER: Final = -1
"""In place of the address of a `BSSY` that only a part of the warp has come to."""

Breaks: TypeAlias = frozenset[tuple[int, str, bool]]
"""Barriers that lanes have left by `@P0 BREAK`, with that predicate and whether it is negated."""


def _set(barriers: Barriers, each: Instruction) -> None:
    barriers[each.operands[0]] = each.address


def _use(barriers: Barriers, each: Instruction) -> None:
    barriers.pop(each.operands[0], None)


def _leave(barriers: Barriers, each: Instruction) -> None:
    if each.guard is None:
        barriers.pop(each.operands[-1], None)


def _copy(barriers: Barriers, each: Instruction) -> None:
    """Follow `BMOV B0, R1` and `BMOV R1, B0`."""
    if len(each.operands) < 2:
        return
    to, origin = each.operands[0], each.operands[1]
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


def move(barriers: Barriers, each: Instruction) -> None:
    """Follow what an instruction does to barriers and to registers that keep one."""
    rule = _RULES.get(each.name)
    if rule is not None:
        rule(barriers, each)
    elif barriers and each.name[0] != "U":
        for name in results(each):
            barriers.pop(name, None)


def still(breaks: Breaks, instructions: Iterable[Instruction]) -> Breaks:
    """Return breaks after instructions: no branch on a predicate that was written tells of them."""
    if not breaks:
        return breaks
    written = {name for each in instructions for name in results(each)}
    return frozenset((token, "" if name in written else name, n) for token, name, n in breaks)
