"""The register file: the row of each virtual register, and its state in each lane.

LLVM's virtual registers are written about once, so most are dead most of the time. A linear scan
lets them share rows, which keeps the file within the cache. Registers accessed by asynchronous
instructions have their own rows.

Invariant: two registers sharing a row are never both live. A register has a row of states if it may
be read before it is written, or is accessed asynchronously.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.compute.registry import COMPUTES, bits_dtype
from aotc.verify.emulator.syntax import Instruction, Register
from aotc.verify.emulator.text.cfg import Cfg, DataFlow
from aotc.verify.emulator.text.effects import ASYNCHRONOUS, effect_of, registers_of

Row = npt.NDArray[Any]
Key = tuple[int, int]  # bits and row of a virtual register

UNDEFINED, FENCED, DEFINED, WRITE_IN_FLIGHT, READ_IN_FLIGHT = 0, 1, 3, 4, 5
"""States of a register in a lane; in flight: an issued access has yet to happen.

A copy of a register in flight is in flight, too, and gets the same result; until then it holds the
result's name. FENCED is defined, and ordered by `wgmma.fence` before the next wgmmas. Readable
states are odd; states above DEFINED are not writable.
"""
COPIED = np.array([UNDEFINED, FENCED, UNDEFINED, DEFINED, WRITE_IN_FLIGHT, DEFINED], np.uint8)
"""State of a copy, by the state of its source."""


class Allocation:
    """Assign a row of the file to each virtual register; `rows` counts rows by width."""

    def __init__(self, instructions: Sequence[Instruction], cfg: Cfg, flow: DataFlow) -> None:
        self.rows: dict[int, int] = {}
        self.row_of: dict[Key, int] = {}
        pinned = {
            _key(register): None
            for instruction in instructions
            if instruction.opcode in ASYNCHRONOUS
            for register in registers_of(instruction.operands)
        }
        undefined = (_key(register) for register in flow.maybe_undefined)
        self.tracked = _copies(instructions, dict.fromkeys((*undefined, *pinned)))
        # Take the row free for longest, to avoid false dependences.
        free: dict[int, deque[int]] = {}
        busy: list[tuple[int, int, int]] = []  # end, bits, row
        for start, end, key in sorted(
            (start, end, key) for key, (start, end) in _spans(instructions, cfg, flow).items()
        ):
            while busy and busy[0][0] <= start:
                _, bits, row = heapq.heappop(busy)
                free.setdefault(bits, deque()).append(row)
            bits = key[0]
            if key not in pinned and free.get(bits):
                row = free[bits].popleft()
            else:
                row = self.rows.get(bits, 0)
                self.rows[bits] = row + 1
            self.row_of[key] = row
            if key not in pinned:
                heapq.heappush(busy, (end, bits, row))

    @property
    def lane_bytes(self) -> int:
        """Bytes of the file per lane."""
        rows = sum(count * bits_dtype(bits).itemsize for bits, count in self.rows.items())
        return rows + len(self.tracked)


class RegisterFile:
    """Hold the registers of all lanes of a batch."""

    def __init__(self, allocation: Allocation, lanes: int) -> None:
        self._tables = {
            bits: np.zeros((count, lanes), bits_dtype(bits))
            for bits, count in allocation.rows.items()
        }
        self._rows = {bits: list(table) for bits, table in self._tables.items()}
        self._row_of = allocation.row_of
        self.state_table = np.zeros((len(allocation.tracked), lanes), np.uint8)
        self._state_rows = {key: row for row, key in enumerate(allocation.tracked)}
        self._states = dict(zip(allocation.tracked, self.state_table, strict=True))
        self.flight_copies = 0  # number of copies of registers with a write in flight

    def row(self, register: Register) -> Row:
        """Return the values of a register: (lanes,), to read and write."""
        return self._rows[register.bits][self._row_of[register.bits, register.row]]

    def table_row(self, register: Register) -> tuple[int, int]:
        """Return the width of a register's table, and its row in it."""
        return register.bits, self._row_of[register.bits, register.row]

    def table(self, bits: int) -> Row:
        """Return all rows of registers of a width: (rows, lanes), to read and write."""
        return self._tables[bits]

    def state_row(self, register: Register) -> int | None:
        """Return a register's row in `state_table`; None if it is always defined."""
        return self._state_rows.get((register.bits, register.row))

    def states(self, register: Register) -> npt.NDArray[np.uint8] | None:
        """Return the states of a register: (lanes,); None if it is always defined."""
        return self._states.get((register.bits, register.row))

    def fence(self, lanes: slice | npt.NDArray[np.int64]) -> None:
        """Order the writes of lanes, ascending, before the next wgmmas."""
        keep = np.uint8(0xFF ^ FENCED ^ DEFINED)  # all bits but the one only DEFINED has
        if isinstance(lanes, slice):
            self.state_table[:, lanes] &= keep
            return
        first, last = int(lanes[0]), int(lanes[-1])
        masks = np.full(last + 1 - first, 0xFF, np.uint8)
        masks[lanes - first] = keep
        self.state_table[:, first : last + 1] &= masks

    def tracked_words(self) -> list[tuple[Row, npt.NDArray[np.uint8]]]:
        """Return the values and states, each (lanes,), of all tracked 32-bit registers."""
        return [
            (self._rows[bits][self._row_of[bits, row]], states)
            for (bits, row), states in self._states.items()
            if bits == 32
        ]

    def reset(self, noise: np.random.Generator | None = None) -> None:
        """Forget all writes, for the next batch; with `noise`, fill tracked registers with it."""
        self.state_table[...] = UNDEFINED
        if noise is None:
            return
        self.state_table[...] = DEFINED
        for bits, row in self._states:
            values = self._rows[bits][self._row_of[bits, row]]
            if values.dtype == np.bool_:
                values[...] = noise.integers(0, 2, values.shape) != 0
            else:
                values[...] = np.frombuffer(noise.bytes(values.nbytes), values.dtype)


