"""Basic blocks of PTX text, for checks of the compiler's output.

Only lines with several statements, or with the beginning or end of a block, are split. All others
stay whole lines, since most checks look at few of them.

Inline assembly of several statements may have labels of its own. They hide others within its
braces.

Invariant: blocks are in the order of the text and cover its statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_APART = re.compile(
    r"\n[ \t]*(?:\{(?!\s*%)|\}|[$\w]+:|(?:@[^\n;]*[ \t])?(?:bra|brx|ret|exit|trap|wgmma)\b|[^;\n]*;[ \t]*[^\s/])"
    r"[^\n]*"
)
_PIECE = re.compile(r"\s*(?:([\w$%]+)\s*:(?!:)|([{}])|([^;]+);)")
_GUARD = re.compile(r"@!?[\w%$]+\s+")
_NAME = re.compile(r"[\w$%]+")
_ENDS = ("bra", "brx", "ret", "exit", "trap")


@dataclass(frozen=True, slots=True)
class Part:
    """A statement without guard and semicolon, or whole lines of statements that fall through.

    `offset` is on its line of the text, for lines where the first begins. No two parts have the
    same. A statement may go over several lines.
    """

    offset: int
    text: str
    is_lines: bool = False


@dataclass(slots=True)
class Block:
    """Consecutive statements; `successors` are indices of blocks."""

    is_entry: bool = False
    parts: list[Part] = field(default_factory=list[Part])
    successors: list[int] = field(default_factory=list[int])


def split_blocks(ptx: str) -> list[Block]:
    """Return the basic blocks of all functions of a module."""
    builder = _Builder()
    end = 0
    for match in _APART.finditer(ptx):
        start = match.start() + 1  # a text begins with a directive
        builder.add_lines(end, ptx[end:start])
        end = match.end()
        for offset, piece in _pieces(match.group()):
            builder.add(match.start() + offset, piece)
    return builder.finish()


def without_guard(statement: str) -> str:
    """Return a statement without its guard predicate."""
    guard = _GUARD.match(statement) if statement.startswith("@") else None
    return statement if guard is None else statement[guard.end() :]


def _pieces(line: str) -> Iterator[tuple[int, str]]:
    """Yield labels with their colon, braces of scopes, and statements, each with its offset."""
    text = line.partition("//")[0].rstrip()
    if text[-1:] == ";" and not any(char in text for char in ":{}") and text.count(";") == 1:
        yield 1, text[:-1].strip()
        return
    for match in _PIECE.finditer(text):
        label, brace, statement = match.groups()
        yield match.end() - 1, f"{label}:" if label else brace or statement.strip()


_Scope = dict[str, int]  # blocks by label


class _Builder:
    """Blocks as far as the text has been read."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.falls = False
        self.scopes: list[_Scope] = []
        self.jumps: list[tuple[int, str, list[_Scope]]] = []

    def add_lines(self, offset: int, lines: str) -> None:
        """Add lines of statements that fall through; outside of braces are declarations."""
        if self.scopes and not lines.isspace() and lines:
            self._add_part(Part(offset, lines, is_lines=True))

    def add(self, offset: int, piece: str) -> None:
        """Add a label, a brace or a statement."""
        if piece == "{":
            if not self.scopes:
                self._begin(is_entry=True)
            self.scopes.append({})
        elif piece == "}":
            del self.scopes[-1:]
        elif self.scopes and piece[-1:] == ":":
            self._begin()
            self.scopes[-1][piece[:-1]] = len(self.blocks) - 1
        elif self.scopes and piece:
            self._add_statement(offset, piece)

    def finish(self) -> list[Block]:
        """Return all blocks, with the targets of jumps among their successors."""
        for index, jump, scopes in self.jumps:
            for target in _targets(jump, scopes):
                if target not in self.blocks[index].successors:
                    self.blocks[index].successors.append(target)
        return self.blocks

    def _begin(self, *, is_entry: bool = False) -> None:
        if self.falls and not is_entry:
            self.blocks[-1].successors.append(len(self.blocks))
        self.blocks.append(Block(is_entry))
        self.falls = True

    def _add_part(self, part: Part) -> None:
        if not self.falls:
            self._begin()
        self.blocks[-1].parts.append(part)

    def _add_statement(self, offset: int, statement: str) -> None:
        text = without_guard(statement)
        self._add_part(Part(offset, text))
        opcode = text.split(maxsplit=1)[0].partition(".")[0]
        if opcode in _ENDS:
            if opcode in ("bra", "brx"):
                self.jumps.append((len(self.blocks) - 1, text, [*self.scopes]))
            self.falls = text is not statement
            if self.falls:
                self._begin()


def _targets(jump: str, scopes: list[_Scope]) -> Iterator[int]:
    """Yield the possible targets of a jump; an indirect jump may go to any label."""
    names = _NAME.findall(jump)
    target = next((scope[names[-1]] for scope in reversed(scopes) if names[-1] in scope), None)
    if target is not None and names[0] == "bra":
        yield target
    else:
        yield from (block for scope in scopes for block in scope.values())
