"""The writing instructions of each register in a PTX text."""

from __future__ import annotations

import re
from typing import NamedTuple

REGISTER = re.compile(r"%[a-z]+\d+\b")
_WRITE = re.compile(
    r"(?:^|(?<=[;{]))[ \t]*(?:@!?(%p\d+)[ \t]+)?([a-z][\w.:]*)\s+(%\w+|\{[^{};]*\}),([^;]*);",
    re.MULTILINE,
)


class Write(NamedTuple):
    """An instruction: its guard, "" without one, its opcode, and its operands as text."""

    guard: str
    opcode: str
    operands: str


def find_writes(ptx: str) -> dict[str, list[Write]]:
    """Return the known writes of each register in PTX."""
    writes: dict[str, list[Write]] = {}
    for match in _WRITE.finditer(ptx):
        guard, opcode, target, operands = match.groups("")
        for register in (target,) if target[0] == "%" else REGISTER.findall(target):
            writes.setdefault(register, []).append(Write(guard, opcode, operands))
    return writes
