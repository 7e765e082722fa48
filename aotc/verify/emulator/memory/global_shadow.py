"""The shadow of global memory: the last accesses of each granule, to find races.

As in shared memory (shared_shadow.py), each granule has the stamps of its last write and of its
last plain read. Of two accesses, one of them a write, one must happen before the other, or both
must be strong at a scope that includes both threads. So a race is reported in any order of threads,
without a model of caches.

Without synchronisation through memory, CTAs of different clusters are unordered. Then a granule
holds the cluster numbers of its writer and readers, and a stamp tells the threads of that cluster
apart, for all CTAs of a launch. With it, stamps tell all warps of a batch apart, and each batch
starts afresh.

Writing an unchanged value is no race, since hardware shows no difference. Of several readers in one
cluster only the last is kept: that may hide a race but never invents one. With `StaleLoads`, a load
that races with a store of its own cluster is recorded there, and is no fault.

The asynchronous proxy may access bytes written by threads only after a `fence.proxy.async` of
global memory. Its own accesses leave no stamps here.

Invariant: recorded accesses have been checked and performed.
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

_LARGEST_BYTES = 32  # per access
_LARGEST_DENSE_BYTES = 1 << 22  # per buffer with a stamp for every granule
_MANY = -1  # clusters


class _Cells:
    """Hold the stamps of one buffer's granules, and the clusters behind them.

    A large buffer keeps accessed pages only: rows may be gigabytes apart.
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

    def stamp_offsets(self, offsets: Ints) -> Ints:
        """Return the positions of stamps for bytes at offsets, in bytes."""
        if self._pages is None:
            return offsets
        return self._pages.places(offsets, self._hold)

    def _hold(self, missing: Ints) -> None:
        assert self._pages is not None
        self._pages.hold(missing)
        size_bytes = self._pages.size_bytes
        if size_bytes > self.written.size * self._granule_bytes:
            self._extend(2 * size_bytes)

    def _extend(self, size_bytes: int) -> None:
        granules = size_bytes // self._granule_bytes
        self.written = _extended(self.written, granules)
        self.writer = _extended(self.writer, granules)
        self.read = _extended(self.read, granules)
        self.reader = _extended(self.reader, granules)


