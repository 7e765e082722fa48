"""The table of instructions that only compute: opcode to rule.

A rule is run once for each instruction of the text and returns what is run each time the instruction
executes: a function from the bits of the source operands to the bits of the results. It knows no
state, no lanes, no memory. Operands are those after the first (destination) one, vectors flattened,
each an unsigned array of the register's width (bool for a predicate) or a 0-d array for a constant;
what comes back is one array, or a tuple for a vector or a pair of destinations. Arrays have any shape
that broadcasts. Arguments are never written to.

A rule that does not know a modifier raises `Unsupported`, which becomes an error naming the
instruction; nothing is ever skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.syntax import Instruction

Bits: TypeAlias = npt.NDArray[Any]
Compute: TypeAlias = "Callable[..., Bits | tuple[Bits, ...]]"

COMPUTES: dict[str, Callable[[Instruction], Compute]] = {}


def computes(
    *opcodes: str,
) -> Callable[[Callable[[Instruction], Compute]], Callable[[Instruction], Compute]]:
    """Register a rule for instructions that only compute."""

    def register(rule: Callable[[Instruction], Compute]) -> Callable[[Instruction], Compute]:
        for opcode in opcodes:
            if opcode in COMPUTES:
                raise ValueError(f"{opcode} has two rules")
            COMPUTES[opcode] = rule
        return rule

    return register


def bits_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype that registers of a width are kept in."""
    return np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")
