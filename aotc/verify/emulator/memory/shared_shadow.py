"""The shadow of shared memory: the last accesses of each byte, to find faults hardware hides.

Memory is divided into granules, as small as the program's smallest access, so that an access covers whole granules. Each granule has the stamp (see vector_clocks.py) of its last write, 0 for none, and of the last read by each warp of the cluster. It also has marks: an mbarrier lives here, or an asynchronous operation in flight writes or reads here. Accesses are checked against them:
- bytes never written are not read;
- of two accesses, one of them a write, one happens before the other, or both are strong (atomic,
  say); writing an unchanged value is forgiven;
- bytes with a write in flight are not accessed, and bytes with a read in flight are not written;
- bytes that the asynchronous proxy reads were fenced to it by `fence.proxy.async` after their
  write, and so were threads' reads of bytes it writes: a barrier does not complete such a read;
- only its own instructions access an mbarrier.

Invariant: recorded accesses have been checked and performed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.global_memory import lane_at
from aotc.verify.emulator.memory.vector_clocks import (
    GPU,
    PROXY,
    WEAK,
    Ints,
    Lanes,
    Order,
    column_of,
    lane_of,
    number_of,
    scope_of,
)
from aotc.verify.emulator.syntax import Instruction

# A function from rows of an access to a mask of those that change the stored value.
Changes: TypeAlias = Callable[[Ints], npt.NDArray[np.bool_]]

_MBARRIER = 1 << 15
_WRITES = 1 << 14
_READS = _WRITES - 1  # number of reading asynchronous operations
_WORD_MARKS = 4  # marks updated together
_BLOCK_BYTES = 512  # an access lies within one


@dataclass
class Flight:
    """Hold the bytes of an asynchronous operation in flight.

    `offset` (n,) locates pieces of `size_bytes` in all of shared memory; `lanes` (n,) are the
    issuers.
    """

    lanes: Ints
    offset: Ints
    size_bytes: int
    instruction: Instruction
    writes: bool
    open: npt.NDArray[np.bool_] = field(repr=False)  # (n,) pieces still in flight


class Shadow:
    """Hold the stamps and marks of all granules; offsets count bytes in all of shared memory.

    `describe` names the byte at an offset, for messages. Unless `reads_unwritten`, unwritten bytes
    may not be read. All checks raise Misuse.
    """

    def __init__(
        self,
        total_bytes: int,
        granule_bytes: int,
        order: Order,
        describe: Callable[[int], str],
        *,
        reads_unwritten: bool = False,
    ) -> None:
        self._order = order
        self._describe = describe
        self._reads_unwritten = reads_unwritten
        self._granule_bytes = granule_bytes
        self._total_bytes = total_bytes
        granules = total_bytes // granule_bytes
        self._written = np.zeros(granules, np.int64)
        self._read = np.zeros(granules * order.cluster_warps, np.int64)  # one plane per warp
        self._thread_read = np.zeros(0, np.int64)  # `_read` by threads only; on demand
        # An upper bound of each block's read stamps.
        self._last_read = np.zeros(-(-total_bytes // _BLOCK_BYTES), np.int64)
        self._marks = np.zeros(0, np.uint16)  # by granule; allocated on demand
        self._scratch = np.empty(0, np.int32)
        self._flights: dict[int, Flight] = {}  # open ones, by identity
        self._instructions: list[Instruction] = []  # by number in stamps
        self._numbers: dict[int, int] = {}  # by the instruction's identity

    @staticmethod
    def bytes_of(size_bytes: int, cluster_warps: int, granule_bytes: int) -> int:
        """Return the host memory of the shadow of `size_bytes`."""
        return size_bytes // granule_bytes * (8 + 16 * cluster_warps + 2)

    # ---- checks -----------------------------------------------------------------------------

    def check_load(
        self, lanes: Lanes, offset: Ints, size: int, *, strong: bool = False, verb: str = "reads"
    ) -> Ints:
        """Check that lanes (n,) may read `size` bytes at each offset (n,).

        Returns the stamps of their writes: (n, granules).
        """
        self._check_marks(lanes, offset, size, _MBARRIER | _WRITES, verb)
        written = self._gather(self._written, offset // size, size)
        if not self._reads_unwritten and written.size and not int(written.min()):
            row, piece = _first(written == 0)
            where = self._describe_granule(offset, row, piece)
            raise Misuse(
                "uninitialised",
                f"{verb} {where}, which was never written",
                lane=lane_at(lanes, row),
            )
        self._check_seen(lanes, offset, written, verb, "wrote", strong=strong)
        return written

    def last_of_warps(self, lanes: Ints, offset: Ints, size: int) -> Ints:
        """Return the indices of each warp's last access to each unit, ascending."""
        unit = offset // size + self._order.planes_of(lanes) * (self._total_bytes // size)
        if not self._scratch.size:
            self._scratch = np.empty(len(self._read), np.int32)
        numbers = np.arange(len(unit), dtype=np.int32)
        self._scratch[unit] = numbers
        return np.flatnonzero(self._scratch[unit] == numbers)

    def can_all_load(self, lanes: Ints, offset: Ints, size: int) -> bool:
        """Return whether any lane of lanes' warps (n,) may read `size` bytes at each offset (n,).

        False is inconclusive: `check_load` then decides.
        """
        if self._marks.size:
            marks = self._gather(self._marks, offset // size, size)
            if (marks & np.uint16(_MBARRIER | _WRITES)).any():
                return False
        written = self._gather(self._written, offset // size, size)
        if not self._reads_unwritten and written.size and not int(written.min()):
            return False
        return self._order.have_seen_all(lanes, written)

    def check_store(
        self,
        lanes: Lanes,
        offset: Ints,
        size: int,
        changes: Changes | None = None,
        *,
        strong: bool = False,
    ) -> None:
        """Check that lanes (n,) may write `size` bytes at each offset (n,)."""
        self._check_marks(lanes, offset, size, _MBARRIER | _WRITES | _READS, "writes")
        unit = offset // size
        written = self._gather(self._written, unit, size)
        self._check_seen(lanes, offset, written, "writes", "wrote", changes, strong=strong)
        if self._order.have_met(lanes, self._last_read[offset // _BLOCK_BYTES]):
            return
        read = self._gather_reads(unit, size)
        columns = np.flatnonzero(read.any(axis=0))  # few warps have read
        pieces = columns % (read.shape[1] // self._order.cluster_warps)
        self._check_seen(
            lanes, offset, read[:, columns], "writes", "read", changes, strong=False, pieces=pieces
        )

    def check_proxy(self, lanes: Ints, offset: Ints, written: Ints) -> None:
        """Check that bytes the async proxy reads for lanes (n,) were fenced to it.

        `written` (n, granules) are the stamps of their writes.
        """
        self._check_handed(lanes, offset, written, "reads", "wrote")

    def check_rewrite(self, lanes: Ints, offset: Ints, size: int) -> None:
        """Check that reads of bytes the async proxy writes for lanes (n,) were fenced to it."""
        if not self._thread_read.size:
            return
        unit, plane = offset // size, self._total_bytes // size
        for column in range(self._order.cluster_warps):
            read = self._gather(self._thread_read, unit + column * plane, size)
            if read.any():
                self._check_handed(lanes, offset, read, "writes", "read")

    def _check_handed(self, lanes: Ints, offset: Ints, stamps: Ints, verb: str, other: str) -> None:
        """Check that the accesses stamped (n, granules) were fenced to the async proxy."""
        bad = self._order.unordered(lanes, stamps, PROXY)
        if bad.any():
            row, piece = _first(bad)
            stamp = int(stamps[row, piece])
            raise Misuse(
                "proxy",
                f"{verb} {self._describe_granule(offset, row, piece)} through the asynchronous proxy, which "
                f"{self.thread_name(stamp)} {other} through the generic one with no fence.proxy.async "
                "between",
                lane=lane_at(lanes, row),
                notes=self.note_on(stamp),
            )

    def check_mbarrier(self, lanes: Lanes, offset: Ints) -> None:
        """Check that the initialisation of mbarriers at offsets (n,) happens before lanes (n,)."""
        written = self._gather(self._written, offset // 8, 8)
        verb = "uses the mbarrier at"
        self._check_seen(lanes, offset, written, verb, "initialised", strong=False)

    # ---- records ----------------------------------------------------------------------------

    def record_load(
        self,
        lanes: Lanes,
        offset: Ints,
        size: int,
        by: Instruction | Ints,
        *,
        asynchronous: bool = False,
    ) -> None:
        """Record reads at offsets (n,) by lanes (n,), or by the asynchronous agent for them.

        `by` is the reading instruction, or each lane's instruction number.
        """
        unit = offset // size + self._order.planes_of(lanes) * (self._total_bytes // size)
        self._last_read[offset // _BLOCK_BYTES] = self._order.limit()
        numbers = self.number(by) if isinstance(by, Instruction) else by
        stamps = self._order.stamps(lanes, numbers)
        self._scatter(self._read, unit, size, stamps)
        if not asynchronous:
            if not self._thread_read.size:
                self._thread_read = np.zeros(len(self._read), np.int64)
            self._scatter(self._thread_read, unit, size, stamps)

    def record_store(
        self,
        lanes: Lanes,
        offset: Ints,
        size: int,
        instruction: Instruction,
        *,
        strong: bool = False,
        asynchronous: bool = False,
    ) -> None:
        """Record writes at offsets (n,) by lanes (n,), or by the asynchronous agent."""
        number = self.number(instruction)
        scope = GPU if strong else WEAK
        if asynchronous:
            stamps = np.full(len(offset), self._order.async_stamp(number, scope))
        else:
            stamps = self._order.stamps(lanes, number, scope)
        self._scatter(self._written, offset // size, size, stamps)

    def begin(self, flight: Flight) -> None:
        """Mark the bytes of an asynchronous operation as in flight."""
        self._flights[id(flight)] = flight
        self._mark(flight, slice(None), begin=True)

    def split(self, flight: Flight, count: int) -> list[Flight]:
        """Split an operation in flight into `count` of equal size."""
        if count == 1:
            return [flight]
        del self._flights[id(flight)]
        part_size = len(flight.offset) // count
        lanes, offset, is_open = (
            list(reshape(array, count, part_size))
            for array in (flight.lanes, flight.offset, flight.open)
        )
        common = (flight.size_bytes, flight.instruction, flight.writes)
        flights = [
            Flight(lanes[index], offset[index], *common, is_open[index]) for index in range(count)
        ]
        self._flights.update((id(part), part) for part in flights)
        return flights

    def finish_reads(self, flights: list[Flight]) -> None:
        """End reading operations after a wait; none has ended in part."""
        by_size: dict[int, list[Flight]] = {}
        for flight in flights:
            del self._flights[id(flight)]
            flight.open[:] = False
            by_size.setdefault(flight.size_bytes, []).append(flight)
        for size, alike in by_size.items():
            lanes = np.concatenate([flight.lanes for flight in alike])
            offset = np.concatenate([flight.offset for flight in alike])
            self._count_readers(offset, size, begin=False)
            numbers = np.array([self.number(flight.instruction) for flight in alike])
            by = np.repeat(numbers, [len(flight.offset) for flight in alike])
            self.record_load(lanes, offset, size, by, asynchronous=True)

    def finish(
        self, flight: Flight, pieces: npt.NDArray[np.bool_] | None, *, asynchronous: bool
    ) -> None:
        """End an operation, or some of its pieces (n,), after a wait."""
        chosen = flight.open if pieces is None else flight.open & pieces
        index = np.flatnonzero(chosen)
        if not index.size:
            return
        flight.open[index] = False
        if not flight.open.any():
            del self._flights[id(flight)]
        self._mark(flight, index, begin=False)
        offset, size = flight.offset[index], flight.size_bytes
        if not flight.writes:
            self.record_load(
                flight.lanes[index], offset, size, flight.instruction, asynchronous=True
            )
        else:
            lanes = flight.lanes[index]
            self.record_store(lanes, offset, size, flight.instruction, asynchronous=asynchronous)

    def open_writes(self) -> list[Flight]:
        """Return the writing operations in flight, oldest first."""
        return [flight for flight in self._flights.values() if flight.writes]

    def mark_mbarriers(self, offset: Ints, *, live: bool) -> None:
        """Set or clear the mbarrier marks at offsets (n,)."""
        cells = self._gather(self._all_marks(), offset // 8, 8)
        cells = cells | np.uint16(_MBARRIER) if live else cells & np.uint16(0xFFFF ^ _MBARRIER)
        self._scatter(self._marks, offset // 8, 8, cells)

    # ---- inside -----------------------------------------------------------------------------

    def _gather(self, shadow: npt.NDArray[Any], unit: Ints, size: int) -> npt.NDArray[Any]:
        """Return a shadow array's entries for units of `size` bytes: (…, granules)."""
        if size < self._granule_bytes:
            raise ValueError(f"an access of {size} bytes, but granules of {self._granule_bytes}")
        return reshape(shadow, -1, size // self._granule_bytes).take(unit, axis=0)

    def _gather_reads(self, unit: Ints, size: int) -> Ints:
        """Return each warp's read stamps of units: (n, warps * granules), warp by warp."""
        plane = self._total_bytes // size
        units = unit[:, None] + np.arange(self._order.cluster_warps) * plane
        return reshape(self._gather(self._read, units, size), len(unit), -1)

    def _scatter(
        self, shadow: npt.NDArray[Any], unit: Ints, size: int, values: npt.NDArray[Any]
    ) -> None:
        """Store values (n,) or (n, granules) into a shadow array."""
        count = size // self._granule_bytes
        if count == 1:
            shadow[unit] = reshape(values, -1)
            return
        if values.ndim == 1:
            values = np.repeat(values, count)
        whole = np.dtype(f"V{count * shadow.itemsize}")
        view(shadow, whole)[unit] = reshape(view(np.ascontiguousarray(values), whole), -1)

    def number(self, instruction: Instruction) -> int:
        """Return the number of an instruction in stamps."""
        number = self._numbers.get(id(instruction))
        if number is None:
            number = self._numbers[id(instruction)] = len(self._instructions)
            self._instructions.append(instruction)
        return number

    def _all_marks(self) -> npt.NDArray[np.uint16]:
        if not self._marks.size:
            self._marks = np.zeros(self._total_bytes // self._granule_bytes, np.uint16)
        return self._marks

    def _mark(self, flight: Flight, pieces: slice | Ints, *, begin: bool) -> None:
        offset, size = flight.offset[pieces], flight.size_bytes
        if not flight.writes:
            self._count_readers(offset, size, begin=begin)
            return
        words, index = self._words_of_marks(offset, size)
        mark = _repeated(_WRITES, words)
        words[index] = words[index] | mark if begin else words[index] & ~mark

    def _count_readers(self, offset: Ints, size: int, *, begin: bool) -> None:
        """Count or uncount readers of `size` bytes at offsets (n,), which may repeat."""
        words, index = self._words_of_marks(offset, size)
        # No count overflows into the next.
        (np.add if begin else np.subtract).at(words, index, _repeated(1, words))

    def _words_of_marks(self, offset: Ints, size: int) -> tuple[npt.NDArray[Any], Ints]:
        """View the marks as words of several; also return the words of `size` bytes at offsets."""
        count = size // self._granule_bytes
        marks_per_word = min(count, _WORD_MARKS)
        words = view(self._all_marks(), f"u{2 * marks_per_word}")
        first = offset // (marks_per_word * self._granule_bytes)
        if marks_per_word == count:
            return words, first
        return words, reshape(first[:, None] + np.arange(count // marks_per_word), -1)

    def _check_seen(
        self,
        lanes: Lanes,
        offset: Ints,
        stamps: Ints,
        verb: str,
        other: str,
        changes: Changes | None = None,
        *,
        strong: bool,
        pieces: Ints | None = None,
    ) -> None:
        """Check that the accesses stamped (n, granules) happen before lanes (n,) now.

        With `pieces` (k,), stamps (n, k) are of these granules.
        """
        late = self._order.unseen(lanes, stamps)
        if late is None:
            return
        rows, granules = late
        if strong:
            plain = scope_of(stamps[rows, granules]) == WEAK
            rows, granules = rows[plain], granules[plain]
        if changes is not None:
            changed = changes(rows)
            rows, granules = rows[changed], granules[changed]
        if rows.size:
            row, piece = int(rows[0]), int(granules[0])
            stamp = int(stamps[row, piece])
            granule = piece if pieces is None else int(pieces[piece])
            raise Misuse(
                "race",
                f"{verb} {self._describe_granule(offset, row, granule)}, which "
                f"{self.thread_name(stamp)} {other} with nothing between that orders the two",
                lane=lane_at(lanes, row),
                notes=self.note_on(stamp),
            )

    def _check_marks(
        self, lanes: Lanes, offset: Ints, size: int, forbidden: int, verb: str
    ) -> None:
        if self._marks.size:
            marks = self._gather(self._marks, offset // size, size) & np.uint16(forbidden)
            if marks.any():
                self._refuse_marked(lanes, offset, marks, verb)

    # ---- messages ---------------------------------------------------------------------------

    def _refuse_marked(
        self, lanes: Lanes, offset: Ints, marks: npt.NDArray[Any], verb: str
    ) -> NoReturn:
        row, piece = _first(marks != 0)
        where, lane = self._describe_granule(offset, row, piece), lane_at(lanes, row)
        mark = int(marks[row, piece])
        if mark & _MBARRIER:
            raise Misuse("mbarrier", f"{verb} {where}, where an mbarrier lives", lane=lane)
        does = "writes" if mark & _WRITES else "reads"
        raise Misuse(
            "in-flight",
            f"{verb} {where}, which an asynchronous operation {does} that was not waited for",
            lane=lane,
            notes=self._in_flight_at(int(offset[row]) + piece * self._granule_bytes),
        )

    def _describe_granule(self, offset: Ints, row: int, piece: int) -> str:
        return self._describe(int(offset[row]) + piece * self._granule_bytes)

    def thread_name(self, stamp: int) -> str:
        """Name the thread or agent of a stamp."""
        column = column_of(stamp)
        if column == self._order.async_column:
            return "an asynchronous copy"
        rank, warp = divmod(column % self._order.cluster_warps, self._order.warps_per_cta)
        alone = self._order.cluster_warps == self._order.warps_per_cta
        cta = "" if alone else f" of {self.cta_name(rank)}"
        return f"thread {warp * 32 + lane_of(stamp)}{cta}"

    def cta_name(self, cta: int) -> str:
        """Name a CTA by its rank in the cluster."""
        cluster_size = self._order.cluster_warps // self._order.warps_per_cta
        return f"cluster rank {cta % cluster_size}"

    def note_on(self, stamp: int) -> tuple[str, ...]:
        """Return a note on the access of a stamp."""
        return (note_of("the other access", self._instructions[number_of(stamp)]),)

    def _in_flight_at(self, offset: int) -> tuple[str, ...]:
        """Return a note on the operation in flight at an offset."""
        for flight in self._flights.values():
            start = flight.offset[flight.open]
            if ((start <= offset) & (offset < start + flight.size_bytes)).any():
                return (note_of("the operation", flight.instruction),)
        return ()


def _repeated(mark: int, words: npt.NDArray[Any]) -> Any:
    """Return a word with `mark` in each of its marks."""
    repeat = sum(1 << 16 * index for index in range(words.itemsize // 2))
    return words.dtype.type(mark * repeat)


def _first(mask: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first row and column set in a mask."""
    rows, columns = np.nonzero(mask)
    return int(rows[0]), int(columns[0])


def note_of(label: str, instruction: Instruction) -> str:
    """Return a line that points to another instruction than the one to blame."""
    location = instruction.location
    source = f" ({location.file}:{location.line})" if location is not None else ""
    return f"{label}: line {instruction.line}: {instruction.text.strip()}{source}"
