"""Registers that an instruction reads and writes.

The first operand is the destination, as in PTX, unless it is an address, or the opcode is listed as
writing nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.verify.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Label,
    Operand,
    Pair,
    Register,
    Symbol,
    TensorAddress,
    Vector,
)

# A first operand in parentheses of `call` is not emulated.
_WRITE_NOTHING = frozenset(
    ("bra", "brx", "call", "exit", "nanosleep", "ret", "setmaxnreg", "st", "trap")
)
_BARRIERS = frozenset(("bar", "barrier"))
# Operands accessed after the instruction's issue.
ASYNCHRONOUS = frozenset(("wgmma",))
# The first operand is also a source.
_ACCUMULATE = frozenset(("wgmma",))


@dataclass(frozen=True, slots=True)
class Effect:
    """Hold the registers read (by guard and addresses, too) and written."""

    reads: tuple[Register, ...]
    writes: tuple[Register, ...]


def destination_count(instruction: Instruction) -> int:
    """Return the number of leading operands written: 0 or 1."""
    operands = instruction.operands
    if not operands or instruction.opcode in _WRITE_NOTHING:
        return 0
    if instruction.opcode in _BARRIERS and "red" not in instruction.modifiers:
        return 0
    return 0 if isinstance(operands[0], Address | TensorAddress | Immediate | Symbol | Label) else 1


def effect_of(instruction: Instruction) -> Effect:
    """Return the registers an instruction reads and writes."""
    count = destination_count(instruction)
    writes = registers_of(instruction.operands[:count])
    first = 0 if instruction.opcode in _ACCUMULATE else count
    reads = registers_of(instruction.operands[first:])
    if instruction.guard is not None:
        reads.append(instruction.guard.predicate)
    return Effect(tuple(reads), tuple(writes))


def registers_of(operands: Sequence[Operand]) -> list[Register]:
    """Return the registers named by operands, in order."""
    registers: list[Register] = []
    for operand in operands:
        if isinstance(operand, Register):
            # `!p` is read from the same register as `p`.
            registers.append(
                Register(operand.name, operand.bits, operand.row) if operand.negated else operand
            )
        elif isinstance(operand, Vector):
            registers += registers_of(operand.elements)
        elif isinstance(operand, Pair):
            registers += registers_of((operand.first, operand.second))
        elif isinstance(operand, Address):
            registers += registers_of((operand.base,))
        elif isinstance(operand, TensorAddress):
            registers += registers_of((operand.base, *operand.coordinates))
    return registers
