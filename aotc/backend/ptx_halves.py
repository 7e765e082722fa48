"""Split words that a warp shares into halves by shifts, in PTX: ptxas gets it wrong by moves.

ptxas 12.9 to 13.5 keeps some values that all lanes of a warp share in uniform registers. If such a word is
in another register at first, as it is when it was loaded, and `mov.b32 {%rs1, %rs2}, %r1` splits it, ptxas may
take the halves for two words: it moves the first to a uniform register, and reads the second from the next one,
which holds something else. Results are wrong from
-O1 on, without a message. It takes many operations on such values. A shift and conversions are right.

Only words that may be such are split so, since a shift is an instruction more: those that may be the same in all
lanes of a warp, and are no constants. A word differs between lanes if it is made of the thread's index, loaded from
an address that differs, or a result of an MMA. What is not understood counts as the same.
"""

from __future__ import annotations

import re

from aotc.backend.ptx_writes import REGISTER, Write, find_writes

_SPLIT = re.compile(r"mov\.b32[ \t]+\{\s*(%rs\d+|_)\s*,\s*(%rs\d+|_)\s*\}\s*,\s*(%r\d+)\s*;")
_OF_THREAD = re.compile(r"%(?:tid|laneid)\b")
_SPECIAL = re.compile(r"%[a-z]+\b(?!\d)")
_DIFFER = ("mma.", "wgmma.", "ldmatrix.", "movmatrix.", "atom.")
_PARAM = "ld.param"
_FROM_LANES = ("vote.", "match.", "redux.", "activemask")
_BROADCAST = "shfl.sync.idx"


def split_by_shifts(ptx: str) -> str:
    """Return PTX in which words that all lanes may share are split into halves by shifts."""
    words = dict.fromkeys(move[3] for move in _SPLIT.finditer(ptx))
    if not words:
        return ptx
    origins = _Origins(ptx)
    shared = {word for word in words if origins.may_be_shared(word)}
    if not shared:
        return ptx
    return _SPLIT.sub(lambda move: _by_shift(move) if move[3] in shared else move[0], ptx)


def _by_shift(move: re.Match[str]) -> str:
    low, high, word = move.groups()
    first = "" if low == "_" else f" cvt.u16.u32 {low}, {word};"
    second = f" .reg .b32 tmp; shr.u32 tmp, {word}, 16; cvt.u16.u32 {high}, tmp;"
    return f"{{{first}{'' if high == '_' else second} }}"


class _Origins:
    """What registers are made of."""

    def __init__(self, ptx: str) -> None:
        self._writes = find_writes(ptx)
        self._differing: set[str] = set()

    def may_be_shared(self, word: str) -> bool:
        """Return whether a word is no constant and may be the same in all lanes."""
        sources, seen, varies = [word], {word}, False
        while sources:
            writes = self._writes.get(sources.pop(), ())
            varies |= len(writes) != 1
            for write in writes:
                causes = _causes(write)
                if causes is None or not self._differing.isdisjoint(causes):
                    self._differing.add(word)
                    return False
                varies |= _varies(write)
                fresh = [cause for cause in causes if cause not in seen]
                seen.update(fresh)
                sources += fresh
        return varies


def _varies(write: Write) -> bool:
    """Return whether an instruction with constant operands may give various results."""
    _, opcode, operands = write
    return (
        opcode.startswith(("ld.", "shfl.", *_FROM_LANES)) or _SPECIAL.search(operands) is not None
    )


def _causes(write: Write) -> list[str] | None:
    """Return the registers of which one must differ for the result to do so; None if it always does."""
    guard, opcode, operands = write
    if opcode.startswith(_DIFFER) or _OF_THREAD.search(operands):
        return None
    guards = [guard] if guard else []
    if opcode.startswith((_PARAM, *_FROM_LANES)):
        return guards
    if opcode.startswith(_BROADCAST):
        operands = operands.split(",")[1]
    return guards + REGISTER.findall(operands)
