"""Shared memory of the resident CTAs: bytes and addresses; shared_shadow.py checks accesses.

Addresses are PTX's: `BASE_ADDRESS` is a CTA's first byte. Bits from `RANK_SHIFT` up hold a CTA's
rank in the cluster plus one, or 0 for the CTA itself. An offset locates a byte within the memory of
all CTAs together.

Invariant: an access is checked before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reduce_or, reshape, view
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.bank_conflicts import BankConflicts
from aotc.verify.emulator.memory.global_memory import Bytes, as_cells, cell_dtype, differ, lane_at
from aotc.verify.emulator.memory.remote_accesses import RemoteAccesses
from aotc.verify.emulator.memory.serialized_rmw import in_turn
from aotc.verify.emulator.memory.shared_shadow import Flight, Shadow, note_of
from aotc.verify.emulator.memory.vector_clocks import Ints, Lanes, Order, lanes_array
from aotc.verify.emulator.syntax import Instruction

BASE_ADDRESS = 1024  # 0 stays the null pointer
RANK_SHIFT = 24

__all__ = ["BASE_ADDRESS", "RANK_SHIFT", "Flight", "SharedMemory"]


class SharedMemory:
    """Hold shared memory of all resident CTAs.

    `granule_bytes` is the size of the smallest access, at most 16. Unwritten bytes hold `noise`;
    without it they may not be read.
    """

    def __init__(
        self,
        num_ctas: int,
        size_bytes: int,
        order: Order,
        *,
        granule_bytes: int = 1,
        noise: np.random.Generator | None = None,
    ) -> None:
        self.size_bytes = size_bytes
        self.conflicts: BankConflicts | None = None  # counts them if set
        self._stride = -(-size_bytes // 128) * 128
        total_bytes = num_ctas * self._stride
        self._data = np.zeros(total_bytes, np.uint8)
        if noise is not None:
            self._data[:] = np.frombuffer(noise.bytes(total_bytes), np.uint8)
        self.shadow = Shadow(
            total_bytes, granule_bytes, order, self.describe, reads_unwritten=noise is not None
        )
        self._cluster_size = order.cluster_warps // order.warps_per_cta
        lanes_per_cta = order.warps_per_cta * 32
        cta = np.arange(num_ctas * lanes_per_cta, dtype=np.int64) // lanes_per_cta
        self._base = cta * self._stride - BASE_ADDRESS
        self._cluster_base = cta // self._cluster_size * self._cluster_size * self._stride
        self._remote = RemoteAccesses(num_ctas, order, self.shadow)
        self._ended = np.zeros(num_ctas, np.bool_)
        self._any_ended = False

    @staticmethod
    def bytes_per_cta(size_bytes: int, cluster_warps: int, granule_bytes: int) -> int:
        """Return the host memory of a CTA's shared memory and its shadow."""
        return size_bytes + Shadow.bytes_of(size_bytes, cluster_warps, granule_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all CTAs together, the limit of offsets."""
        return self._data.size

    # ---- synchronous accesses ---------------------------------------------------------------

    def load(
        self,
        lanes: Lanes,
        address: Ints,
        size_bytes: int,
        instruction: Instruction,
        *,
        strong: bool = False,
    ) -> Bytes:
        """Return the bytes read by lanes (n,) at addresses (n,): (n, size_bytes).

        Raises: Misuse for an invalid address, and for the faults listed in shared_shadow.py.
        """
        offset = self.locate_access(lanes, address, size_bytes, instruction)
        self.shadow.check_load(lanes, offset, size_bytes, strong=strong)
        if not strong:
            self.shadow.record_load(lanes, offset, size_bytes, instruction)
        if self.conflicts is not None:
            self.conflicts.count(lanes, address, size_bytes, instruction)
        cells = self._cells(size_bytes)[offset // size_bytes]
        return reshape(view(cells, np.uint8), len(offset), size_bytes)

    def load_each(
        self, lanes: Ints, address: Ints, size_bytes: int, instructions: Sequence[Instruction]
    ) -> Bytes:
        """Return the bytes read by lanes (n,) at addresses (k, n): (k, n, size_bytes).

        Each row of addresses belongs to one of the instructions.

        Raises: Misuse as `load`, for one of them.
        """
        if self._cluster_size > 1 or self.conflicts is not None:
            loads = zip(address, instructions, strict=True)
            return np.stack(
                [self.load(lanes, addresses, size_bytes, by) for addresses, by in loads]
            )
        count = len(instructions)
        everyone = np.tile(lanes, count)
        offset = self.locate(everyone, reshape(address, -1), size_bytes)
        numbers = np.array([self.shadow.number(instruction) for instruction in instructions])
        # Lanes of a warp mostly read the same bytes; only the last one's stamp counts.
        last = self.shadow.last_of_warps(everyone, offset, size_bytes)
        if not self.shadow.can_all_load(everyone[last], offset[last], size_bytes):
            self.shadow.check_load(everyone, offset, size_bytes)
        by = numbers[last // len(lanes)]
        self.shadow.record_load(everyone[last], offset[last], size_bytes, by)
        cells = self._cells(size_bytes)[offset // size_bytes]
        return reshape(view(cells, np.uint8), count, len(lanes), size_bytes)

    def store(
        self,
        lanes: Lanes,
        address: Ints,
        data: Bytes,
        instruction: Instruction,
        *,
        strong: bool = False,
    ) -> None:
        """Write bytes (n, size) of lanes (n,) at addresses (n,).

        Raises: Misuse as `load`, and when lanes write different values to one address at once.
        """
        size = data.shape[1]
        offset = self.locate_access(lanes, address, size, instruction)
        cells, values, unit = self._cells(size), as_cells(data), offset // size

        def changes(rows: Ints) -> npt.NDArray[np.bool_]:
            return differ(cells[unit[rows]], values[rows])

        self.shadow.check_store(lanes, offset, size, changes, strong=strong)
        cells[unit] = values
        if not strong:
            lost = differ(cells[unit], values)
            if lost.any():
                self._refuse_overwritten(lanes, offset, int(np.flatnonzero(lost)[0]))
        self.shadow.record_store(lanes, offset, size, instruction, strong=strong)
        if self.conflicts is not None:
            self.conflicts.count(lanes, address, size, instruction)

    def update(
        self,
        lanes: Lanes,
        address: Ints,
        size_bytes: int,
        instruction: Instruction,
        operation: Callable[[npt.NDArray[Any], Ints], npt.NDArray[Any]],
        *,
        asynchronous: bool = False,
    ) -> npt.NDArray[Any]:
        """Replace cells at addresses (n,) by `operation(old cells, positions)`, atomically.

        Lanes at one address take turns. Returns the old cells, as each lane saw them. An
        `asynchronous` update is performed by the agent, on behalf of the lanes.

        Raises: Misuse as `load`.
        """
        offset = self.locate(lanes, address, size_bytes)
        self._record(lanes, offset, instruction, asynchronous=asynchronous)
        self.shadow.check_load(lanes, offset, size_bytes, strong=True)
        self.shadow.check_store(lanes, offset, size_bytes, strong=True)
        old = in_turn(self._cells(size_bytes), offset // size_bytes, operation)
        self.shadow.record_store(
            lanes, offset, size_bytes, instruction, strong=True, asynchronous=asynchronous
        )
        return old

    # ---- asynchronous operations ------------------------------------------------------------

    def begin(
        self,
        lanes: Ints,
        address: Ints,
        size_bytes: int,
        instruction: Instruction,
        *,
        writes: bool,
        proxy: bool = True,
    ) -> Flight:
        """Check and mark pieces (n,) of `size_bytes` as in flight, for lanes' operation.

        `size_bytes` is a power of two. `proxy`: the asynchronous proxy performs it, as for bulk
        copies and wgmma but not for `cp.async`.

        Raises: Misuse as `load`.
        """
        offset = self.locate(lanes, address, size_bytes)
        if writes:
            self.shadow.check_store(lanes, offset, size_bytes)
            if proxy:
                self.shadow.check_rewrite(lanes, offset, size_bytes)
        else:
            written = self.shadow.check_load(lanes, offset, size_bytes, verb="reads asynchronously")
            if proxy:
                self.shadow.check_proxy(lanes, offset, written)
        all_open = np.ones(len(offset), np.bool_)
        flight = Flight(lanes, offset, size_bytes, instruction, writes, all_open)
        self.shadow.begin(flight)
        if self.conflicts is not None and not proxy:
            self.conflicts.count(lanes, address, size_bytes, instruction)
        return flight

    def peek(self, flight: Flight) -> Bytes:
        """Return the current bytes of a reading operation: (n, size_bytes).

        Raises: Misuse where the CTA has ended.
        """
        self._check_ended(flight.lanes, flight.offset, flight.instruction)
        cells = self._cells(flight.size_bytes)[flight.offset // flight.size_bytes]
        return reshape(view(cells, np.uint8), len(flight.offset), flight.size_bytes)

    def peek_each(self, flights: Sequence[Flight]) -> Bytes:
        """Return the current bytes of reading operations of one size: (flights, n, size_bytes).

        Raises: Misuse as `peek`.
        """
        size = flights[0].size_bytes
        for flight in flights if self._any_ended else ():
            self._check_ended(flight.lanes, flight.offset, flight.instruction)
        offset = np.stack([flight.offset for flight in flights])
        cells = self._cells(size)[offset // size]
        return reshape(view(cells, np.uint8), *offset.shape, size)

    def poke(self, flight: Flight, data: Bytes) -> None:
        """Write the bytes (n, size_bytes) of a writing operation.

        Raises: Misuse where the CTA has ended.
        """
        self._check_ended(flight.lanes, flight.offset, flight.instruction)
        self._cells(flight.size_bytes)[flight.offset // flight.size_bytes] = as_cells(data)

    def finish(
        self,
        flight: Flight,
        pieces: npt.NDArray[np.bool_] | None = None,
        *,
        asynchronous: bool = False,
    ) -> None:
        """End an operation, or some of its pieces (n,), after a wait.

        It then counts as performed now by the issuing lanes, or by the asynchronous agent.
        """
        if asynchronous:
            self._record(flight.lanes, flight.offset, flight.instruction, asynchronous=True)
        self.shadow.finish(flight, pieces, asynchronous=asynchronous)

    def end(self, ctas: Ints) -> None:
        """Release the memory of CTAs whose threads have all exited.

        Raises: Misuse where another CTA's access is not ordered before the exit.
        """
        if self._cluster_size > 1:
            self._remote.check_seen(ctas)
            self._check_in_flight(ctas)
        self._ended[ctas] = True
        self._any_ended |= len(ctas) > 0

    # ---- addresses --------------------------------------------------------------------------

    def locate_access(
        self, lanes: Lanes, address: Ints, size_bytes: int, instruction: Instruction
    ) -> Ints:
        """Return the offsets (n,) of lanes' own accesses, as `locate`; record remote ones."""
        offset = self.locate(lanes, address, size_bytes)
        self._record(lanes, offset, instruction)
        return offset

    def _record(
        self, lanes: Lanes, offset: Ints, instruction: Instruction, *, asynchronous: bool = False
    ) -> None:
        """Record accesses to other CTAs of a cluster."""
        if self._cluster_size > 1:
            numbers = lanes_array(lanes, len(self._base))
            ctas = offset // self._stride
            self._remote.record(numbers, ctas, instruction, asynchronous=asynchronous)

    def locate(self, lanes: Lanes, address: Ints, size_bytes: int) -> Ints:
        """Check lanes' addresses (n,) and return their offsets.

        Raises: Misuse for an address out of bounds, misaligned, or in an ended CTA.
        """
        base = self._base[lanes]
        if not len(address):
            return base
        if int(address.max()) >> RANK_SHIFT:
            rank = address >> RANK_SHIFT
            bad = rank > self._cluster_size
            if bad.any():
                self._refuse_address("bounds", lanes, address, bad, size_bytes)
            other = self._cluster_base[lanes] + (rank - 1) * self._stride
            self._check_ended(lanes, np.where(rank > 0, other, base + BASE_ADDRESS))
            base = np.where(rank > 0, other - BASE_ADDRESS, base)
            address = address & (1 << RANK_SHIFT) - 1
        last = BASE_ADDRESS + self.size_bytes - size_bytes
        if int(address.max()) > last or int(address.min()) < BASE_ADDRESS:
            bad = (address < BASE_ADDRESS) | (address > last)
            self._refuse_address("bounds", lanes, address, bad, size_bytes)
        if int(reduce_or(address)) & (size_bytes - 1):
            bad = address & (size_bytes - 1) != 0
            self._refuse_address("misaligned", lanes, address, bad, size_bytes)
        return address + base

    def _check_ended(
        self, lanes: Lanes, offset: Ints, instruction: Instruction | None = None
    ) -> None:
        """Refuse memory of ended CTAs: another CTA may own it now."""
        if not self._any_ended:
            return
        ended = self._ended[offset // self._stride]
        if ended.any():
            row = int(np.flatnonzero(ended)[0])
            raise Misuse(
                "ended",
                f"touches {self.describe(int(offset[row]))}, after the last thread of the CTA has "
                "exited",
                lane=lane_at(lanes, row),
                instruction=instruction,
            )

    def _check_in_flight(self, ctas: Ints) -> None:
        """Refuse to end CTAs (n,) with writes of another CTA in flight."""
        if not len(ctas):
            return
        lanes_per_cta = len(self._base) // len(self._ended)
        for flight in self.shadow.open_writes():
            target = flight.offset // self._stride
            is_left = np.isin(target, ctas) & (flight.lanes // lanes_per_cta != target)
            is_left &= flight.open
            if is_left.any():
                row = int(np.flatnonzero(is_left)[0])
                raise Misuse(
                    "ended",
                    f"ends {self.shadow.cta_name(int(target[row]))}, though an asynchronous operation "
                    "of another CTA writes its shared memory and no thread of it has waited for that "
                    "before its last one has exited",
                    lane=(int(target[row]) + 1) * lanes_per_cta - 1,
                    notes=(note_of("the operation", flight.instruction),),
                )

    def describe(self, offset: int) -> str:
        """Name a byte of a CTA's shared memory, for messages."""
        rank = offset // self._stride % self._cluster_size
        where = f" of cluster rank {rank}" if self._cluster_size > 1 else ""
        return f"byte {offset % self._stride} of {self.size_bytes} bytes of shared memory{where}"

    def _cells(self, size_bytes: int) -> npt.NDArray[Any]:
        return view(self._data, cell_dtype(size_bytes))

    def _refuse_address(
        self, kind: str, lanes: Lanes, address: Ints, bad: npt.NDArray[np.bool_], size: int
    ) -> NoReturn:
        row = int(np.flatnonzero(bad)[0])
        byte = (int(address[row]) & (1 << RANK_SHIFT) - 1) - BASE_ADDRESS
        why = "out of bounds" if kind == "bounds" else f"no multiple of {size} bytes"
        raise Misuse(
            kind,
            f"accesses {size} bytes at byte {byte} of {self.size_bytes} bytes of shared memory"
            f" (address {int(address[row]):#x}), {why}",
            lane=lane_at(lanes, row),
        )

    def _refuse_overwritten(self, lanes: Lanes, offset: Ints, row: int) -> NoReturn:
        winner = int(np.flatnonzero(offset == offset[row])[-1])
        raise Misuse(
            "race",
            f"writes {self.describe(int(offset[row]))}, to which lane {lane_at(lanes, winner)} "
            "writes another value at the same time",
            lane=lane_at(lanes, row),
        )
