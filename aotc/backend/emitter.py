"""LLVM IR as text: one function being written, each pure expression once.

Text is faster to build and to parse than builder objects are to make, and it can be read. The
emitter numbers values as it goes: a pure instruction whose text was already written where it
dominates is not written again, so a splat costs one computation however many registers it has,
and no optimiser has to find that out later. Every operand must be emitted before it is used.

What depends on the thread's number alone goes to the prologue, outside of all loops.

Invariant: a name returned by `value` is valid until the innermost scope it was asked in ends.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

Argument = tuple[str, str]
"""LLVM type and operand."""

_BUFFER = "%arguments"
_NAME = re.compile(r"%\w+")


class Held(Protocol):
    """An effect that more may be added to until the next one is written."""

    def text(self) -> str:
        """Return the instruction, its debug suffix included."""
        ...


def quoted(data: bytes) -> str:
    """Return bytes as they stand between quotation marks in LLVM IR."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in data
    )


class Emitter:
    """Write the body of one LLVM function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.prologue: list[str] = []
        self.buffer_bytes = 0
        """Size of the buffer of a thread's own that calls pass arguments in."""
        self.sections: list[str] = []
        """What is written in full, ahead of the prologue."""
        self.declarations: dict[str, None] = {}
        self.globals: dict[str, str] = {}
        self.structs: dict[str, str] = {}
        """Names of structures' types, by what they are."""
        self.metadata: list[str] = []
        self.debug_suffix = ""
        self.parts: dict[str, tuple[str, int]] = {}
        """Values of 8 or 16 bits known to be a byte or half of an i32 word, 0 the lowest."""
        self.packed: dict[tuple[str, ...], str] = {}
        """Integer words known to hold these values, the first in the lowest bits."""
        self.conjuncts: dict[str, tuple[str, ...]] = {}
        """What has to hold, each an i1, for an i1 to hold."""
        self._texts: dict[str, str] = {}
        self.label = "entry"
        self.held: Held | None = None
        """An effect that is written ahead of the next one; pure values go before it."""
        self._known: list[dict[str, str]] = [{}]
        self._thread_known = self._known[0]
        self._known.append({})
        self._names = 0
        self._labels = 0

    # ---- instructions --------------------------------------------------------

    def value(self, text: str) -> str:
        """Return the name of the value of a pure instruction, written now unless it is known."""
        for scope in reversed(self._known):
            name = scope.get(text)
            if name is not None:
                return name
        name = self._write(text)
        self._known[-1][text] = name
        self._texts[name] = text
        return name

    def is_constant(self, operand: str) -> bool:
        """Return whether an operand is a literal, or a pure value of literals alone.

        A choice between two of them counts as one: they may be the same.
        """
        if not operand.startswith("%"):
            return True
        text = self._texts.get(operand)
        if text is None:
            return False
        names = _NAME.findall(text)
        if text.startswith("select i1 %"):
            names = names[1:]
        return all(map(self.is_constant, names))

    def thread_value(self, text: str) -> str:
        """Return the name of a pure value of the thread's number, computed in the prologue."""
        name = self._thread_known.get(text)
        if name is None:
            name = self.name()
            self.prologue.append(f"  {name} = {text}")
            self._thread_known[text] = name
        return name

    def fresh(self, text: str) -> str:
        """Write an instruction with a result, always anew: loads, shuffles, phis."""
        self.release()
        return self._write(text)

    def effect(self, text: str) -> None:
        """Write an instruction without a result."""
        self.release()
        self.lines.append(f"  {text}{self.debug_suffix}")

    def hold(self, held: Held) -> None:
        """Write an effect ahead of the next one."""
        self.release()
        self.held = held

    def release(self) -> None:
        """Write the effect that is held, if any."""
        if self.held is not None:
            self.lines.append(f"  {self.held.text()}")
            self.held = None

    def _write(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}{self.debug_suffix}")
        return name

    def name(self) -> str:
        """Return a local name that is not in use."""
        self._names += 1
        return f"%v{self._names}"

    def start_section(self) -> None:
        """Begin a part of the function with a prologue of its own; nothing is known there.

        It begins in the outermost scope, where what was written dominates all that follows.
        """
        self.release()
        self.sections += [*self.prologue, *self.lines]
        self.prologue, self.lines = [], []
        self._thread_known.clear()

    # ---- calls ---------------------------------------------------------------

    def call(self, kind: str, callee: str, arguments: Sequence[Argument] = ()) -> str:
        """Return the result of a pure function of LLVM type `kind`, such as an intrinsic."""
        return self.value(self.call_text(kind, callee, arguments))

    def call_text(self, kind: str, callee: str, arguments: Sequence[Argument] = ()) -> str:
        """Declare `callee` and return the text of a call of it."""
        self.declare(kind, callee, [type_ for type_, _ in arguments])
        shown = ", ".join(f"{type_} {operand}" for type_, operand in arguments)
        return f"call {kind} @{callee}({shown})"

    def buffer(self, size_bytes: int) -> str:
        """Return the address of a buffer of the thread's own, the same for all who ask."""
        self.buffer_bytes = max(self.buffer_bytes, size_bytes)
        return _BUFFER

    def own_buffer(self) -> list[str]:
        """Return what makes the buffer, if anybody asked for it."""
        text = f"  {_BUFFER} = alloca [{self.buffer_bytes} x i8], align 8"
        return [text] if self.buffer_bytes else []

    def declare(self, kind: str, callee: str, types: Sequence[str]) -> None:
        """Declare a function."""
        self.declarations.setdefault(f"declare {kind} @{callee}({', '.join(types)})")

    def struct(self, kinds: Sequence[str]) -> str:
        """Return the name of a structure's type: in full it would be the better part of a module."""
        return self.structs.setdefault(f"{{{', '.join(kinds)}}}", f"%struct.{len(self.structs)}")

    def string(self, content: str) -> str:
        """Return the name of a constant zero-terminated string."""
        data = content.encode() + b"\0"
        text = quoted(data)
        name = f"@.str.{len(self.globals)}"
        return self.globals.setdefault(
            f'private unnamed_addr addrspace(1) constant [{len(data)} x i8] c"{text}", align 1',
            name,
        )

    # ---- blocks --------------------------------------------------------------

    def new_label(self, stem: str) -> str:
        """Return a block label that is not in use."""
        self._labels += 1
        return f"{stem}{self._labels}"

    def start_block(self, label: str) -> None:
        """Begin the block `label`; the one before must have ended in a branch."""
        self.release()
        self.lines.append(f"{label}:")
        self.label = label

    def branch(self, target: str, suffix: str = "") -> None:
        """Jump to `target`."""
        self.effect(f"br label %{target}{suffix}")

    def branch_if(self, condition: str, yes: str, no: str, suffix: str = "") -> None:
        """Jump to `yes` if `condition` holds, else to `no`."""
        self.effect(f"br i1 {condition}, label %{yes}, label %{no}{suffix}")

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget, at the end of the `with` block, the values numbered inside of it."""
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()

    # ---- attempts ------------------------------------------------------------

    def mark(self) -> tuple[int, str]:
        """Return a position that `rewind` goes back to."""
        self.release()
        return (len(self.lines), self.label)

    def rewind(self, mark: tuple[int, str]) -> None:
        """Drop the body written since `mark`; it must have been written in a scope, now closed.

        Names stay used and the prologue stays written: what is left there is merely unused.
        """
        length, self.label = mark
        self.held = None
        del self.lines[length:]
