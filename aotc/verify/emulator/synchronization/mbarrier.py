"""Mbarriers: objects in shared memory that count arrivals and bytes, phase after phase.

A phase completes when no arrival and no byte is outstanding. A wait for it then acquires everything
released by the arrivals. The state is kept here, not in the mbarrier's 8 bytes, and shared memory
refuses any other access to them.

Invariant: between calls, every mbarrier has arrivals or bytes outstanding.

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

MAX_COUNT = (1 << 20) - 1  # of arrivals, and of bytes either way
_BYTES = 8
PHASE_SHIFT = 32  # of a state: the phase above, the outstanding arrivals below


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
        self._bytes = np.zeros(0, np.int64)  # outstanding; negative if they came early
        self.phase = np.zeros(0, np.int64)
        self._maker = np.zeros(0, np.int64)
        self._is_fenced = np.zeros(0, np.bool_)
        # Clocks released so far (row 2 r), and in complete phases (row 2 r + 1).
        self._tokens = Clocks(0, machine.order.columns)

    def find(
        self, lanes: Ints, address: Ints, instruction: Instruction, *, asynchronous: bool = False
    ) -> Ints:
        """Return the rows of mbarriers at addresses (n,), accessed by lanes now.

        If `asynchronous`, the asynchronous agent will access them, on the lanes' behalf.

        Raises: Misuse where there is none, or its initialisation does not happen before the lane's
        access.
        """
        address = window_removed(address)
        if asynchronous:
            offset = self._shared.locate(lanes, address, _BYTES)
        else:
            offset = self._shared.locate_access(lanes, address, _BYTES, instruction)
        rows = self._row_at[offset // _BYTES]
        if (rows < 0).any():
            index = int(np.flatnonzero(rows < 0)[0])
            raise Misuse(
                "mbarrier",
                f"uses an mbarrier at {self._shared.describe(int(offset[index]))}, where none has "
                "been initialised",
                lane=int(lanes[index]),
                instruction=instruction,
            )
        self._shared.shadow.check_mbarrier(lanes, offset)
        return rows

    def find_for_copies(self, lanes: Ints, address: Ints, instruction: Instruction) -> Ints:
        """Return the rows of mbarriers signalled by copies of lanes (n,), as `find`.

        Raises: Misuse also where the initialising thread has not fenced.
        """
        rows = self.find(lanes, address, instruction, asynchronous=True)
        if not self._is_fenced[rows].all():
            index = int(np.flatnonzero(~self._is_fenced[rows])[0])
            where = self._shared.describe(int(self._offset[rows[index]]))
            raise Misuse(
                "proxy",
                f"lets a copy tell the mbarrier at {where}, with no fence after its making",
                lane=int(lanes[index]),
                instruction=instruction,
            )
        return rows

    def fence(self, lanes: Lanes) -> None:
        """Make mbarriers initialised by lanes visible to copies."""
        if not self._is_fenced.all():
            numbers = lanes_array(lanes, self._num_lanes)
            self._is_fenced |= np.isin(self._maker, numbers)

    def initialise(self, lanes: Ints, address: Ints, count: Ints, instruction: Instruction) -> None:
        """Initialise mbarriers at addresses (n,), with `count` (n,) arrivals per phase.

        Raises: Misuse for a count out of range, and for an address with an mbarrier.
        """
        offset = self._shared.locate(lanes, window_removed(address), _BYTES)
        bad = (count < 1) | (count > MAX_COUNT)
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            raise Misuse(
                "mbarrier",
                f"initialises an mbarrier with count {int(count[index])}, not from 1 to {MAX_COUNT}",
                lane=int(lanes[index]),
            )
        again = self._row_at[offset // _BYTES] >= 0
        first = np.zeros(len(offset), np.bool_)
        first[np.unique(offset, return_index=True)[1]] = True
        if (again | ~first).any():
            index = int(np.flatnonzero(again | ~first)[0])
            raise Misuse(
                "mbarrier",
                f"initialises the mbarrier at {self._shared.describe(int(offset[index]))} twice",
                lane=int(lanes[index]),
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
        """Invalidate mbarriers; their bytes may then be reused.

        Raises: Misuse while arrivals or bytes of a started phase are outstanding.
        """
        rows = self.find(lanes, address, instruction)
        busy = (self._pending[rows] != self._count[rows]) | (self._bytes[rows] != 0)
        if busy.any():
            index = int(np.flatnonzero(busy)[0])
            raise self._misuse(lanes, rows, index, "invalidates", "while it is in use")
        offset = self._offset[rows]
        self._row_at[offset // _BYTES] = -1
        self._shared.shadow.mark_mbarriers(offset, live=False)
        self._write(lanes, offset, instruction)

    def _write(self, lanes: Ints, offset: Ints, instruction: Instruction) -> None:
        """Record the initialisation or end of mbarriers as a write by lanes (n,)."""
        self._shared.shadow.check_store(lanes, offset, _BYTES)
        self._shared.shadow.record_store(lanes, offset, _BYTES, instruction)

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
        """Count arrivals (n,) of lanes at mbarriers (n,); return the states.

        `expected_bytes` (n,) are added first; with `drop`, later phases expect fewer arrivals.

        Raises: Misuse for more arrivals or bytes than expected or countable.
        """
        if releases and len(lanes):
            self._order.release(lanes, self._tokens, 2 * rows)
        states = np.zeros(len(rows), np.uint64)
        left = np.arange(len(rows))
        while left.size:
            row = rows[left]
            before = self._pending[row] - _earlier(row, count[left])
            now = before > 0  # the rest arrive in a later phase, if this one completes
            if not now.any():
                raise self._misuse(
                    lanes, rows, int(left[0]), "arrives at", "more often than its phase expects"
                )
            turn = left[now]
            if (count[turn] > before[now]).any():
                index = int(turn[np.flatnonzero(count[turn] > before[now])[0]])
                raise self._misuse(
                    lanes, rows, index, "arrives at", "more often than its phase expects"
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
        """Expect more bytes in the current phase of mbarriers (n,).

        Raises: Misuse if they are too many to count.
        """
        np.add.at(self._bytes, rows, count_bytes)
        self._check_bytes(lanes, rows)

    def complete_bytes(self, lanes: Ints, rows: Ints, count_bytes: Ints) -> None:
        """Complete bytes of copies, issued by lanes (n,), at mbarriers (n,).

        Raises: Misuse if they are too many to count.
        """
        self._order.release_async(self._tokens, 2 * rows)
        np.subtract.at(self._bytes, rows, count_bytes)
        self._check_bytes(lanes, rows)
        self._complete(rows)

    def add_pending(self, rows: Ints) -> None:
        """Expect one more arrival in the current phase of mbarriers (n,)."""
        np.add.at(self._pending, rows, 1)

    def acquire(self, lanes: Ints, rows: Ints) -> None:
        """Acquire, for lanes (n,), everything released in complete phases of mbarriers (n,)."""
        if len(lanes):
            self._order.acquire(lanes, self._tokens, 2 * rows + 1)

    def _complete(self, rows: Ints) -> None:
        """Start the next phase of mbarriers (n,) with nothing outstanding."""
        complete = np.unique(rows[(self._pending[rows] == 0) & (self._bytes[rows] == 0)])
        if complete.size:
            self._tokens.merge(2 * complete + 1, self._tokens, 2 * complete)
            self._pending[complete] = self._count[complete]
            self.phase[complete] += 1
            self._machine.note_event()

    def _check_bytes(self, lanes: Ints, rows: Ints) -> None:
        bad = np.abs(self._bytes[rows]) > MAX_COUNT
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            outstanding = int(self._bytes[rows[index]])
            raise self._misuse(
                lanes, rows, index, "lets", f"wait for {outstanding} bytes, at most {MAX_COUNT}"
            )

    def describe(self, row: int) -> str:
        """Describe an mbarrier's location and outstanding counts, for messages."""
        return (
            f"the mbarrier at {self._shared.describe(int(self._offset[row]))}, in phase "
            f"{int(self.phase[row])} with {int(self._pending[row])} of {int(self._count[row])} "
            f"arrivals and {int(self._bytes[row])} bytes outstanding"
        )

    def _misuse(self, lanes: Ints, rows: Ints, index: int, verb: str, reason: str) -> Misuse:
        row = int(rows[index])
        where = self._shared.describe(int(self._offset[row]))
        return Misuse(
            "mbarrier",
            f"{verb} the mbarrier at {where} {reason}",
            lane=int(lanes[index]),
            notes=(self.describe(row),),
        )


def window_removed(address: Ints) -> Ints:
    """Return shared addresses without the generic window."""
    return np.where(address >= SHARED_WINDOW, address - SHARED_WINDOW, address)


def _earlier(rows: Ints, count: Ints) -> Ints:
    """Return, for each arrival, the count of earlier ones at the same mbarrier."""
    order = np.argsort(rows, kind="stable")
    ranked, counts = rows[order], count[order]
    total = np.cumsum(counts) - counts
    starts = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), ranked[1:] != ranked[:-1])))
    sizes = np.diff(np.append(starts, len(rows)))
    earlier = np.empty_like(count)
    earlier[order] = total - np.repeat(total[starts], sizes)
    return earlier
