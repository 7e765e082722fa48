"""Errors of the emulated program, and errors of asking for an emulation.

A `Fault` is the program's mistake, found at run time. Where no instruction is at hand, it starts as
a `Misuse`. An `EmulationError` is ours or the caller's: invalid PTX, an unsupported instruction (a
rule raises `Unsupported`), arguments that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.verify.emulator.syntax import Instruction, SourceLocation


class EmulationError(Exception):
    """Report PTX or arguments outside the emulator's reach.

    `line` counts from 1 in the PTX text; 0 means unknown.
    """

    def __init__(self, message: str, *, line: int = 0, text: str = "") -> None:
        location = f"line {line}: " if line else ""
        quote = f"\n    {text}" if text else ""
        super().__init__(f"{location}{message}{quote}")
        self.message = message
        self.line = line
        self.text = text


class Unsupported(Exception):  # noqa: N818 - named by the rule's statement
    """Name the unsupported part of an instruction; the emulator adds the instruction."""


class Fault(Exception):  # noqa: N818 - hardware's word
    """Report an illegal act of a program: its PTX line, source line, CTA and thread."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        line: int = 0,
        text: str = "",
        location: SourceLocation | None = None,
        cta: Sequence[int] = (),
        thread: int | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.line = line
        self.text = text
        self.location = location
        self.cta = tuple(cta)
        self.thread = thread
        self.notes = tuple(notes)

    def __str__(self) -> str:
        where = f"; line {self.line}: {self.text}" if self.line else ""
        return f"{self.kind}: {self.message}{where}"


class Misuse(Exception):  # noqa: N818 - named by the program's act
    """Report a lane's illegal access to memory, or illegal use of a barrier.

    Raised where no `Context` is at hand, in an instruction or a deferred action; the engine turns
    it into a `Fault`. `lane` is the lane within the batch, None if no single lane is to blame.
    `instruction` is the one to blame, if not the one in execution.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        lane: int | None = None,
        instruction: Instruction | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.lane = lane
        self.instruction = instruction
        self.notes = tuple(notes)
