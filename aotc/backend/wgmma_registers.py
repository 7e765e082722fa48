"""Check the PTX of a kernel for accesses to registers of an unfinished `wgmma`.

A `wgmma` reads its fragments of A and updates its accumulator until a `wgmma.wait_group` covers its
commit group. Before, writes to such a fragment and any access to such an accumulator are undefined.
ptxas neither refuses nor mends it, and results are wrong now and then.

This is a forward data-flow analysis over the control-flow graph, back edges included. The state
maps each `wgmma` in flight to the age of its group: 0 until it is committed, then 1 for the newest.
Where paths meet, the lowest age holds, since it is waited for last.

A `wgmma` may continue an accumulator in flight if it names the same registers in the same order.
Unlike in the emulator, which follows one run, nothing may copy it.

Source: PTX ISA 9.7.15.7.1 `wgmma.fence`, 9.7.15.7.3 `wgmma.wait_group`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Literal

from aotc.backend.ptx_blocks import Block, Part, split_blocks, without_guard

_REGISTER = re.compile(r"%[a-z]+\d+")
_MMA = re.compile(r"wgmma\.mma_async\S*\s*\{([^}]*)\}\s*,\s*(?:\{([^}]*)\})?")
_WRITES_NOTHING = frozenset(
    ("bra", "brx", "call", "exit", "nanosleep", "ret", "setmaxnreg", "st", "trap")
)
_BARRIERS = frozenset(("bar", "barrier"))

_Ages = dict[int, int]
"""The age of the commit group of each `wgmma` in flight, by its offset in the text."""


@dataclass(frozen=True, slots=True, order=True)
class RegisterHazard:
    """A register accessed by a line of the PTX while the `wgmma` of another is in flight."""

    line: int
    register: str
    access: Literal["read", "written"]
    wgmma_line: int
    use: Literal["read", "write"]

    def __str__(self) -> str:
        return (
            f"{self.register} is {self.access} at line {self.line} of the PTX while the wgmma of "
            f"line {self.wgmma_line} is yet to {self.use} it"
        )


@lru_cache(maxsize=2)  # emission and the caller's check ask about the same text
def find_hazards(ptx: str) -> tuple[RegisterHazard, ...]:
    """Return accesses to registers of an unfinished `wgmma`, in the order of the text."""
    if "wgmma.mma_async" not in ptx:
        return ()
    blocks = split_blocks(ptx)
    check = _Check(ptx)
    entries: list[_Ages | None] = [{} if block.is_entry else None for block in blocks]
    waiting = [index for index, block in enumerate(blocks) if block.is_entry]
    while waiting:
        index = heappop(waiting)
        entry = entries[index]
        assert entry is not None
        ages = check.run(blocks[index], entry)
        for after in blocks[index].successors:
            entry_ages = entries[after]
            merged = ages if entry_ages is None else _merged(entry_ages, ages)
            if merged is not entry_ages:
                entries[after] = merged
                if after not in waiting:
                    heappush(waiting, after)
    return tuple(sorted(check.hazards))


def _merged(first: _Ages, ages: _Ages) -> _Ages:
    """Return the dots in flight on either of two paths: the first itself if it covers both."""
    younger = {offset: age for offset, age in ages.items() if first.get(offset, age + 1) > age}
    return {**first, **younger} if younger else first


@dataclass(frozen=True, slots=True)
class _Mma:
    """The registers of a `wgmma.mma_async`."""

    accumulator: tuple[str, ...]
    fragment: frozenset[str]
    registers: frozenset[str]


class _Check:
    """The hazards of a pass over the blocks of a text."""

    def __init__(self, ptx: str) -> None:
        self.ptx = ptx
        self.hazards: dict[RegisterHazard, None] = {}
        self.mmas: dict[int, _Mma] = {}
        self.in_flight: dict[tuple[int, ...], frozenset[str]] = {}

    def run(self, block: Block, entry: _Ages) -> _Ages:
        """Return the dots in flight after a block; record its hazards."""
        ages = entry
        for part in block.parts:
            text = part.text
            if part.is_lines or not text.startswith("wgmma."):
                if ages:
                    self._touch(part, ages)
            elif text.startswith("wgmma.mma_async"):
                self._start(part.offset, text, ages)
                ages = {**ages, part.offset: 0}
            elif text.startswith("wgmma.commit_group"):
                ages = {offset: age + 1 for offset, age in ages.items()}
            elif text.startswith("wgmma.wait_group"):
                pending = int(text.split()[-1])
                ages = {offset: age for offset, age in ages.items() if age <= pending}
        return ages

    def _start(self, offset: int, text: str, ages: _Ages) -> None:
        """Check the registers of a `wgmma.mma_async`, and keep them."""
        mma = self.mmas.get(offset)
        if mma is None:
            match = _MMA.match(text)
            groups = ("", "") if match is None else match.groups("")
            accumulator, fragment = map(_REGISTER.findall, groups)
            mma = _Mma(
                tuple(accumulator), frozenset(fragment), frozenset([*accumulator, *fragment])
            )
            self.mmas[offset] = mma
        for other in ages:
            earlier = self.mmas[other]
            self._report(offset, mma.fragment.intersection(earlier.accumulator), "read", other)
            self._report(offset, earlier.fragment.intersection(mma.accumulator), "written", other)
            if earlier.accumulator != mma.accumulator:
                shared = set(earlier.accumulator).intersection(mma.accumulator)
                self._report(offset, shared, "written", other)

    def _touch(self, part: Part, ages: _Ages) -> None:
        """Check statements other than `wgmma`."""
        key = tuple(ages)
        registers = self.in_flight.get(key)
        if registers is None:
            registers = frozenset[str]().union(*(self.mmas[mma].registers for mma in ages))
            self.in_flight[key] = registers
        if registers.isdisjoint(_REGISTER.findall(part.text)):
            return
        # Report the line on which a statement ends.
        offset = part.offset - 1
        for piece in part.text.split(";"):
            offset += len(piece) + 1
            named = _REGISTER.findall(piece)
            if not registers.isdisjoint(named):
                self._touch_one(offset, _statement(piece), named, ages)

    def _touch_one(self, offset: int, text: str, named: Sequence[str], ages: _Ages) -> None:
        written = _written(text)
        for start in ages:
            mma = self.mmas[start]
            self._report(offset, mma.fragment.intersection(written), "written", start)
            touched = set(mma.accumulator).intersection(named)
            self._report(offset, touched.intersection(written), "written", start)
            self._report(offset, touched.difference(written), "read", start)

    def _report(
        self,
        offset: int,
        registers: Iterable[str],
        access: Literal["read", "written"],
        mma_offset: int,
    ) -> None:
        for register in registers:
            use = "read" if register in self.mmas[mma_offset].fragment else "write"
            hazard = RegisterHazard(
                self._line(offset), register, access, self._line(mma_offset), use
            )
            self.hazards[hazard] = None

    def _line(self, offset: int) -> int:
        return self.ptx.count("\n", 0, offset) + 1


def _statement(lines: str) -> str:
    """Return the last statement of lines, without directives and comments."""
    statements = [
        line for text in lines.split("\n") if (line := text.strip()) and line[0] not in "./"
    ]
    return without_guard(" ".join(statements))


def _written(statement: str) -> Sequence[str]:
    """Return the registers written by a statement: its first operand, if any."""
    opcode, *rest = statement.split(maxsplit=1)
    name, *modifiers = opcode.split(".")
    if not rest or name in _WRITES_NOTHING or (name in _BARRIERS and "red" not in modifiers):
        return ()
    operands = rest[0]
    first = operands.partition("}")[0] if operands[0] == "{" else operands.partition(",")[0]
    return _REGISTER.findall(first.partition("[")[0])
