"""The table of instructions that touch state: opcode to rule.

A rule is run once for each instruction of the text and returns a function of a `Context`, which is
run each time the instruction executes. Names of rules may go on with modifiers, as in
"cp.async.bulk": of several that fit, the longest has the instruction.

A rule that does not know a modifier raises `Unsupported`, which becomes an error naming the
instruction; nothing is ever skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.syntax import Instruction

Execute: TypeAlias = Callable[[Context], None]

EXECUTES: dict[str, Callable[[Instruction], Execute]] = {}
_MOST_WORDS = 5  # of a name in EXECUTES


def executes(
    *opcodes: str,
) -> Callable[[Callable[[Instruction], Execute]], Callable[[Instruction], Execute]]:
    """Register a rule for instructions that touch state."""

    def register(rule: Callable[[Instruction], Execute]) -> Callable[[Instruction], Execute]:
        for opcode in opcodes:
            if opcode in COMPUTES or opcode in EXECUTES:
                raise ValueError(f"{opcode} has two rules")
            EXECUTES[opcode] = rule
        return rule

    return register


def executing(instruction: Instruction) -> Callable[[Instruction], Execute] | None:
    """Return the rule of `EXECUTES` for an instruction, None if there is none."""
    words = (instruction.opcode, *instruction.modifiers)
    for count in range(min(len(words), _MOST_WORDS), 0, -1):
        rule = EXECUTES.get(".".join(words[:count]))
        if rule is not None:
            return rule
    return None
