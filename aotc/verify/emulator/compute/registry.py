"""The table of purely computing instructions: opcode to rule.

A rule runs once per instruction of the text. It returns the function for each execution, from the
bits of the source operands to the bits of the results. It knows no state, no lanes, no memory.

Operands are the sources, vectors flattened. Each is an unsigned array of the register's width (bool
for a predicate), or a 0-d array for a constant. The function returns one array, or a tuple for a
vector or a pair of destinations. Arrays have any shape that broadcasts. Arguments are never written
to.

A rule raises `Unsupported` for an unknown modifier; the error then names the instruction. Nothing
is ever skipped.
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
    """Register a rule for purely computing instructions."""

    def register(rule: Callable[[Instruction], Compute]) -> Callable[[Instruction], Compute]:
        for opcode in opcodes:
            if opcode in COMPUTES:
                raise ValueError(f"{opcode} has two rules")
            COMPUTES[opcode] = rule
        return rule

    return register


def bits_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype of registers of a width."""
    return np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")
