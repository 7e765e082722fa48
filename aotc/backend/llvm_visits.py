"""Bound the comparisons and visits of LLVM's code generator in a long module.

- Straight-line strength reduction compares each address, sum and product with all before it that share a
  base, a stride or an index: 90 s for a thousand dependent loads. In a long module, each window of
  candidates reads frozen copies of earlier values, so only candidates of one window share anything.
- CodeGenPrepare replaces uses of an extended value in other blocks by the extension, truncated: one use in
  each walk over the function. It does not where the extension reads a copy of its own.

A `freeze` is opaque to both and costs no instruction. A module below the threshold is unchanged.

Invariant: a copy is written in the block that reads it, after the block's phis.
"""

from __future__ import annotations

import re

_THRESHOLD = 1024
_WINDOW = 64

_CANDIDATE = re.compile(r"^  %[\w.]+ = (?:getelementptr|add|mul)\b.*", re.MULTILINE)
_EXTENSION = re.compile(r"(  %[\w.]+ = [sz]ext) (i\d+) (%[\w.]+) (to .*)")
_RESULT = re.compile(r"  (%[\w.]+) = ")
_ADDRESS_OPERAND = re.compile(r"\b(ptr(?: addrspace\(\d+\))?|i\d+) (%[\w.]+)")
_INTEGERS = re.compile(r"(.* (?:add|mul)(?: nuw| nsw)*) (i\d+) ([%\w.-]+), ([%\w.-]+)(.*)")


def bound_visits(llvm_ir: str, threshold: int = _THRESHOLD, window: int = _WINDOW) -> str:
    """Return a module with bounded visits; a short one is unchanged."""
    count = sum(1 for _ in _CANDIDATE.finditer(llvm_ir))
    return _Windows(window).divided(llvm_ir) if count > threshold else llvm_ir


class _Windows:
    """Rewrite the lines of a module, one window of candidates after another."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lines: list[str] = []
        self._num_copies = 0
        self._start()

    def _start(self) -> None:
        self._num_candidates = 0
        self._own: set[str] = set()
        self._copies: dict[str, str] = {}

    def divided(self, llvm_ir: str) -> str:
        for line in llvm_ir.split("\n"):
            # A copy does not dominate the blocks after its own.
            if line.endswith(":") or self._num_candidates == self._size:
                self._start()
            text = line
            if _CANDIDATE.match(line):
                self._num_candidates += 1
                text = self._of_window(line)
            elif extension := _EXTENSION.match(line):
                head, kind, operand, tail = extension.groups()
                text = f"{head} {kind} {self._frozen(kind, operand)} {tail}"
            if result := _RESULT.match(line):
                self._own.add(result[1])
            self._lines.append(text)
        return "\n".join(self._lines)

    def _of_window(self, line: str) -> str:
        if " getelementptr " in line:
            return _ADDRESS_OPERAND.sub(lambda m: f"{m[1]} {self._copy(m[1], m[2])}", line)
        parts = _INTEGERS.match(line)
        if parts is None:  # of vectors, never candidates
            return line
        head, kind, left, right, tail = parts.groups()
        return f"{head} {kind} {self._copy(kind, left)}, {self._copy(kind, right)}{tail}"

    def _copy(self, kind: str, operand: str) -> str:
        """Return the window's copy of an operand from before the window."""
        if not operand.startswith("%") or operand in self._own:
            return operand
        if operand not in self._copies:
            self._copies[operand] = self._frozen(kind, operand)
        return self._copies[operand]

    def _frozen(self, kind: str, operand: str) -> str:
        """Return a new copy of an operand."""
        copy = f"%frozen{self._num_copies}"
        self._num_copies += 1
        self._lines.append(f"  {copy} = freeze {kind} {operand}")
        return copy
