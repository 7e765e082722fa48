"""The table of instructions that touch state: opcode to rule.

A rule is run once for each instruction of the text and returns a function of a `Context`, which is
run each time the instruction executes. Names of rules may go on with modifiers, as in
"cp.async.bulk": of several that fit, the longest has the instruction.

A rule that does not know a modifier raises `Unsupported`, which becomes an error naming the
instruction; nothing is ever skipped.

What warps compute together of registers alone is in `WARP_COMPUTES` besides, and loads are in
`LOADS`, so that several such instructions can share a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aotc.verify.arrays import Array
from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.syntax import Instruction

Execute: TypeAlias = Callable[[Context], None]

EXECUTES: dict[str, Callable[[Instruction], Execute]] = {}


@dataclass(frozen=True, slots=True)
class WarpCompute:
    """Say what whole warps compute of their registers: operands' words (n, registers, 32).

    `decode` has a function for each operand after the first, from its words of `bits` to an array
    (n, …), and `compute` is one from those arrays to the words of the result.
    """

    bits: tuple[int, ...]
    decode: tuple[Callable[[Array], Array], ...]
    compute: Callable[..., Array]


WarpRule: TypeAlias = Callable[[Instruction], WarpCompute]
WARP_COMPUTES: dict[str, WarpRule] = {}

Loads: TypeAlias = Callable[[Context, Array, Sequence[Instruction]], Array]
"""Read for instructions of one kind: lanes' addresses (k, n) to registers' words (k, registers, n)."""

LOADS: dict[str, Callable[[Instruction], Loads | None]] = {}
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


def warp_computes(*opcodes: str) -> Callable[[WarpRule], WarpRule]:
    """Register a rule for instructions that compute of whole warps' registers, and do no more.

    Their operands are registers and vectors of registers.
    """

    def register(rule: WarpRule) -> WarpRule:
        for opcode in opcodes:
            if opcode in WARP_COMPUTES:
                raise ValueError(f"{opcode} has two rules")
            WARP_COMPUTES[opcode] = rule
        return rule

    return register


def loads(
    opcode: str,
) -> Callable[[Callable[[Instruction], Loads | None]], Callable[[Instruction], Loads | None]]:
    """Register a rule for loads into registers, or vectors of them, which orders nothing.

    It returns None for a load that has to stand alone.
    """

    def register(
        rule: Callable[[Instruction], Loads | None],
    ) -> Callable[[Instruction], Loads | None]:
        if opcode in LOADS:
            raise ValueError(f"{opcode} has two rules")
        LOADS[opcode] = rule
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
