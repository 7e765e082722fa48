"""The instructions of a cubin, each with its line of the source and its live registers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aotc import stages

_FUNCTION = re.compile(r"^\.text\.(?P<name>\S+):")
_PLACE = re.compile(r'^\s*//## File "(?P<file>.*)", line (?P<line>\d+)')
_INSTRUCTION = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<text>.*?)\s*;")
_LIVE = re.compile(r"// \|\s*(?P<live>\d+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of SASS; `file` and `line` are "" and 0 without a line table."""

    address: int
    text: str
    file: str
    line: int
    live_registers: int


def instructions_of(cubin: bytes) -> list[Instruction]:
    """Return the instructions of a cubin's functions, in order. Raises: IRError if it is none."""
    live = _live_registers(stages.disassemble(cubin, "registers"))
    instructions: list[Instruction] = []
    function, file, line = "", "", 0
    for text in stages.disassemble(cubin, "lines").splitlines():
        if (match := _FUNCTION.match(text)) is not None:
            _drop_padding(instructions)
            function, file, line = match["name"], "", 0
        elif (match := _PLACE.match(text)) is not None:
            file, line = match["file"], int(match["line"])
        elif (match := _INSTRUCTION.match(text)) is not None:
            address = int(match["address"], 16)
            count = live.get((function, address), 0)
            instructions.append(Instruction(address, match["text"], file, line, count))
    _drop_padding(instructions)
    return instructions


def _drop_padding(instructions: list[Instruction]) -> None:
    """Drop the instructions after the end of a function, which fill its last cache line."""
    while instructions and instructions[-1].text == "NOP":
        instructions.pop()


def _live_registers(listing: str) -> dict[tuple[str, int], int]:
    """Return the live registers of each instruction, by function and address."""
    live: dict[tuple[str, int], int] = {}
    function = ""
    for text in listing.splitlines():
        if (match := _FUNCTION.match(text)) is not None:
            function = match["name"]
        elif (match := _INSTRUCTION.match(text)) is not None:
            count = _LIVE.search(text, match.end())
            live[function, int(match["address"], 16)] = int(count["live"]) if count else 0
    return live
