"""Split warp-uniform words into halves by shifts in PTX, since ptxas miscompiles moves.

ptxas 12.9 to 13.5 keeps some warp-uniform values in uniform registers. A word may be in another
register at first, for example when loaded, and be split by `mov.b32 {%rs1, %rs2}, %r1`. Then ptxas
may take the halves for two words: it moves the first to a uniform register, and reads the second
from the next register, which holds something else. Results are wrong from -O1 on, without a
message. It takes many operations on such values. A shift and conversions are right.

A shift costs one more instruction, so only possibly uniform words are split this way: words that
may be the same in all lanes of a warp, and are no constants. A word differs between lanes if it is
made of the thread's index, loaded from a differing address, or a result of an MMA. Any unknown
origin counts as uniform.
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
    """Return PTX with all possibly uniform words split into halves by shifts."""
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
    """The origins of registers."""

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
    """Return the registers whose difference makes the result differ; None if it always does."""
    guard, opcode, operands = write
    if opcode.startswith(_DIFFER) or _OF_THREAD.search(operands):
        return None
    guards = [guard] if guard else []
    if opcode.startswith((_PARAM, *_FROM_LANES)):
        return guards
    if opcode.startswith(_BROADCAST):
        operands = operands.split(",")[1]
    return guards + REGISTER.findall(operands)
