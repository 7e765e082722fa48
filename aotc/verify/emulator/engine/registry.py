"""The tables of what the emulator can execute: opcode to rule.

A rule is run once for each instruction of the text and returns what is run each time the
instruction executes: modifiers are looked at once, not per step. There are two kinds.

- `@computes("add", …)` rules return a function from the bits of the source operands to the bits
  of the results: no state, no lanes, no memory. Operands are those after the first (destination)
  one, vectors flattened, each an unsigned array of the register's width (bool for a predicate) or
  a 0-d array for a constant; what comes back is one array, or a tuple for a vector or a pair of
  destinations. Arrays have any shape that broadcasts. Arguments are never written to.
- `@executes("ld", …)` rules return a function of a `Context`: everything else. Their names may go
  on with modifiers, as in "cp.async.bulk": of several that fit, the longest has the instruction.

A rule that does not know a modifier raises `Unsupported`, which becomes an error naming the
instruction; nothing is ever skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.syntax import Instruction

Bits: TypeAlias = npt.NDArray[Any]
Compute: TypeAlias = "Callable[..., Bits | tuple[Bits, ...]]"
Execute: TypeAlias = Callable[[Context], None]

COMPUTES: dict[str, Callable[[Instruction], Compute]] = {}
EXECUTES: dict[str, Callable[[Instruction], Execute]] = {}
_MOST_WORDS = 5  # of a name in EXECUTES


class Unsupported(Exception):  # noqa: N818 - what the rule says, not what went wrong
    """Say what of an instruction is not known; the emulator adds the instruction and its line."""


def computes(
    *opcodes: str,
) -> Callable[[Callable[[Instruction], Compute]], Callable[[Instruction], Compute]]:
    """Register a rule for instructions that only compute."""

    def register(rule: Callable[[Instruction], Compute]) -> Callable[[Instruction], Compute]:
        for opcode in opcodes:
            if opcode in COMPUTES or opcode in EXECUTES:
                raise ValueError(f"{opcode} has two rules")
            COMPUTES[opcode] = rule
        return rule

    return register


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


def bits_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype that registers of a width are kept in."""
    return np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")
