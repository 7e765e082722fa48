"""The table of instructions with effects on state: opcode to rule.

A rule runs once per instruction of the text and returns a function of a `Context`, called at each
execution. A rule's name may include modifiers, as in "cp.async.bulk"; the longest match applies.

A rule raises `Unsupported` for an unknown modifier; the error then names the instruction. Nothing
is ever skipped.

Warp-wide computations on registers are also in `WARP_COMPUTES`, and loads in `LOADS`, so that
several can share a step.
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
    """Describe a warp-wide function of registers, given as words (n, registers, 32).

    `decode` has a function per source, from its words of `bits` to an array (n, …). `compute` maps
    these arrays to the words of the result.
    """

    bits: tuple[int, ...]
    decode: tuple[Callable[[Array], Array], ...]
    compute: Callable[..., Array]


WarpRule: TypeAlias = Callable[[Instruction], WarpCompute]
WARP_COMPUTES: dict[str, WarpRule] = {}

Loads: TypeAlias = Callable[[Context, Array, Sequence[Instruction]], Array]
"""Load for instructions of one kind: addresses (k, n) to words (k, registers, n)."""

LOADS: dict[str, Callable[[Instruction], Loads | None]] = {}
_MOST_WORDS = 5  # of a key of EXECUTES


def executes(
    *opcodes: str,
) -> Callable[[Callable[[Instruction], Execute]], Callable[[Instruction], Execute]]:
    """Register a rule for instructions with effects on state."""

    def register(rule: Callable[[Instruction], Execute]) -> Callable[[Instruction], Execute]:
        for opcode in opcodes:
            if opcode in COMPUTES or opcode in EXECUTES:
                raise ValueError(f"{opcode} has two rules")
            EXECUTES[opcode] = rule
        return rule

    return register


def warp_computes(*opcodes: str) -> Callable[[WarpRule], WarpRule]:
    """Register a rule for pure functions of whole warps' registers.

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
    """Register a rule for loads into registers or vectors, without memory ordering.

    It returns None for a load that cannot be fused.
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
    """Return the rule of `EXECUTES` for an instruction, or None."""
    words = (instruction.opcode, *instruction.modifiers)
    for count in range(min(len(words), _MOST_WORDS), 0, -1):
        rule = EXECUTES.get(".".join(words[:count]))
        if rule is not None:
            return rule
    return None
