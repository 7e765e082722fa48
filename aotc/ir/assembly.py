"""Operands of inline assembly: constraints, and the registers they stand for.

An instance of the text handles `pack` elements of every operand. Elements below 32 bits lie side by
side in one register, the first in the lowest bits, as many as there are and as fit into 32 bits.
All others have a register each. Operands are numbered: the registers of each result in order, then
those of each argument.

Invariant: `check` passes only text and constraints that LLVM accepts. LLVM ends the process on any
other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aotc.ir.types import ElementType, PointerType

REGISTER_BITS = {"h": 16, "r": 32, "l": 64, "f": 32, "d": 64}
_FLOAT_REGISTERS = ("f", "d")
_WORD_BITS = 32
_CLOBBER = re.compile(r"~\{\w+\}")
_OPERAND = re.compile(r"\$(?:(?P<escape>\$)|(?P<plain>\d+)|\{(?P<braced>\d+)\}|)")


class AssemblyError(ValueError):
    """Report assembly that does not fit its operands; `remedy` may say how to mend it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Register:
    """Describe one operand of the text: its constraint, and the elements packed in it.

    They are elements `first` to `first + num_elems - 1` of an instance's share of the result or
    argument `value`. `tied` is the number of the output whose register an input shares, or -1.
    """

    letter: str
    element: ElementType
    value: int
    first: int
    num_elems: int
    tied: int = -1

    @property
    def bits(self) -> int:
        """Width of the register."""
        return REGISTER_BITS[self.letter]

    @property
    def used_bits(self) -> int:
        """Width of the elements in it, a byte for a truth value; above them is zero."""
        return 8 * self.element.size_bytes * self.num_elems


@dataclass(frozen=True, slots=True)
class Operands:
    """List the registers of an instance; `constraints` is the text of them as LLVM has it."""

    outputs: tuple[Register, ...]
    inputs: tuple[Register, ...]
    constraints: str


def elements_per_register(element: ElementType, pack: int) -> int:
    """Return how many of `pack` elements lie in one register."""
    bits = 64 if isinstance(element, PointerType) else element.bits
    return min(pack, max(1, _WORD_BITS // bits))


def check(
    text: str,
    constraints: str,
    arguments: Sequence[ElementType],
    results: Sequence[ElementType],
    pack: int,
) -> Operands:
    """Return the registers of an instance. Raises: AssemblyError if something does not fit."""
    if pack < 1 or pack & (pack - 1):
        raise AssemblyError(f"pack must be a power of two, got {pack}")
    if not results:
        raise AssemblyError(
            "the assembly must return at least one value",
            "let it return a value that nothing uses",
        )
    clauses = [part.strip() for part in constraints.split(",") if constraints.strip()]
    operands = [part for part in clauses if not part.startswith("~")]
    outputs = [part for part in operands if part.startswith("=")]
    inputs = operands[len(outputs) :]
    if clauses[: len(operands)] != operands or not all(
        map(_CLOBBER.fullmatch, clauses[len(operands) :])
    ):
        raise AssemblyError(
            f"what is overwritten comes last among constraints, got {constraints!r}",
            'write it as in "=r,r,~{memory}"',
        )
    if operands[: len(outputs)] != outputs:
        raise AssemblyError(
            f"outputs come first among constraints, got {constraints!r}",
            'write all that begin with "=" ahead of the others',
        )
    written = _registers("output", [part.lstrip("=&") for part in outputs], results, pack)
    letters = [register.letter for register in written]
    read = _registers("input", inputs, arguments, pack, letters)
    _check_references(text, len(operands))
    return Operands(tuple(written), tuple(read), ",".join(clauses))


def _registers(
    role: str,
    constraints: Sequence[str],
    elements: Sequence[ElementType],
    pack: int,
    tied_letters: Sequence[str] = (),
) -> list[Register]:
    packs: list[tuple[int, int, int]] = []
    for value, element in enumerate(elements):
        if pack > 1 and not isinstance(element, PointerType) and element.is_bool:
            raise AssemblyError(
                "truth values cannot be packed", "cast them to 8-bit integers, or use pack=1"
            )
        count = elements_per_register(element, pack)
        packs += [(value, first, count) for first in range(0, pack, count)]
    if len(constraints) != len(packs):
        shown = ", ".join(map(str, elements)) or "none"
        raise AssemblyError(
            f"expected {len(packs)} {role} constraints for {pack} elements each of {shown}, "
            f"got {len(constraints)}",
            "every 32 bits of packed narrow elements take a register, and so does every wider one",
        )
    registers: list[Register] = []
    for constraint, (value, first, count) in zip(constraints, packs, strict=True):
        element, tied = elements[value], -1
        letter = constraint
        if constraint.isdecimal() and int(constraint) < len(tied_letters):
            tied = int(constraint)
            if any(register.tied == tied for register in registers):
                raise AssemblyError(f"two inputs share the register of output {tied}")
            letter = tied_letters[tied]
        if letter not in REGISTER_BITS:
            raise AssemblyError(
                f"{constraint!r} is no {role} constraint that is known",
                f"registers are {', '.join(REGISTER_BITS)} of 16, 32, 64, 32 and 64 bits",
            )
        register = Register(letter, element, value, first, count, tied)
        fits = register.used_bits <= register.bits
        if not fits or (letter in _FLOAT_REGISTERS and register.used_bits != register.bits):
            many = f"{count} of {element}" if count > 1 else str(element)
            raise AssemblyError(
                f"a register {letter!r} of {register.bits} bits cannot hold {many}",
                f"use {_fitting(register.used_bits)!r}",
            )
        registers.append(register)
    return registers


def _fitting(bits: int) -> str:
    return next(letter for letter in ("h", "r", "l") if REGISTER_BITS[letter] >= bits)


def _check_references(text: str, num_operands: int) -> None:
    if "\0" in text:
        raise AssemblyError("the assembly has a zero character")
    for reference in _OPERAND.finditer(text):
        number = reference["plain"] or reference["braced"]
        if number is None and reference["escape"] is None:
            raise AssemblyError(
                f"a single $ stands in front of {text[reference.end() : reference.end() + 8]!r}",
                "write $0 or ${0} for an operand, and $$ for the character",
            )
        if number is not None and int(number) >= num_operands:
            raise AssemblyError(
                f"the assembly names the operand ${number}, but there are {num_operands}"
            )


def renumbered(text: str, names: Mapping[int, str]) -> str:
    """Rename the operands in a text; escapes stay."""

    def replaced(reference: re.Match[str]) -> str:
        number = reference["plain"] or reference["braced"]
        return reference[0] if number is None else names.get(int(number), reference[0])

    return _OPERAND.sub(replaced, text)


def substituted(text: str, name: Callable[[int], str]) -> str:
    """Return assembly with `name(number)` in place of its operands."""

    def replaced(reference: re.Match[str]) -> str:
        number = reference["plain"] or reference["braced"]
        return "$" if number is None else name(int(number))

    return _OPERAND.sub(replaced, text)
