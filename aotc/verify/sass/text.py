"""Parse nvdisasm's text of a cubin into functions and instructions.

Only the shape of a line is known here: an address, a guard, an opcode, operands; for the
meaning of opcodes see `instructions.py`. Labels are resolved to addresses; with `nvdisasm -g`
each instruction has its source line.

Invariant: every line with an address becomes an instruction, or an error names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_INSTRUCTION = re.compile(
    r"/\*(?P<address>[0-9a-f]{4,})\*/\s+"
    r"(?:@(?P<negated>!?)(?P<guard>U?P[0-9T]+)\s+)?"
    r"(?P<opcode>[A-Z][A-Za-z0-9_.]*)(?P<operands>[^;]*);"
)
_ADDRESS = re.compile(r"\s*/\*[0-9a-f]{4,}\*/")
_LABEL = re.compile(r"(?P<name>[.$\w]+):\s*$")
_SECTION = re.compile(r"\s*\.section\s+\.text\.(?P<name>[^,\s]+)")
_LINE = re.compile(r'\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')
_TARGETS = re.compile(r"\(\*\"BRANCH_TARGETS ([^\"]*)\"\*\)")
_ANNOTATION = re.compile(r"\(\*.*?\*\)")
_REFERENCE = re.compile(r"`\((?P<name>[^)]+)\)")
_OPERAND = re.compile(r"(?:[^,\[\(]|\[[^\]]*\]|\([^)]*\))+")


class SassError(Exception):
    """Report text not in nvdisasm's format."""


class Guard(NamedTuple):
    """The predicate of an instruction: `name` or, if negated, not `name`."""

    name: str
    is_negated: bool

    @property
    def is_uniform(self) -> bool:
        """Whether it is a predicate of the warp, not of its lanes."""
        return self.name.startswith("U")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction; `name` is its opcode up to the first dot, `modifiers` the rest.

    `targets` are the addresses among its operands, `source` its file and line.
    """

    address: int
    guard: Guard | None
    opcode: str
    operands: tuple[str, ...]
    text: str
    targets: tuple[int, ...] = ()
    source: str = ""
    name: str = field(init=False)
    modifiers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        name, *modifiers = self.opcode.split(".")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "modifiers", tuple(modifiers))


@dataclass(frozen=True, slots=True)
class Function:
    """The instructions of one `.text` section, in the order of their addresses."""

    name: str
    instructions: tuple[Instruction, ...]


class _Line(NamedTuple):
    match: re.Match[str]
    source: str


def parse(text: str) -> tuple[Function, ...]:
    """Parse the functions of a cubin's text. Raises: SassError for an unreadable line."""
    functions: list[Function] = []
    name = ""
    lines: list[_Line] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []  # labels of the next instruction
    source = ""

    def close() -> None:
        if lines:
            functions.append(Function(name, tuple(_instructions(lines, labels))))
        lines.clear()
        labels.clear()
        waiting.clear()

    for line in text.splitlines():
        match = _INSTRUCTION.search(line)
        if match is not None:
            address = int(match["address"], 16)
            if lines and address <= int(lines[-1].match["address"], 16):
                close()  # text without section headers: a new function starts at 0 again
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            lines.append(_Line(match, source))
            continue
        if _ADDRESS.match(line):
            raise SassError(f"expected an instruction, got {line.strip()!r}")
        section = _SECTION.match(line)
        label = _LABEL.match(line)
        location = _LINE.match(line)
        if section is not None:
            close()
            name, source = section["name"], ""
        elif label is not None:
            waiting.append(label["name"])
        elif location is not None:
            source = f"{location['file']}:{location['line']}"
    close()
    return tuple(functions)


def _instructions(lines: list[_Line], labels: dict[str, int]) -> Iterator[Instruction]:
    for match, source in lines:
        operands = match["operands"]
        targets = _TARGETS.search(operands)
        names = targets[1].split(",") if targets else _REFERENCE.findall(operands)
        operands = _ANNOTATION.sub("", operands)
        parts = tuple(part.strip() for part in _OPERAND.findall(operands) if part.strip())
        guard = Guard(match["guard"], bool(match["negated"])) if match["guard"] else None
        text = " ".join(_ANNOTATION.sub("", match[0]).split("*/", 1)[1].rstrip(";").split())
        addresses = tuple(labels[name.strip()] for name in names if name.strip() in labels)
        yield Instruction(
            int(match["address"], 16), guard, match["opcode"], parts, text, addresses, source
        )
