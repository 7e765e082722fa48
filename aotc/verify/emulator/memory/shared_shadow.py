"""The shadow of shared memory: who touched each byte last, which finds what hardware hides.

Memory is divided in granules, as small as the smallest access of the program, so that an access
covers whole granules. Each has the stamp (see vector_clocks.py) of its last write, 0 for none, of the last
read by each warp of the cluster, and marks: an mbarrier lives here, an asynchronous operation
that has not been waited for writes or reads here. Accesses are checked against them:
- bytes never written are not read;
- of two accesses, one of them a write, one has seen the other, or both are strong (atomic, say);
  writing the value that is there already changes nothing and is forgiven;
- what an asynchronous operation writes is left alone until it has been waited for, and what one
  reads is not written;
- what the asynchronous proxy reads has been handed to it by `fence.proxy.async`, and so has what was
  read where it writes: a thread's read may still be under way when a barrier lets the write go;
- nothing but its own instructions touches an mbarrier.

Invariant: what is recorded has been checked, and has happened.
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

# Which of some rows of an access change the value that is there.
Changes: TypeAlias = Callable[[Ints], npt.NDArray[np.bool_]]

_MBARRIER = 1 << 15
_WRITES = 1 << 14
_READS = _WRITES - 1  # how many asynchronous operations read
_WORD_MARKS = 4  # that are changed at once
_BLOCK_BYTES = 512  # no access is to more than one


@dataclass
class Flight:
    """Hold the bytes that an asynchronous operation writes or reads, until it is waited for.

    `offset` (n,) are places in all of shared memory of pieces of `size_bytes` each, `lanes` (n,)
    who issued the operation.
    """

    lanes: Ints
    offset: Ints
    size_bytes: int
    instruction: Instruction
    writes: bool
    open: npt.NDArray[np.bool_] = field(repr=False)  # (n,) which pieces are in flight still


class Shadow:
    """Hold the stamps and marks of all granules; offsets count bytes in all of shared memory.

    `describe` names the byte at an offset, for messages. Unless `reads_unwritten`, what was never
    written may not be read. All checks raise Misuse.
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
        self._read = np.zeros(granules * order.cluster_warps, np.int64)  # warp by warp
        self._read_itself = np.zeros(0, np.int64)  # as `_read`, of reads by threads; once any
        # Of each block, no stamp of a read is greater.
        self._last_read = np.zeros(-(-total_bytes // _BLOCK_BYTES), np.int64)
        self._marks = np.zeros(0, np.uint16)  # of each granule, once there is any
        self._scratch = np.empty(0, np.int32)
        self._flights: dict[int, Flight] = {}  # the open ones, by identity
        self._instructions: list[Instruction] = []  # those in stamps, by number
        self._numbers: dict[int, int] = {}  # of each instruction, by its identity

    @staticmethod
    def bytes_of(size_bytes: int, cluster_warps: int, granule_bytes: int) -> int:
        """Return how much the shadow of `size_bytes` takes of the host's memory."""
        return size_bytes // granule_bytes * (8 + 16 * cluster_warps + 2)

    # ---- checks -----------------------------------------------------------------------------

    def check_load(
        self, lanes: Lanes, offset: Ints, size: int, *, strong: bool = False, verb: str = "reads"
    ) -> Ints:
        """Check that lanes (n,) may read `size` bytes at each offset (n,).

        Returns the stamps of who wrote them: (n, granules).
        """
        self._check_marks(lanes, offset, size, _MBARRIER | _WRITES, verb)
        written = self._gather(self._written, offset // size, size)
        if not self._reads_unwritten and written.size and not int(written.min()):
            at, piece = _first(written == 0)
            where = self._place(offset, at, piece)
            raise Misuse(
                "uninitialised", f"{verb} {where}, which was never written", lane=lane_at(lanes, at)
            )
        self._check_seen(lanes, offset, written, verb, "wrote", strong=strong)
        return written

    def last_of_warps(self, lanes: Ints, offset: Ints, size: int) -> Ints:
        """Return which of accesses (n,) are the last of a warp's to a place, ascending."""
        unit = offset // size + self._order.planes_of(lanes) * (self._total_bytes // size)
        if not self._scratch.size:
            self._scratch = np.empty(len(self._read), np.int32)
        numbers = np.arange(len(unit), dtype=np.int32)
        self._scratch[unit] = numbers
        return np.flatnonzero(self._scratch[unit] == numbers)

    def may_all_load(self, lanes: Ints, offset: Ints, size: int) -> bool:
        """Return whether any lane of lanes' warps (n,) may read `size` bytes at each offset (n,).

        It is no answer if not: then `check_load` says which may not.
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
        some = np.flatnonzero(read.any(axis=0))  # few of the warps have read
        pieces = some % (read.shape[1] // self._order.cluster_warps)
        self._check_seen(
            lanes, offset, read[:, some], "writes", "read", changes, strong=False, pieces=pieces
        )

    def check_proxy(self, lanes: Ints, offset: Ints, written: Ints) -> None:
        """Check that what lanes (n,) let the asynchronous proxy read has been handed to it.

        `written` (n, granules) are the stamps of who wrote it.
        """
        self._check_handed(lanes, offset, written, "reads", "wrote")

    def check_rewrite(self, lanes: Ints, offset: Ints, size: int) -> None:
        """Check that reads of what lanes (n,) let the asynchronous proxy write are handed to it."""
        if not self._read_itself.size:
            return
        unit, plane = offset // size, self._total_bytes // size
        for column in range(self._order.cluster_warps):
            read = self._gather(self._read_itself, unit + column * plane, size)
            if read.any():
                self._check_handed(lanes, offset, read, "writes", "read")

    def _check_handed(self, lanes: Ints, offset: Ints, stamps: Ints, verb: str, other: str) -> None:
        """Check that the accesses stamped (n, granules) have been handed to the async proxy."""
        bad = self._order.unordered(lanes, stamps, PROXY)
        if bad.any():
            at, piece = _first(bad)
            stamp = int(stamps[at, piece])
            raise Misuse(
                "proxy",
                f"{verb} {self._place(offset, at, piece)} through the asynchronous proxy, which "
                f"{self.who(stamp)} {other} through the generic one with no fence.proxy.async "
                "between",
                lane=lane_at(lanes, at),
                notes=self.where(stamp),
            )

    def check_mbarrier(self, lanes: Lanes, offset: Ints) -> None:
        """Check that lanes (n,) have seen the mbarriers at offsets (n,) being initialised."""
        written = self._gather(self._written, offset // 8, 8)
        verb = "uses the mbarrier at"
        self._check_seen(lanes, offset, written, verb, "initialised", strong=False)

    # ---- records ----------------------------------------------------------------------------

    def loaded(
        self,
        lanes: Lanes,
        offset: Ints,
        size: int,
        by: Instruction | Ints,
        *,
        asynchronous: bool = False,
    ) -> None:
        """Record that lanes (n,), or the asynchronous agent for them, have read at each offset (n,).

        `by` is the instruction that reads, or the number of each lane's.
        """
        unit = offset // size + self._order.planes_of(lanes) * (self._total_bytes // size)
        self._last_read[offset // _BLOCK_BYTES] = self._order.limit()
        numbers = self.number(by) if isinstance(by, Instruction) else by
        stamps = self._order.stamps(lanes, numbers)
        self._scatter(self._read, unit, size, stamps)
        if not asynchronous:
            if not self._read_itself.size:
                self._read_itself = np.zeros(len(self._read), np.int64)
            self._scatter(self._read_itself, unit, size, stamps)

    def stored(
        self,
        lanes: Lanes,
        offset: Ints,
        size: int,
        instruction: Instruction,
        *,
        strong: bool = False,
        asynchronous: bool = False,
    ) -> None:
        """Record that lanes (n,), or the asynchronous agent, have written at each offset (n,)."""
        number = self.number(instruction)
        scope = GPU if strong else WEAK
        if asynchronous:
            stamps = np.full(len(offset), self._order.async_stamp(number, scope))
        else:
            stamps = self._order.stamps(lanes, number, scope)
        self._scatter(self._written, offset // size, size, stamps)

    def begin(self, flight: Flight) -> None:
        """Mark what an asynchronous operation will write or read."""
        self._flights[id(flight)] = flight
        self._mark(flight, slice(None), begin=True)

    def split(self, flight: Flight, count: int) -> list[Flight]:
        """Return `count` operations of equal size, none of which has ended, in the place of one."""
        if count == 1:
            return [flight]
        del self._flights[id(flight)]
        each = len(flight.offset) // count
        lanes, offset, is_open = (
            list(reshape(array, count, each))
            for array in (flight.lanes, flight.offset, flight.open)
        )
        what = (flight.size_bytes, flight.instruction, flight.writes)
        flights = [Flight(lanes[at], offset[at], *what, is_open[at]) for at in range(count)]
        self._flights.update((id(one), one) for one in flights)
        return flights

    def finish_reads(self, flights: list[Flight]) -> None:
        """Record that reading operations, none of which has ended in part, have been waited for."""
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
            self.loaded(lanes, offset, size, by, asynchronous=True)

    def finish(
        self, flight: Flight, pieces: npt.NDArray[np.bool_] | None, *, asynchronous: bool
    ) -> None:
        """Record that an operation, or some pieces (n,) of it, has been done and waited for."""
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
            self.loaded(flight.lanes[index], offset, size, flight.instruction, asynchronous=True)
        else:
            lanes = flight.lanes[index]
            self.stored(lanes, offset, size, flight.instruction, asynchronous=asynchronous)

    def open_writes(self) -> list[Flight]:
        """Return the operations in flight that write, oldest first."""
        return [flight for flight in self._flights.values() if flight.writes]

    def mark_mbarriers(self, offset: Ints, *, live: bool) -> None:
        """Say that at offsets (n,) an mbarrier lives, or no more."""
        cells = self._gather(self._all_marks(), offset // 8, 8)
        cells = cells | np.uint16(_MBARRIER) if live else cells & np.uint16(0xFFFF ^ _MBARRIER)
        self._scatter(self._marks, offset // 8, 8, cells)

    # ---- inside -----------------------------------------------------------------------------

    def _gather(self, shadow: npt.NDArray[Any], unit: Ints, size: int) -> npt.NDArray[Any]:
        """Return what a shadow array holds for accesses to units of `size` bytes: (…, granules)."""
        if size < self._granule_bytes:
            raise ValueError(f"an access of {size} bytes, but granules of {self._granule_bytes}")
        return reshape(shadow, -1, size // self._granule_bytes).take(unit, axis=0)

    def _gather_reads(self, unit: Ints, size: int) -> Ints:
        """Return when each warp of the cluster read units: (n, warps * granules), warp by warp."""
        plane = self._total_bytes // size
        places = unit[:, None] + np.arange(self._order.cluster_warps) * plane
        return reshape(self._gather(self._read, places, size), len(unit), -1)

    def _scatter(
        self, shadow: npt.NDArray[Any], unit: Ints, size: int, values: npt.NDArray[Any]
    ) -> None:
        """Put values (n,) or (n, granules) into a shadow array."""
        count = size // self._granule_bytes
        if count == 1:
            shadow[unit] = reshape(values, -1)
            return
        if values.ndim == 1:
            values = np.repeat(values, count)
        whole = np.dtype(f"V{count * shadow.itemsize}")
        view(shadow, whole)[unit] = reshape(view(np.ascontiguousarray(values), whole), -1)

    def number(self, instruction: Instruction) -> int:
        """Return the number that stands for an instruction in stamps."""
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
        mark = _in_each(_WRITES, words)
        words[index] = words[index] | mark if begin else words[index] & ~mark

    def _count_readers(self, offset: Ints, size: int, *, begin: bool) -> None:
        """Count those who read `size` bytes at offsets (n,), which may repeat: more, or fewer."""
        words, index = self._words_of_marks(offset, size)
        # No count runs over into the next.
        (np.add if begin else np.subtract).at(words, index, _in_each(1, words))

    def _words_of_marks(self, offset: Ints, size: int) -> tuple[npt.NDArray[Any], Ints]:
        """Return the marks as words of several, and which of these `size` bytes at offsets have."""
        count = size // self._granule_bytes
        each = min(count, _WORD_MARKS)
        words = view(self._all_marks(), f"u{2 * each}")
        first = offset // (each * self._granule_bytes)
        if each == count:
            return words, first
        return words, reshape(first[:, None] + np.arange(count // each), -1)

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
        """Check that lanes (n,) have seen the accesses stamped (n, granules).

        With `pieces` (k,) stamps (n, k) are of these granules.
        """
        late = self._order.unseen(lanes, stamps)
        if late is None:
            return
        rows, which = late
        if strong:
            plain = scope_of(stamps[rows, which]) == WEAK
            rows, which = rows[plain], which[plain]
        if changes is not None:
            changed = changes(rows)
            rows, which = rows[changed], which[changed]
        if rows.size:
            at, piece = int(rows[0]), int(which[0])
            stamp = int(stamps[at, piece])
            granule = piece if pieces is None else int(pieces[piece])
            raise Misuse(
                "race",
                f"{verb} {self._place(offset, at, granule)}, which "
                f"{self.who(stamp)} {other} with nothing between that orders the two",
                lane=lane_at(lanes, at),
                notes=self.where(stamp),
            )

    def _check_marks(
        self, lanes: Lanes, offset: Ints, size: int, forbidden: int, verb: str
    ) -> None:
        if self._marks.size:
            found = self._gather(self._marks, offset // size, size) & np.uint16(forbidden)
            if found.any():
                self._refuse_mark(lanes, offset, found, verb)

    # ---- messages ---------------------------------------------------------------------------

    def _refuse_mark(
        self, lanes: Lanes, offset: Ints, marks: npt.NDArray[Any], verb: str
    ) -> NoReturn:
        at, piece = _first(marks != 0)
        where, lane = self._place(offset, at, piece), lane_at(lanes, at)
        mark = int(marks[at, piece])
        if mark & _MBARRIER:
            raise Misuse("mbarrier", f"{verb} {where}, where an mbarrier lives", lane=lane)
        does = "writes" if mark & _WRITES else "reads"
        raise Misuse(
            "in-flight",
            f"{verb} {where}, which an asynchronous operation {does} that was not waited for",
            lane=lane,
            notes=self._in_flight_at(int(offset[at]) + piece * self._granule_bytes),
        )

    def _place(self, offset: Ints, at: int, piece: int) -> str:
        return self._describe(int(offset[at]) + piece * self._granule_bytes)

    def who(self, stamp: int) -> str:
        """Return the name of who made a stamp."""
        column = column_of(stamp)
        if column == self._order.async_column:
            return "an asynchronous copy"
        rank, warp = divmod(column % self._order.cluster_warps, self._order.warps_per_cta)
        alone = self._order.cluster_warps == self._order.warps_per_cta
        cta = "" if alone else f" of {self.cta_name(rank)}"
        return f"thread {warp * 32 + lane_of(stamp)}{cta}"

    def cta_name(self, cta: int) -> str:
        """Return the name of a CTA, which is its rank in the cluster."""
        cluster_size = self._order.cluster_warps // self._order.warps_per_cta
        return f"cluster rank {cta % cluster_size}"

    def where(self, stamp: int) -> tuple[str, ...]:
        """Return a note that names the access of a stamp."""
        return (note_of("the other access", self._instructions[number_of(stamp)]),)

    def _in_flight_at(self, offset: int) -> tuple[str, ...]:
        """Return a note that names the operation in flight at an offset."""
        for flight in self._flights.values():
            start = flight.offset[flight.open]
            if ((start <= offset) & (offset < start + flight.size_bytes)).any():
                return (note_of("the operation", flight.instruction),)
        return ()


def _in_each(mark: int, words: npt.NDArray[Any]) -> Any:
    """Return a word in which each mark is `mark`."""
    ones = sum(1 << 16 * at for at in range(words.itemsize // 2))
    return words.dtype.type(mark * ones)


def _first(found: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first row and column of what was found."""
    rows, columns = np.nonzero(found)
    return int(rows[0]), int(columns[0])


def note_of(what: str, instruction: Instruction) -> str:
    """Return a line that names an instruction other than the one to blame."""
    location = instruction.location
    source = f" ({location.file}:{location.line})" if location is not None else ""
    return f"{what}: line {instruction.line}: {instruction.text.strip()}{source}"
