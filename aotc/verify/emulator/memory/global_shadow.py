"""The shadow of global memory: who touched each byte last, which finds accesses that nothing orders.

As in shared memory (shared_shadow.py) each granule has the stamp of its last write and of its last read by
a plain access, and of two accesses, one of them a write, one must have seen the other, or both are
strong and reach each other's thread. So a race is reported in whatever order threads run, and no
model of caches is needed: what is free of races is as if every write were seen by all at once.

CTAs of different clusters are ordered by nothing unless the kernel synchronises through memory. Where
it does not, a granule has the number of its writer's cluster and of its readers', and a stamp tells
the threads of that cluster apart, for all CTAs of a launch. Where it does, stamps tell all warps of a
batch apart, and another batch begins anew.

Writing the value that is there already is forgiven, as hardware has nothing to show for it, and of
several readers in one cluster the last is kept: that may hide a race but never invents one. With
`StaleLoads` a load that races with a store of its own cluster is noted there, and is no fault.

What threads wrote is read or written by the asynchronous proxy only after a `fence.proxy.async` of
global memory. What that proxy itself does leaves no stamps here.

Invariant: what is recorded has been checked, and has happened.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import any_in_rows, listed, reshape
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.global_memory import (
    Buffer,
    GlobalMemory,
    as_cells,
    differ,
    lane_at,
)
from aotc.verify.emulator.memory.shared_shadow import note_of
from aotc.verify.emulator.memory.stale_loads import StaleLoads
from aotc.verify.emulator.memory.vector_clocks import (
    CLUSTER,
    CTA,
    GLOBAL_PROXY,
    GPU,
    WEAK,
    Ints,
    Lanes,
    Order,
    column_of,
    columns_in,
    lane_of,
    lanes_array,
    lanes_in,
    number_of,
    numbers_in,
    scope_of,
)
from aotc.verify.emulator.syntax import Instruction
from aotc.verify.pages import Pages

Flags = npt.NDArray[np.bool_]

_LARGEST_BYTES = 32  # of an access
_LARGEST_DENSE_BYTES = 1 << 22  # of a buffer that has a stamp for each granule
_SEVERAL = -1  # clusters


class _Cells:
    """Hold the stamps of the granules of one buffer, and the clusters that made them.

    Of a large buffer only the pages that were accessed are held: rows may be gigabytes apart.
    """

    def __init__(self, size_bytes: int, granule_bytes: int) -> None:
        self._granule_bytes = granule_bytes
        self._pages = Pages() if size_bytes > _LARGEST_DENSE_BYTES else None
        self.has_writes = self.has_reads = False
        self.written = self.read = np.zeros(0, np.int64)
        self.writer = self.reader = np.zeros(0, np.int32)
        self._extend(
            0 if self._pages is not None else -(-size_bytes // _LARGEST_BYTES) * _LARGEST_BYTES
        )

    def places(self, offsets: Ints) -> Ints:
        """Return where the stamps of bytes at offsets are, as if each byte had one."""
        if self._pages is None:
            return offsets
        return self._pages.places(offsets, self._hold)

    def _hold(self, missing: Ints) -> None:
        assert self._pages is not None
        self._pages.hold(missing)
        held = self._pages.size_bytes
        if held > self.written.size * self._granule_bytes:
            self._extend(2 * held)

    def _extend(self, size_bytes: int) -> None:
        granules = size_bytes // self._granule_bytes
        self.written = _extended(self.written, granules)
        self.writer = _extended(self.writer, granules)
        self.read = _extended(self.read, granules)
        self.reader = _extended(self.reader, granules)


class GlobalShadow:
    """Hold the stamps of all global memory that a launch may write to.

    `granule_bytes` is the size of the smallest access. `whole` says that CTAs synchronise through
    memory, so that stamps of all clusters of a batch can be compared. All checks raise Misuse.
    """

    def __init__(
        self,
        memory: GlobalMemory,
        granule_bytes: int,
        *,
        whole: bool,
        stale: StaleLoads | None = None,
    ) -> None:
        self.memory = memory
        self._stale = stale
        self._granule_bytes = granule_bytes
        self.whole = whole
        self._cells: dict[int, _Cells] = {}
        self._instructions: list[Instruction] = []  # those in stamps, by number
        self._numbers: dict[int, int] = {}  # of each instruction, by its identity
        self._order: Order
        self._cluster = np.zeros(0, np.int32)  # of each lane, counted from 1 through the launch
        self._first_cluster = 0

    def begin(self, order: Order, first_cluster: int, num_lanes: int) -> None:
        """Go on with another batch: its clocks, the number of its first cluster, its lanes."""
        self._order = order
        self._first_cluster = first_cluster
        lanes = np.arange(num_lanes, dtype=np.int64)
        numbers = lanes // (order.cluster_warps * 32) + first_cluster + 1
        self._cluster = numbers.astype(np.int32)
        if self.whole:
            self._cells.clear()

    # ---- accesses ---------------------------------------------------------------------------

    def load(
        self,
        lanes: Lanes,
        address: Ints,
        size: int,
        instruction: Instruction,
        scope: int = WEAK,
        *,
        noncoherent: bool = False,
    ) -> None:
        """Check and record that lanes (n,) read `size` bytes at addresses (n,), within bounds.

        A `noncoherent` load may not read what was written in the same launch at all.
        """
        for buffer, chosen in self.memory.parts(address):
            if not buffer.is_writable:
                continue
            cells, unit = self._located(buffer, address[chosen], size)
            who = self._chosen(lanes, chosen)
            if cells.has_writes:
                stamps = self._gather(cells.written, unit, size)
                if stamps.any():
                    at = address[chosen]
                    if noncoherent:
                        self._refuse_noncoherent(who, at, stamps)
                    owners = self._gather(cells.writer, unit, size)
                    by = instruction if scope == WEAK else None
                    self._check(who, at, stamps, owners, ("reads", "wrote"), scope, None, by)
            if scope == WEAK:
                self._note_read(cells, who, unit, size, instruction)

    def store(
        self,
        lanes: Lanes,
        address: Ints,
        data: npt.NDArray[Any],
        instruction: Instruction,
        scope: int = WEAK,
    ) -> None:
        """Check and record that lanes (n,) write bytes (n, size) at addresses (n,), within bounds.

        The bytes that are there are compared: it has to be called before the write.
        """
        size = data.shape[1]
        values = as_cells(data)
        for buffer, chosen in self.memory.parts(address):
            cells, unit = self._located(buffer, address[chosen], size)
            # Stamps of a large buffer are elsewhere: its bytes are found by their own number.
            held = buffer.cells(buffer.bytes, size)[(address[chosen] - buffer.base) // size]
            changes = differ(held, values[chosen])
            who = self._chosen(lanes, chosen)
            self._check_write(cells, who, address[chosen], unit, size, scope, changes)
            if scope == WEAK and not changes.all():
                who, unit = lanes_array(who, len(self._cluster))[changes], unit[changes]
            stamps = self._note_write(cells, who, unit, size, instruction, scope)
            others = self._gather(cells.written, unit, size)[:, 0] != stamps
            if others.any():  # several threads write there, the same value or it is refused
                self._scatter(cells.written, unit[others], size, np.zeros(1, np.int64))

    def update(
        self, lanes: Lanes, address: Ints, size: int, instruction: Instruction, scope: int
    ) -> None:
        """Check and record that lanes (n,) update `size` bytes at addresses (n,) atomically."""
        for buffer, chosen in self.memory.parts(address):
            cells, unit = self._located(buffer, address[chosen], size)
            who = self._chosen(lanes, chosen)
            self._check_write(cells, who, address[chosen], unit, size, scope, None)
            self._note_write(cells, who, unit, size, instruction, scope)

    def check_copy(self, lanes: Ints, address: Ints, size: int, *, writes: bool) -> None:
        """Check that what threads wrote where lanes' (n,) bulk copies go has been handed to them.

        The pieces, of `size` bytes at addresses (n,), are within bounds.
        """
        size = max(size, self._granule_bytes)
        for buffer, chosen in self.memory.parts(address):
            cells = self._cells.get(id(buffer))
            if cells is None or not cells.has_writes:
                continue
            unit = cells.places((address[chosen] - buffer.base) // size * size) // size
            stamps = self._gather(cells.written, unit, size)
            if not stamps.any():
                continue
            owners = self._gather(cells.writer, unit, size)
            who, at = lanes[chosen], address[chosen]
            verb = "writes" if writes else "reads"
            self._check(who, at, stamps, owners, (verb, "wrote"), WEAK, None)
            bad = self._order.unordered(who, stamps, GLOBAL_PROXY) & (stamps != 0)
            if bad.any():
                row, piece = (int(each[0]) for each in np.nonzero(bad))
                self._refuse_copy(who, at, row, piece, stamps, owners, verb)

    # ---- checks -----------------------------------------------------------------------------

    def _check_write(
        self,
        cells: _Cells,
        lanes: Lanes,
        address: Ints,
        unit: Ints,
        size: int,
        scope: int,
        changes: Flags | None,
    ) -> None:
        verb = "writes" if changes is not None else "updates"
        for has_any, shadow, clusters, other in (
            (cells.has_writes, cells.written, cells.writer, "wrote"),
            (cells.has_reads, cells.read, cells.reader, "read"),
        ):
            if not has_any:
                continue
            stamps = self._gather(shadow, unit, size)
            if stamps.any():
                owners = self._gather(clusters, unit, size)
                same, which = self._check(
                    lanes, address, stamps, owners, (verb, other), scope, changes
                )
                if same.size:  # either of two threads left this value: it is nobody's
                    reshape(shadow, -1, size // self._granule_bytes)[unit[same], which] = 0

    def _check(
        self,
        lanes: Lanes,
        address: Ints,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        verbs: tuple[str, str],
        scope: int,
        changes: Flags | None,
        load: Instruction | None = None,
    ) -> tuple[Ints, Ints]:
        """Check that lanes (n,) have seen the accesses stamped (n, granules).

        Returns where they have not, but their own writes change nothing. `load` is the instruction
        that reads, if it is a plain one.
        """
        rows, which = self._late(lanes, stamps, owners)
        same = rows[:0], which[:0]
        if changes is not None and rows.size:
            kept = changes[rows]
            same = rows[~kept], which[~kept]
            rows, which = rows[kept], which[kept]
        if scope != WEAK and rows.size:
            there = scope_of(stamps[rows, which])
            needed = self._distance(lanes, rows, stamps[rows, which], owners[rows, which])
            kept = np.minimum(there, scope) < needed
            rows, which = rows[kept], which[kept]
        if rows.size and self._stale is not None and not self.whole:
            kept = ~self._are_stale(
                self._stale, lanes, rows, stamps[rows, which], owners[rows, which], load
            )
            rows, which = rows[kept], which[kept]
        if rows.size:
            at, piece = int(rows[0]), int(which[0])
            self._refuse(lanes, address, at, piece, stamps, owners, verbs)
        return same

    def _are_stale(
        self,
        stale: StaleLoads,
        lanes: Lanes,
        rows: Ints,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        load: Instruction | None,
    ) -> Flags:
        """Say which races (k,) are of a load with a store of its cluster; note those."""
        order = self._order
        numbers = lanes_array(lanes, len(self._cluster))[rows]
        own = owners == self._cluster[numbers]
        if load is not None:
            plain = own & (scope_of(stamps) == WEAK)
            return plain & stale.note(load, self._in_launch(numbers[plain]))
        lanes_per_cluster = order.cluster_warps * 32
        first = numbers // lanes_per_cluster * lanes_per_cluster
        readers = first + columns_in(stamps) * 32 + lanes_in(stamps)
        found = np.zeros(rows.size, np.bool_)
        for number in listed(np.unique(numbers_in(stamps[own]))):
            alike = own & (numbers_in(stamps) == number)
            found |= alike & stale.note(self._instructions[number], self._in_launch(readers[alike]))
        return found

    def blur(self, lanes: Lanes, instruction: Instruction, data: npt.NDArray[Any]) -> None:
        """Put random bits in place of bytes (n, size) that lanes (n,) read, where they are stale."""
        if self._stale is not None:
            numbers = self._in_launch(lanes_array(lanes, len(self._cluster)))
            self._stale.blur(instruction, numbers, data)

    def _in_launch(self, lanes: Ints) -> Ints:
        """Return lanes of the batch as they are numbered through the launch."""
        return lanes + self._first_cluster * self._order.cluster_warps * 32

    def _late(self, lanes: Lanes, stamps: Ints, owners: npt.NDArray[np.int32]) -> tuple[Ints, Ints]:
        """Return where among stamps (n, granules) are those that lanes (n,) have not seen."""
        order = self._order
        if not self.whole:
            foreign = (owners != self._cluster[lanes][:, None]) & (stamps != 0)
            if not foreign.any():
                late = order.unseen(lanes, stamps)
                return late if late is not None else (np.zeros(0, np.int64), np.zeros(0, np.int64))
            rows, which = np.nonzero(foreign)  # enough to name one
            return rows, which
        numbers = lanes_array(lanes, len(self._cluster))
        suspect = np.flatnonzero(any_in_rows(stamps != 0))
        rows, which = np.nonzero(order.unordered(numbers[suspect], stamps[suspect]))
        return suspect[rows], which

    def _distance(
        self, lanes: Lanes, rows: Ints, stamps: Ints, owners: npt.NDArray[np.int32]
    ) -> Ints:
        """Return the scope that holds both the lanes of rows (k,) and who made stamps (k,)."""
        order = self._order
        numbers = lanes_array(lanes, len(self._cluster))[rows]
        own = order.columns_of(numbers)
        column = columns_in(stamps)
        if self.whole:
            apart = own // order.cluster_warps != column // order.cluster_warps
        else:
            apart = owners != self._cluster[numbers]
        ctas = own // order.warps_per_cta != column // order.warps_per_cta
        return np.where(apart, GPU, np.where(ctas, CLUSTER, CTA))

    # ---- records ----------------------------------------------------------------------------

    def _note_read(
        self, cells: _Cells, lanes: Lanes, unit: Ints, size: int, instruction: Instruction
    ) -> None:
        stamps = self._order.stamps(lanes, self._number(instruction))
        self._scatter(cells.read, unit, size, stamps)
        own = self._cluster[lanes]
        if self.whole:
            self._scatter(cells.reader, unit, size, own)
        else:
            before = self._gather(cells.reader, unit, size)
            self._scatter(cells.reader, unit, size, own)
            after = self._gather(cells.reader, unit, size)
            mine = own[:, None]
            several = ((before != 0) & (before != mine)) | (after != mine)
            if several.any():
                after[several] = _SEVERAL
                shared = any_in_rows(several)
                self._scatter(cells.reader, unit[shared], size, after[shared])
        cells.has_reads = True

    def _note_write(
        self,
        cells: _Cells,
        lanes: Lanes,
        unit: Ints,
        size: int,
        instruction: Instruction,
        scope: int,
    ) -> Ints:
        cells.has_writes = True
        stamps = self._order.stamps(lanes, self._number(instruction), scope)
        self._scatter(cells.written, unit, size, stamps)
        self._scatter(cells.writer, unit, size, self._cluster[lanes])
        return stamps

    def _located(self, buffer: Buffer, address: Ints, size: int) -> tuple[_Cells, Ints]:
        """Return a buffer's stamps, and which of their units of `size` bytes addresses are."""
        cells = self._cells.get(id(buffer))
        if cells is None:
            cells = self._cells[id(buffer)] = _Cells(buffer.bytes.size, self._granule_bytes)
        return cells, cells.places(address - buffer.base) // size

    def _chosen(self, lanes: Lanes, chosen: slice | Flags) -> Lanes:
        if isinstance(chosen, slice):
            return lanes
        return lanes_array(lanes, len(self._cluster))[chosen]

    def _gather(self, shadow: npt.NDArray[Any], unit: Ints, size: int) -> npt.NDArray[Any]:
        """Return what a shadow array holds for accesses to units of `size` bytes: (n, granules)."""
        return reshape(shadow, -1, size // self._granule_bytes).take(unit, axis=0)

    def _scatter(
        self, shadow: npt.NDArray[Any], unit: Ints, size: int, values: npt.NDArray[Any]
    ) -> None:
        """Put values (n,) or (n, granules) into a shadow array."""
        if values.ndim == 1:
            values = values[:, None]
        reshape(shadow, -1, size // self._granule_bytes)[unit] = values

    def _number(self, instruction: Instruction) -> int:
        number = self._numbers.get(id(instruction))
        if number is None:
            number = self._numbers[id(instruction)] = len(self._instructions)
            self._instructions.append(instruction)
        return number

    # ---- messages ---------------------------------------------------------------------------

    def _refuse(
        self,
        lanes: Lanes,
        address: Ints,
        at: int,
        piece: int,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        verbs: tuple[str, str],
    ) -> None:
        stamp, owner = int(stamps[at, piece]), int(owners[at, piece])
        does, other = verbs
        place = self.memory.describe(int(address[at]) + piece * self._granule_bytes)
        lane = lane_at(lanes, at)
        assert lane is not None
        raise Misuse(
            "race",
            f"{does} {place}, which {self._who(stamp, owner, lane)} {other} with nothing between "
            "that orders the two",
            lane=lane,
            notes=(note_of("the other access", self._instructions[number_of(stamp)]),),
        )

    def _refuse_copy(
        self,
        lanes: Ints,
        address: Ints,
        at: int,
        piece: int,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        verb: str,
    ) -> None:
        stamp, lane = int(stamps[at, piece]), int(lanes[at])
        where = self.memory.describe(int(address[at]) + piece * self._granule_bytes)
        raise Misuse(
            "proxy",
            f"{verb} {where} through the asynchronous proxy, which "
            f"{self._who(stamp, int(owners[at, piece]), lane)} wrote through the generic one with no "
            "fence.proxy.async of global memory between",
            lane=lane,
            notes=(note_of("the other access", self._instructions[number_of(stamp)]),),
        )

    def _refuse_noncoherent(self, lanes: Lanes, address: Ints, stamps: Ints) -> None:
        at = int(np.flatnonzero(stamps.any(axis=1))[0])
        stamp = int(stamps[at][np.flatnonzero(stamps[at])[0]])
        raise Misuse(
            "race",
            f"reads {self.memory.describe(int(address[at]))} through the non-coherent cache, "
            "which the kernel itself has written",
            lane=lane_at(lanes, at),
            notes=(note_of("the other access", self._instructions[number_of(stamp)]),),
        )

    def _who(self, stamp: int, owner: int, lane: int) -> str:
        """Return what to call the thread of a stamp in a message to a lane."""
        order = self._order
        cluster_size = order.cluster_warps // order.warps_per_cta
        cta, warp = divmod(column_of(stamp), order.warps_per_cta)
        thread = f"thread {warp * 32 + lane_of(stamp)}"
        if owner == _SEVERAL:
            return "threads of other CTAs"
        first = self._first_cluster if self.whole else owner - 1
        number = first * cluster_size + cta
        mine = self._first_cluster * cluster_size + lane // (order.warps_per_cta * 32)
        return thread if number == mine else f"{thread} of CTA {number}"


def _extended(stamps: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    out = np.zeros(size, stamps.dtype)
    out[: stamps.size] = stamps
    return out
