"""PTX operands and instructions, as the parser builds them and rules read them.

Names are resolved: a register knows its row of the register file, a label its instruction. Operand
types are not: PTX lets a register be wider than an instruction's read of it, so each rule takes the
bits its own modifiers name.

Invariant: all of it is immutable, and equal text gives equal objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Locate a line of the kernel's source, from `.loc`.

    `inlined_at` is the call site, for an inlined function.
    """

    file: str
    line: int
    column: int
    inlined_at: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """Name a virtual register: `bits` is 1 for a predicate, else 16, 32, 64 or 128.

    `row` is its row among the registers of that width. `negated` marks `!p`, a source of `setp` and
    its kin; a read returns the negated predicate.
    """

    name: str
    bits: int
    row: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """Name a special register such as `%tid.x`, with its percent sign."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """Hold a constant: an integer as written (it may be negative), or the bits of a float.

    `float_bits` is 32 or 64 for `0f…` and `0d…`, and 0 for an integer.
    """

    value: int
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """Name the address of a variable, such as a shared buffer or a parameter, plus `offset`."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """Represent `[base + offset]`; the base is a register, a variable or a constant."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """Represent `[map, {coordinates}]` of a tensor copy; `base` as in `Address`."""

    base: Register | Symbol | Immediate
    coordinates: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """Represent `{a, b, …}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """Name a branch target: `index` is the index of the instruction after the label."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Sink:
    """Represent `_`, a discarded result."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Represent the two results in `d|p`."""

    first: Operand
    second: Operand


Operand: TypeAlias = (
    Register
    | SpecialRegister
    | Immediate
    | Symbol
    | Address
    | TensorAddress
    | Vector
    | Label
    | Sink
    | Pair
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Represent `@p` or `@!p`."""

    predicate: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """Hold one instruction.

    `opcode` is the text before the first dot, `modifiers` the rest, split at dots; a modifier such
    as `L2::128B` or `shared::cta` counts as one. So `cvt.rn.bf16x2.f32` is `cvt` with ("rn",
    "bf16x2", "f32"). `line` counts from 1 in the PTX text.

    The carry flag is explicit, as the predicate `%cc`: `add.cc` writes the pair `d|%cc`, and
    `addc`, `subc` and `madc` have it as their last operand.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    text: str
    location: SourceLocation | None = None

    @property
    def mnemonic(self) -> str:
        """Opcode and modifiers as written."""
        return ".".join((self.opcode, *self.modifiers))


def elements_of(operand: Operand) -> tuple[Operand, ...]:
    """Return the operands in braces, or the single one."""
    return operand.elements if isinstance(operand, Vector) else (operand,)
