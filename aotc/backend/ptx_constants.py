"""Hide constant `mma.sync` operands from ptxas.

ptxas 13.5 miscompiles constant operands of an MMA: -2.0 in both halves of a word becomes a negated
operand, right in one half only. `nvvm.mma` hides constants it is given. But ptxas also evaluates
shuffles and selections of constants, so a constant tile exchanged between threads is constant
again.

Invariant: results are the same, by an `or` with a 0 unknown to ptxas.
"""

from __future__ import annotations

import re

from aotc.backend.ptx_writes import REGISTER, find_writes

_MMA = re.compile(
    r"^[ \t]*mma\.sync[\w.:]*\s+\{[^{}]*\},\s*\{([^{}]*)\},\s*\{([^{}]*)\}[^;]*;", re.MULTILINE
)
_SPECIAL = re.compile(r"%(?![a-z]+\d+\b)")
_EXCHANGE = "shfl.sync"
_SELECTION = "selp."
_COMPUTED = re.compile(
    r"(?:mov|selp|shfl|cvt|prmt|and|or|xor|not|lop3|shl|shr|shf|add|sub|mul|mad|fma|neg|abs|min|max)\."
)


def hide_constant_fragments(ptx: str) -> str:
    """Return PTX without MMA operands computed from constants alone."""
    if _EXCHANGE not in ptx or "mma.sync" not in ptx:
        return ptx
    constants = _Constants(ptx)
    return _MMA.sub(lambda mma: _hidden(mma, constants), ptx)


def _hidden(mma: re.Match[str], constants: _Constants) -> str:
    words = dict.fromkeys(REGISTER.findall(f"{mma[1]},{mma[2]}"))
    copies = {word: f"word{index}" for index, word in enumerate(filter(constants.has, words))}
    if not copies:
        return mma[0]
    hidden = "".join(f" or.b32 {copy}, {word}, zero;" for word, copy in copies.items())
    operands = slice(mma.start(1) - mma.start(), mma.end(2) - mma.start())
    text = mma[0]
    renamed = REGISTER.sub(lambda register: copies.get(register[0], register[0]), text[operands])
    zero = ".reg .b32 zero; mov.u32 zero, %nctaid.x; shr.u32 zero, zero, 31;"
    names = f".reg .b32 {', '.join(copies.values())};"
    return f"{{ {zero} {names}{hidden}{text[: operands.start]}{renamed}{text[operands.stop :]} }}"


class _Constants:
    """Registers with the same number in every launch."""

    def __init__(self, ptx: str) -> None:
        self._writes = find_writes(ptx)
        self._known: dict[str, bool] = {}

    def has(self, word: str) -> bool:
        """Return whether a word is computed from constants alone."""
        if word not in self._known:
            self._known[word] = self._is_constant(word)
        return self._known[word]

    def _is_constant(self, word: str) -> bool:
        worklist, seen = [word], {word}
        while worklist:
            writes = self._writes.get(worklist.pop())
            if writes is None:
                return False
            for _, opcode, operands in writes:
                if not _COMPUTED.match(opcode) or _SPECIAL.search(operands):
                    return False
                sources = [source for source in _sources(opcode, operands) if source not in seen]
                seen.update(sources)
                worklist += sources
        return True


def _sources(opcode: str, operands: str) -> list[str]:
    """Return the registers an instruction's result is made of, without selectors."""
    if opcode.startswith(_EXCHANGE):
        operands = operands.split(",", maxsplit=1)[0]
    elif opcode.startswith(_SELECTION):
        operands = operands.rpartition(",")[0]
    return REGISTER.findall(operands)