def _key(register: Register) -> Key:
    return register.bits, register.row


def _copies(instructions: Iterable[Instruction], tracked: dict[Key, None]) -> dict[Key, None]:
    """Add the registers that may receive copies of a tracked one."""
    movs = [
        (_key(target), _key(source))
        for instruction in instructions
        if is_copy(instruction)
        for target, source in [registers_of(instruction.operands)]
    ]
    changed = True
    while changed:
        added = [target for target, source in movs if source in tracked and target not in tracked]
        tracked.update(dict.fromkeys(added))
        changed = bool(added)
    return tracked


def is_copy(instruction: Instruction) -> bool:
    """Return whether an instruction only copies one register to another."""
    return instruction.opcode == "mov" and all(
        isinstance(operand, Register) for operand in instruction.operands
    )


def _spans(
    instructions: Sequence[Instruction], cfg: Cfg, flow: DataFlow
) -> dict[Key, tuple[int, int]]:
    """Return the live range of each register, as if the code were straight.

    Instruction `i` reads at `2i + 1`. One with a single result has finished reading when it writes,
    so it writes at the same time; others write from `2i` on.
    """
    spans: dict[Key, tuple[int, int]] = {}

    def extend(key: Key, first: int, last: int) -> None:
        start, end = spans.get(key, (first, last))
        spans[key] = (min(start, first), max(end, last))

    for index, instruction in enumerate(instructions):
        effect = effect_of(instruction)
        for register in effect.reads:
            extend(_key(register), 2 * index + 1, 2 * index + 1)
        alone = instruction.opcode in COMPUTES and len(effect.writes) == 1
        for register in effect.writes:
            extend(_key(register), 2 * index + alone, 2 * index + 2)
    keys = [_key(register) for register in flow.numbers]
    for index, block in enumerate(cfg.blocks):
        for position, live in (
            (2 * block.start, flow.live_in[index]),
            (2 * block.stop, flow.live_out[index]),
        ):
            rest = live
            while rest:
                lowest = rest & -rest
                extend(keys[lowest.bit_length() - 1], position, position)
                rest ^= lowest
    return spans
