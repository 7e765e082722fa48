"""What can go wrong: in the program that runs, and in asking the emulator to run it.

A `Fault` is the program's mistake, found while it runs; where no instruction is at hand it starts as
a `Misuse`. An `EmulationError` is ours or the caller's: text that is no PTX, an instruction that is
not known (a rule says so by `Unsupported`), arguments that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.verify.emulator.syntax import Instruction, Place


class EmulationError(Exception):
    """Report what cannot be emulated; `line` counts from 1 in the PTX text, 0 says nothing."""

    def __init__(self, message: str, *, line: int = 0, text: str = "") -> None:
        place = f"line {line}: " if line else ""
        quote = f"\n    {text}" if text else ""
        super().__init__(f"{place}{message}{quote}")
        self.message = message
        self.line = line
        self.text = text


class Unsupported(Exception):  # noqa: N818 - what the rule says, not what went wrong
    """Say what of an instruction is not known; the emulator adds the instruction and its line."""


class Fault(Exception):  # noqa: N818 - hardware's word
    """Report what a program may not do, with the PTX line, the source line, CTA and thread."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        line: int = 0,
        text: str = "",
        place: Place | None = None,
        cta: Sequence[int] = (),
        thread: int | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.line = line
        self.text = text
        self.place = place
        self.cta = tuple(cta)
        self.thread = thread
        self.notes = tuple(notes)

    def __str__(self) -> str:
        where = f"; line {self.line}: {self.text}" if self.line else ""
        return f"{self.kind}: {self.message}{where}"


class Misuse(Exception):  # noqa: N818 - what a program did, not what went wrong here
    """Report a lane that does what it may not to memory or to a barrier.

    Raised where no `Context` is at hand, in an instruction or in a deferred action; the engine
    makes a `Fault` of it. `lane` is that of the batch, None if no lane in particular did it, and
    `instruction` the one to blame if that is not the one being executed.
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
