"""Write LLVM IR as text: one function, each pure expression once.

Text is faster to build and to parse than builder objects, and it is readable. The emitter numbers
values as it goes: a pure instruction is not repeated where its first occurrence dominates. So a
splat costs one computation for any number of registers, without an optimiser. Every operand must be
emitted before its use.

Values of the thread id alone go to the prologue, outside of all loops.

Invariant: a name returned by `value` is valid until the end of the innermost scope at the call.
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


class PendingEffect(Protocol):
    """An effect that may grow until the next one is written."""

    def text(self) -> str:
        """Return the instruction, its debug suffix included."""
        ...


def quoted(data: bytes) -> str:
    """Return bytes as in a quoted string of LLVM IR."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in data
    )


class Emitter:
    """Write the body of one LLVM function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.prologue: list[str] = []
        self.buffer_bytes = 0
        """Size of the thread-local buffer for arguments of calls."""
        self.sections: list[str] = []
        """The text of all completed sections."""
        self.declarations: dict[str, None] = {}
        self.globals: dict[str, str] = {}
        self.structs: dict[str, str] = {}
        """Names of structure types, by their definitions."""
        self.metadata: list[str] = []
        self.debug_suffix = ""
        self.parts: dict[str, tuple[str, int]] = {}
        """Values known to be parts of an i32 word: a byte or a half, and its position, 0 the lowest."""
        self.packed: dict[tuple[str, ...], str] = {}
        """Integer words known to hold these values, the first in the lowest bits."""
        self.conjuncts: dict[str, tuple[str, ...]] = {}
        """The i1 operands whose conjunction is an i1."""
        self._texts: dict[str, str] = {}
        self.label = "entry"
        self.held: PendingEffect | None = None
        """An effect to be written before the next one; pure values go before it."""
        self._known: dict[str, str] = {}
        """The values that are numbered in any open scope, by their texts."""
        self._in_scope: list[str] = []
        """The texts that the innermost scope has numbered."""
        self._thread_known: dict[str, str] = {}
        self._names = 0
        self._labels = 0

    # ---- instructions --------------------------------------------------------

    def value(self, text: str) -> str:
        """Return the value of a pure instruction, writing it unless it was written before."""
        name = self._known.get(text) or self._thread_known.get(text)
        if name is None:
            name = self._write(text)
            self._known[text] = name
            self._in_scope.append(text)
            self._texts[name] = text
        return name

    def is_constant(self, operand: str) -> bool:
        """Return whether an operand is a literal, or a pure value of literals alone.

        A select between two of them counts too: they may be equal.
        """
        worklist = [operand] if operand.startswith("%") else []
        seen = dict.fromkeys(worklist)
        while worklist:
            text = self._texts.get(worklist.pop())
            if text is None:
                return False
            names = _NAME.findall(text)
            if text.startswith("select i1 %"):
                names = names[1:]
            worklist += [name for name in dict.fromkeys(names) if name not in seen]
            seen.update(dict.fromkeys(names))
        return True

    def thread_value(self, text: str) -> str:
        """Return a pure value of the thread id alone, computed in the prologue."""
        name = self._thread_known.get(text)
        if name is None:
            name = self.name()
            self.prologue.append(f"  {name} = {text}")
            self._thread_known[text] = name
        return name

    def fresh(self, text: str) -> str:
        """Write an instruction with a result never shared: loads, shuffles, phis."""
        self.release()
        return self._write(text)

    def effect(self, text: str) -> None:
        """Write an instruction without a result."""
        self.release()
        self.lines.append(f"  {text}{self.debug_suffix}")

    def hold(self, instruction: PendingEffect) -> None:
        """Defer an effect until just before the next one."""
        self.release()
        self.held = instruction

    def release(self) -> None:
        """Write the deferred effect, if any."""
        if self.held is not None:
            self.lines.append(f"  {self.held.text()}")
            self.held = None

    def _write(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}{self.debug_suffix}")
        return name

    def name(self) -> str:
        """Return an unused local name."""
        self._names += 1
        return f"%v{self._names}"

    def start_section(self) -> None:
        """Begin a part of the function with its own prologue, forgetting earlier values.

        It begins in the outermost scope, where it dominates all later code.
        """
        self.release()
        self.sections += [*self.prologue, *self.lines]
        self.prologue, self.lines = [], []
        self._thread_known.clear()

    # ---- calls ---------------------------------------------------------------

    def call(self, kind: str, callee: str, arguments: Sequence[Argument] = ()) -> str:
        """Call a pure function of LLVM type `kind`, such as an intrinsic."""
        return self.value(self.call_text(kind, callee, arguments))

    def call_text(self, kind: str, callee: str, arguments: Sequence[Argument] = ()) -> str:
        """Declare `callee` and return the text of a call of it."""
        self.declare(kind, callee, [type_ for type_, _ in arguments])
        shown = ", ".join(f"{type_} {operand}" for type_, operand in arguments)
        return f"call {kind} @{callee}({shown})"

    def buffer(self, size_bytes: int) -> str:
        """Return the address of the thread-local buffer, shared by all callers."""
        self.buffer_bytes = max(self.buffer_bytes, size_bytes)
        return _BUFFER

    def own_buffer(self) -> list[str]:
        """Return the allocation of the buffer, if it is used."""
        text = f"  {_BUFFER} = alloca [{self.buffer_bytes} x i8], align 8"
        return [text] if self.buffer_bytes else []

    def declare(self, kind: str, callee: str, types: Sequence[str]) -> None:
        """Declare a function."""
        self.declarations.setdefault(f"declare {kind} @{callee}({', '.join(types)})")

    def struct(self, kinds: Sequence[str]) -> str:
        """Return the name of a structure type; spelled out, they would dominate the text."""
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
        """Return an unused block label."""
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
        """Forget the values numbered in the `with` block at its end."""
        outer, self._in_scope = self._in_scope, []
        try:
            yield
        finally:
            for text in self._in_scope:
                del self._known[text]
            self._in_scope = outer

    # ---- backtracking ------------------------------------------------------------

    def mark(self) -> tuple[int, str]:
        """Return a position for `rewind`."""
        self.release()
        return (len(self.lines), self.label)

    def rewind(self, mark: tuple[int, str]) -> None:
        """Drop the body written since `mark`; it must have been written in a scope, now closed.

        Names stay used, and the prologue keeps its values, merely unused.
        """
        length, self.label = mark
        self.held = None
        del self.lines[length:]
