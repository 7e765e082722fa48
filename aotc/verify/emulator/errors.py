"""The error for what the emulator cannot run, as opposed to what a program may not do.

A `Fault` is the program's mistake, found while it runs; an `EmulationError` is ours or the
caller's: text that is no PTX, an instruction that is not known, arguments that do not fit.
"""

from __future__ import annotations


class EmulationError(Exception):
    """Report what cannot be emulated; `line` counts from 1 in the PTX text, 0 says nothing."""

    def __init__(self, message: str, *, line: int = 0, text: str = "") -> None:
        place = f"line {line}: " if line else ""
        quote = f"\n    {text}" if text else ""
        super().__init__(f"{place}{message}{quote}")
        self.message = message
        self.line = line
        self.text = text