class GlobalShadow:
    """Hold the stamps of all writable global memory of a launch.

    `granule_bytes` is the size of the smallest access. `whole`: CTAs synchronise through memory, so
    stamps are comparable across all clusters of a batch. All checks raise Misuse.
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
        self._instructions: list[Instruction] = []  # by number in stamps
        self._numbers: dict[int, int] = {}  # by the instruction's identity
        self._order: Order
        self._cluster = np.zeros(0, np.int32)  # by lane, counted from 1 across the launch
        self._first_cluster = 0

    def begin(self, order: Order, first_cluster: int, num_lanes: int) -> None:
        """Start another batch, with its clocks, first cluster number and lane count."""
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
        """Check and record a read of `size` bytes by lanes (n,) at valid addresses (n,).

        A `noncoherent` load may not read bytes written in the same launch.
        """
        for buffer, chosen in self.memory.parts(address):
            if not buffer.is_writable:
                continue
            cells, unit = self._locate(buffer, address[chosen], size)
            part_lanes = self._lanes_at(lanes, chosen)
            if cells.has_writes:
                stamps = self._gather(cells.written, unit, size)
                if stamps.any():
                    addresses = address[chosen]
                    if noncoherent:
                        self._refuse_noncoherent(part_lanes, addresses, stamps)
                    owners = self._gather(cells.writer, unit, size)
                    by = instruction if scope == WEAK else None
                    self._check(
                        part_lanes, addresses, stamps, owners, ("reads", "wrote"), scope, None, by
                    )
            if scope == WEAK:
                self._note_read(cells, part_lanes, unit, size, instruction)

    def store(
        self,
        lanes: Lanes,
        address: Ints,
        data: npt.NDArray[Any],
        instruction: Instruction,
        scope: int = WEAK,
    ) -> None:
        """Check and record a write of bytes (n, size) by lanes (n,) at valid addresses (n,).

        Call it before the write: it compares with the old bytes.
        """
        size = data.shape[1]
        values = as_cells(data)
        for buffer, chosen in self.memory.parts(address):
            cells, unit = self._locate(buffer, address[chosen], size)
            # Stamps of a large buffer are paged; its bytes are indexed directly.
            old = buffer.cells(buffer.bytes, size)[(address[chosen] - buffer.base) // size]
            changes = differ(old, values[chosen])
            part_lanes = self._lanes_at(lanes, chosen)
            self._check_write(cells, part_lanes, address[chosen], unit, size, scope, changes)
            if scope == WEAK and not changes.all():
                part_lanes, unit = (
                    lanes_array(part_lanes, len(self._cluster))[changes],
                    unit[changes],
                )
            stamps = self._note_write(cells, part_lanes, unit, size, instruction, scope)
            is_shared = self._gather(cells.written, unit, size)[:, 0] != stamps
            if is_shared.any():  # several threads write there, all the same value
                self._scatter(cells.written, unit[is_shared], size, np.zeros(1, np.int64))

    def update(
        self, lanes: Lanes, address: Ints, size: int, instruction: Instruction, scope: int
    ) -> None:
        """Check and record an atomic update of `size` bytes by lanes (n,) at addresses (n,)."""
        for buffer, chosen in self.memory.parts(address):
            cells, unit = self._locate(buffer, address[chosen], size)
            part_lanes = self._lanes_at(lanes, chosen)
            self._check_write(cells, part_lanes, address[chosen], unit, size, scope, None)
            self._note_write(cells, part_lanes, unit, size, instruction, scope)

    def check_copy(self, lanes: Ints, address: Ints, size: int, *, writes: bool) -> None:
        """Check that bytes accessed by lanes' (n,) bulk copies were fenced to the async proxy.

        The pieces, of `size` bytes at addresses (n,), are valid.
        """
        size = max(size, self._granule_bytes)
        for buffer, chosen in self.memory.parts(address):
            cells = self._cells.get(id(buffer))
            if cells is None or not cells.has_writes:
                continue
            unit = cells.stamp_offsets((address[chosen] - buffer.base) // size * size) // size
            stamps = self._gather(cells.written, unit, size)
            if not stamps.any():
                continue
            owners = self._gather(cells.writer, unit, size)
            part_lanes, addresses = lanes[chosen], address[chosen]
            verb = "writes" if writes else "reads"
            self._check(part_lanes, addresses, stamps, owners, (verb, "wrote"), WEAK, None)
            bad = self._order.unordered(part_lanes, stamps, GLOBAL_PROXY) & (stamps != 0)
            if bad.any():
                row, piece = (int(index[0]) for index in np.nonzero(bad))
                self._refuse_copy(part_lanes, addresses, row, piece, stamps, owners, verb)

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
                same, granules = self._check(
                    lanes, address, stamps, owners, (verb, other), scope, changes
                )
                if same.size:  # either of two threads wrote this value, so keep neither stamp
                    reshape(shadow, -1, size // self._granule_bytes)[unit[same], granules] = 0

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
        """Check that accesses stamped (n, granules) happen before lanes (n,) now.

        Returns the races that are forgiven because the lanes' write changes no value. `load` is the
        reading instruction, if it is plain.
        """
        rows, granules = self._late(lanes, stamps, owners)
        same = rows[:0], granules[:0]
        if changes is not None and rows.size:
            is_race = changes[rows]
            same = rows[~is_race], granules[~is_race]
            rows, granules = rows[is_race], granules[is_race]
        if scope != WEAK and rows.size:
            other_scope = scope_of(stamps[rows, granules])
            common_scope = self._common_scope(
                lanes, rows, stamps[rows, granules], owners[rows, granules]
            )
            is_race = np.minimum(other_scope, scope) < common_scope
            rows, granules = rows[is_race], granules[is_race]
        if rows.size and self._stale is not None and not self.whole:
            is_race = ~self._record_stale(
                self._stale, lanes, rows, stamps[rows, granules], owners[rows, granules], load
            )
            rows, granules = rows[is_race], granules[is_race]
        if rows.size:
            row, piece = int(rows[0]), int(granules[0])
            self._refuse(lanes, address, row, piece, stamps, owners, verbs)
        return same

    def _record_stale(
        self,
        stale: StaleLoads,
        lanes: Lanes,
        rows: Ints,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        load: Instruction | None,
    ) -> Flags:
        """Record the races (k,) of a load with a store of its cluster; return their mask."""
        order = self._order
        numbers = lanes_array(lanes, len(self._cluster))[rows]
        same_cluster = owners == self._cluster[numbers]
        if load is not None:
            plain = same_cluster & (scope_of(stamps) == WEAK)
            return plain & stale.note(load, self._in_launch(numbers[plain]))
        lanes_per_cluster = order.cluster_warps * 32
        first = numbers // lanes_per_cluster * lanes_per_cluster
        readers = first + columns_in(stamps) * 32 + lanes_in(stamps)
        is_stale = np.zeros(rows.size, np.bool_)
        for number in listed(np.unique(numbers_in(stamps[same_cluster]))):
            alike = same_cluster & (numbers_in(stamps) == number)
            is_stale |= alike & stale.note(
                self._instructions[number], self._in_launch(readers[alike])
            )
        return is_stale

    def blur(self, lanes: Lanes, instruction: Instruction, data: npt.NDArray[Any]) -> None:
        """Overwrite bytes (n, size) of stale loads by lanes (n,) with random bits."""
        if self._stale is not None:
            numbers = self._in_launch(lanes_array(lanes, len(self._cluster)))
            self._stale.blur(instruction, numbers, data)

    def _in_launch(self, lanes: Ints) -> Ints:
        """Renumber lanes of the batch across the launch."""
        return lanes + self._first_cluster * self._order.cluster_warps * 32

    def _late(self, lanes: Lanes, stamps: Ints, owners: npt.NDArray[np.int32]) -> tuple[Ints, Ints]:
        """Return rows and columns of stamps (n, granules) not ordered before lanes (n,)."""
        order = self._order
        if not self.whole:
            foreign = (owners != self._cluster[lanes][:, None]) & (stamps != 0)
            if not foreign.any():
                late = order.unseen(lanes, stamps)
                return late if late is not None else (np.zeros(0, np.int64), np.zeros(0, np.int64))
            rows, granules = np.nonzero(foreign)  # one suffices for the report
            return rows, granules
        numbers = lanes_array(lanes, len(self._cluster))
        suspect = np.flatnonzero(any_in_rows(stamps != 0))
        rows, granules = np.nonzero(order.unordered(numbers[suspect], stamps[suspect]))
        return suspect[rows], granules

    def _common_scope(
        self, lanes: Lanes, rows: Ints, stamps: Ints, owners: npt.NDArray[np.int32]
    ) -> Ints:
        """Return the smallest scope common to the lanes of rows (k,) and the stamps' (k,) threads."""
        order = self._order
        numbers = lanes_array(lanes, len(self._cluster))[rows]
        own_column = order.columns_of(numbers)
        column = columns_in(stamps)
        if self.whole:
            apart = own_column // order.cluster_warps != column // order.cluster_warps
        else:
            apart = owners != self._cluster[numbers]
        ctas = own_column // order.warps_per_cta != column // order.warps_per_cta
        return np.where(apart, GPU, np.where(ctas, CLUSTER, CTA))

    # ---- records ----------------------------------------------------------------------------

    def _note_read(
        self, cells: _Cells, lanes: Lanes, unit: Ints, size: int, instruction: Instruction
    ) -> None:
        stamps = self._order.stamps(lanes, self._number(instruction))
        self._scatter(cells.read, unit, size, stamps)
        own_cluster = self._cluster[lanes]
        if self.whole:
            self._scatter(cells.reader, unit, size, own_cluster)
        else:
            before = self._gather(cells.reader, unit, size)
            self._scatter(cells.reader, unit, size, own_cluster)
            after = self._gather(cells.reader, unit, size)
            mine = own_cluster[:, None]
            several = ((before != 0) & (before != mine)) | (after != mine)
            if several.any():
                after[several] = _MANY
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

    def _locate(self, buffer: Buffer, address: Ints, size: int) -> tuple[_Cells, Ints]:
        """Return a buffer's stamps, and the addresses as unit numbers of `size` bytes in them."""
        cells = self._cells.get(id(buffer))
        if cells is None:
            cells = self._cells[id(buffer)] = _Cells(buffer.bytes.size, self._granule_bytes)
        return cells, cells.stamp_offsets(address - buffer.base) // size

    def _lanes_at(self, lanes: Lanes, chosen: slice | Flags) -> Lanes:
        if isinstance(chosen, slice):
            return lanes
        return lanes_array(lanes, len(self._cluster))[chosen]

    def _gather(self, shadow: npt.NDArray[Any], unit: Ints, size: int) -> npt.NDArray[Any]:
        """Return a shadow array's entries for units of `size` bytes: (n, granules)."""
        return reshape(shadow, -1, size // self._granule_bytes).take(unit, axis=0)

    def _scatter(
        self, shadow: npt.NDArray[Any], unit: Ints, size: int, values: npt.NDArray[Any]
    ) -> None:
        """Store values (n,) or (n, granules) into a shadow array."""
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
        row: int,
        piece: int,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        verbs: tuple[str, str],
    ) -> None:
        stamp, owner = int(stamps[row, piece]), int(owners[row, piece])
        does, other = verbs
        location = self.memory.describe(int(address[row]) + piece * self._granule_bytes)
        lane = lane_at(lanes, row)
        assert lane is not None
        raise Misuse(
            "race",
            f"{does} {location}, which {self._thread_name(stamp, owner, lane)} {other} with nothing between "
            "that orders the two",
            lane=lane,
            notes=(note_of("the other access", self._instructions[number_of(stamp)]),),
        )

    def _refuse_copy(
        self,
        lanes: Ints,
        address: Ints,
        row: int,
        piece: int,
        stamps: Ints,
        owners: npt.NDArray[np.int32],
        verb: str,
    ) -> None:
        stamp, lane = int(stamps[row, piece]), int(lanes[row])
        where = self.memory.describe(int(address[row]) + piece * self._granule_bytes)
        raise Misuse(
            "proxy",
            f"{verb} {where} through the asynchronous proxy, which "
            f"{self._thread_name(stamp, int(owners[row, piece]), lane)} wrote through the generic one with no "
            "fence.proxy.async of global memory between",
            lane=lane,
            notes=(note_of("the other access", self._instructions[number_of(stamp)]),),
        )

    def _refuse_noncoherent(self, lanes: Lanes, address: Ints, stamps: Ints) -> None:
        row = int(np.flatnonzero(stamps.any(axis=1))[0])
        stamp = int(stamps[row][np.flatnonzero(stamps[row])[0]])
        raise Misuse(
            "race",
            f"reads {self.memory.describe(int(address[row]))} through the non-coherent cache, "
            "which the kernel itself has written",
            lane=lane_at(lanes, row),
            notes=(note_of("the other access", self._instructions[number_of(stamp)]),),
        )

    def _thread_name(self, stamp: int, owner: int, lane: int) -> str:
        """Name the thread of a stamp, relative to a lane."""
        order = self._order
        cluster_size = order.cluster_warps // order.warps_per_cta
        cta, warp = divmod(column_of(stamp), order.warps_per_cta)
        thread = f"thread {warp * 32 + lane_of(stamp)}"
        if owner == _MANY:
            return "threads of other CTAs"
        first = self._first_cluster if self.whole else owner - 1
        number = first * cluster_size + cta
        mine = self._first_cluster * cluster_size + lane // (order.warps_per_cta * 32)
        return thread if number == mine else f"{thread} of CTA {number}"


def _extended(stamps: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    out = np.zeros(size, stamps.dtype)
    out[: stamps.size] = stamps
    return out
