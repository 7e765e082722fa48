"""Mbarriers: objects in shared memory that count arrivals and bytes, phase after phase.

A phase completes when no arrival and no byte is outstanding; who then finds it complete has seen
all that was released by those who arrived. An mbarrier's 8 bytes are not looked at: its state is
kept here, and shared memory refuses any other access to them.

Invariant: at rest, no mbarrier has neither arrivals nor bytes outstanding.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.engine.context import Machine
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.global_memory import SHARED_WINDOW
from aotc.verify.emulator.memory.vector_clocks import Clocks, Ints, Lanes, lanes_array
from aotc.verify.emulator.syntax import Instruction

MAX_COUNT = (1 << 20) - 1  # of arrivals, and of bytes in either direction
_BYTES = 8
PHASE_SHIFT = 32  # of a state: the phase above, the arrivals outstanding below


class Mbarriers:
    """Hold the mbarriers of a batch; each is a row of the arrays."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._shared = machine.shared
        self._order = machine.order
        self._num_lanes = machine.num_ctas * machine.warps_per_cta * 32
        self._row_at = np.full(machine.shared.total_bytes // _BYTES, -1, np.int64)
        self._offset = np.zeros(0, np.int64)
        self._count = np.zeros(0, np.int64)
        self._pending = np.zeros(0, np.int64)
        self._bytes = np.zeros(0, np.int64)  # outstanding; negative when they came early
        self.phase = np.zeros(0, np.int64)
        self._maker = np.zeros(0, np.int64)
        self._is_fenced = np.zeros(0, np.bool_)
        # What has been released so far (row 2 r), and in the phases that are complete (2 r + 1).
        self._tokens = Clocks(0, machine.order.columns)

    def find(
        self, lanes: Ints, address: Ints, instruction: Instruction, *, asynchronous: bool = False
    ) -> Ints:
        """Return the rows of the mbarriers at lanes' addresses (n,), which they access now.

        With `asynchronous` the asynchronous agent will, on their behalf.

        Raises: Misuse where there is none, or a lane has not seen it being initialised.
        """
        address = window_removed(address)
        if asynchronous:
            offset = self._shared.locate(lanes, address, _BYTES)
        else:
            offset = self._shared.locate_access(lanes, address, _BYTES, instruction)
        rows = self._row_at[offset // _BYTES]
        if (rows < 0).any():
            at = int(np.flatnonzero(rows < 0)[0])
            raise Misuse(
                "mbarrier",
                f"uses an mbarrier at {self._shared.describe(int(offset[at]))}, where none has "
                "been initialised",
                lane=int(lanes[at]),
                instruction=instruction,
            )
        self._shared.shadow.check_mbarrier(lanes, offset)
        return rows

    def find_for_copies(self, lanes: Ints, address: Ints, instruction: Instruction) -> Ints:
        """Return the rows of mbarriers that copies of lanes (n,) are to tell; as `find`.

        Raises: Misuse, besides, where the maker has not fenced.
        """
        rows = self.find(lanes, address, instruction, asynchronous=True)
        if not self._is_fenced[rows].all():
            at = int(np.flatnonzero(~self._is_fenced[rows])[0])
            where = self._shared.describe(int(self._offset[rows[at]]))
            raise Misuse(
                "proxy",
                f"lets a copy tell the mbarrier at {where}, with no fence after its making",
                lane=int(lanes[at]),
                instruction=instruction,
            )
        return rows

    def fence(self, lanes: Lanes) -> None:
        """Let copies see the mbarriers that lanes have made."""
        if not self._is_fenced.all():
            numbers = lanes_array(lanes, self._num_lanes)
            self._is_fenced |= np.isin(self._maker, numbers)

    def initialise(self, lanes: Ints, address: Ints, count: Ints, instruction: Instruction) -> None:
        """Make mbarriers at lanes' addresses (n,) that expect `count` (n,) arrivals a phase.

        Raises: Misuse for a count out of range, and where there is an mbarrier already.
        """
        offset = self._shared.locate(lanes, window_removed(address), _BYTES)
        bad = (count < 1) | (count > MAX_COUNT)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise Misuse(
                "mbarrier",
                f"initialises an mbarrier with count {int(count[at])}, not from 1 to {MAX_COUNT}",
                lane=int(lanes[at]),
            )
        again = self._row_at[offset // _BYTES] >= 0
        first = np.zeros(len(offset), np.bool_)
        first[np.unique(offset, return_index=True)[1]] = True
        if (again | ~first).any():
            at = int(np.flatnonzero(again | ~first)[0])
            raise Misuse(
                "mbarrier",
                f"initialises the mbarrier at {self._shared.describe(int(offset[at]))} twice",
                lane=int(lanes[at]),
            )
        self._write(lanes, offset, instruction)
        self._shared.shadow.mark_mbarriers(offset, live=True)
        self._row_at[offset // _BYTES] = len(self._offset) + np.arange(len(offset))
        self._offset = np.append(self._offset, offset)
        self._count = np.append(self._count, count)
        self._pending = np.append(self._pending, count)
        self._bytes = np.append(self._bytes, np.zeros(len(offset), np.int64))
        self.phase = np.append(self.phase, np.zeros(len(offset), np.int64))
        self._maker = np.append(self._maker, lanes)
        self._is_fenced = np.append(self._is_fenced, np.zeros(len(offset), np.bool_))
        self._tokens.add_rows(2 * len(offset))

    def invalidate(self, lanes: Ints, address: Ints, instruction: Instruction) -> None:
        """End mbarriers, whose bytes may then be used for something else.

        Raises: Misuse while arrivals or bytes of a phase that has begun are outstanding.
        """
        rows = self.find(lanes, address, instruction)
        busy = (self._pending[rows] != self._count[rows]) | (self._bytes[rows] != 0)
        if busy.any():
            at = int(np.flatnonzero(busy)[0])
            raise self._misuse(lanes, rows, at, "invalidates", "while it is in use")
        offset = self._offset[rows]
        self._row_at[offset // _BYTES] = -1
        self._shared.shadow.mark_mbarriers(offset, live=False)
        self._write(lanes, offset, instruction)

    def _write(self, lanes: Ints, offset: Ints, instruction: Instruction) -> None:
        """Count as a write by lanes (n,) what makes or ends the mbarriers at offsets (n,)."""
        self._shared.shadow.check_store(lanes, offset, _BYTES)
        self._shared.shadow.stored(lanes, offset, _BYTES, instruction)

    def arrive(
        self,
        lanes: Ints,
        rows: Ints,
        count: Ints,
        *,
        expected_bytes: Ints | None = None,
        drop: bool = False,
        releases: bool = True,
    ) -> npt.NDArray[np.uint64]:
        """Count arrivals (n,) of lanes at mbarriers (n,); return each one's state.

        `expected_bytes` (n,) are outstanding besides; with `drop` the next phases expect fewer.

        Raises: Misuse for more arrivals or bytes than are expected or can be counted.
        """
        if releases and len(lanes):
            self._order.release(lanes, self._tokens, 2 * rows)
        states = np.zeros(len(rows), np.uint64)
        left = np.arange(len(rows))
        while left.size:
            row = rows[left]
            before = self._pending[row] - _earlier(row, count[left])
            now = before > 0  # the others arrive in a later phase, if this one completes
            if not now.any():
                raise self._misuse(
                    lanes, rows, int(left[0]), "arrives at", "more often than its phase expects"
                )
            turn = left[now]
            if (count[turn] > before[now]).any():
                at = int(turn[np.flatnonzero(count[turn] > before[now])[0]])
                raise self._misuse(
                    lanes, rows, at, "arrives at", "more often than its phase expects"
                )
            row = rows[turn]
            states[turn] = self.phase[row] << PHASE_SHIFT | before[now]
            if expected_bytes is not None:
                self.expect(lanes[turn], row, expected_bytes[turn])
            np.subtract.at(self._pending, row, count[turn])
            if drop:
                np.subtract.at(self._count, row, count[turn])
            self._complete(row)
            left = left[~now]
        return states

    def expect(self, lanes: Ints, rows: Ints, count_bytes: Ints) -> None:
        """Let mbarriers (n,) wait for more bytes in this phase.

        Raises: Misuse if they are too many to count.
        """
        np.add.at(self._bytes, rows, count_bytes)
        self._check_bytes(lanes, rows)

    def complete_bytes(self, lanes: Ints, rows: Ints, count_bytes: Ints) -> None:
        """Say that bytes which mbarriers (n,) wait for have come; lanes asked for them.

        Raises: Misuse if they are too many to count.
        """
        self._order.release_async(self._tokens, 2 * rows)
        np.subtract.at(self._bytes, rows, count_bytes)
        self._check_bytes(lanes, rows)
        self._complete(rows)

    def add_pending(self, rows: Ints) -> None:
        """Let this phase of mbarriers (n,) expect one more arrival each."""
        np.add.at(self._pending, rows, 1)

    def acquire(self, lanes: Ints, rows: Ints) -> None:
        """Let lanes (n,) see what was released in the complete phases of mbarriers (n,)."""
        if len(lanes):
            self._order.acquire(lanes, self._tokens, 2 * rows + 1)

    def _complete(self, rows: Ints) -> None:
        """Begin the next phase of those mbarriers (n,) that wait for nothing more."""
        done = np.unique(rows[(self._pending[rows] == 0) & (self._bytes[rows] == 0)])
        if done.size:
            self._tokens.merge(2 * done + 1, self._tokens, 2 * done)
            self._pending[done] = self._count[done]
            self.phase[done] += 1
            self._machine.note_event()

    def _check_bytes(self, lanes: Ints, rows: Ints) -> None:
        bad = np.abs(self._bytes[rows]) > MAX_COUNT
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            outstanding = int(self._bytes[rows[at]])
            raise self._misuse(
                lanes, rows, at, "lets", f"wait for {outstanding} bytes, at most {MAX_COUNT}"
            )

    def describe(self, row: int) -> str:
        """Say where an mbarrier is and what it waits for."""
        return (
            f"the mbarrier at {self._shared.describe(int(self._offset[row]))}, in phase "
            f"{int(self.phase[row])} with {int(self._pending[row])} of {int(self._count[row])} "
            f"arrivals and {int(self._bytes[row])} bytes outstanding"
        )

    def _misuse(self, lanes: Ints, rows: Ints, at: int, verb: str, what: str) -> Misuse:
        row = int(rows[at])
        where = self._shared.describe(int(self._offset[row]))
        return Misuse(
            "mbarrier",
            f"{verb} the mbarrier at {where} {what}",
            lane=int(lanes[at]),
            notes=(self.describe(row),),
        )


def window_removed(address: Ints) -> Ints:
    """Return shared addresses without the window that generic ones have."""
    return np.where(address >= SHARED_WINDOW, address - SHARED_WINDOW, address)


def _earlier(rows: Ints, count: Ints) -> Ints:
    """Return for each arrival how many come before it at the same mbarrier."""
    order = np.argsort(rows, kind="stable")
    ranked, counts = rows[order], count[order]
    total = np.cumsum(counts) - counts
    starts = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), ranked[1:] != ranked[:-1])))
    sizes = np.diff(np.append(starts, len(rows)))
    earlier = np.empty_like(count)
    earlier[order] = total - np.repeat(total[starts], sizes)
    return earlier
