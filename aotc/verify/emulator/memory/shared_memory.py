"""Shared memory of the resident CTAs: its bytes and addresses; shared_shadow.py checks each access.

Addresses are those of PTX: `BASE_ADDRESS` is a CTA's first byte; bits from `RANK_SHIFT` up hold one
more than the rank in the cluster of the CTA meant, or 0 for the CTA itself. An offset is the place
of a byte in the memory of all CTAs together.

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

    `granule_bytes` is the size of the smallest access that will come, at most 16. What was never
    written is `noise`, or may not be read where there is none.
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
        self.conflicts: BankConflicts | None = None  # counts them if given
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
        """Return how much a CTA's shared memory and its shadow take of the host's."""
        return size_bytes + Shadow.bytes_of(size_bytes, cluster_warps, granule_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all CTAs together, which offsets are below."""
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
        """Return the bytes at addresses (n,) that lanes (n,) read: (n, size_bytes).

        Raises: Misuse for an address that is none, and for what shared_shadow.py lists.
        """
        offset = self.locate_access(lanes, address, size_bytes, instruction)
        self.shadow.check_load(lanes, offset, size_bytes, strong=strong)
        if not strong:
            self.shadow.loaded(lanes, offset, size_bytes, instruction)
        if self.conflicts is not None:
            self.conflicts.count(lanes, address, size_bytes, instruction)
        cells = self._cells(size_bytes)[offset // size_bytes]
        return reshape(view(cells, np.uint8), len(offset), size_bytes)

    def load_each(
        self, lanes: Ints, address: Ints, size_bytes: int, instructions: Sequence[Instruction]
    ) -> Bytes:
        """Return what lanes (n,) read at the addresses (k, n) of each instruction: (k, n, size_bytes).

        Raises: Misuse as `load`, for one of them.
        """
        if self._cluster_size > 1 or self.conflicts is not None:
            each = zip(address, instructions, strict=True)
            return np.stack([self.load(lanes, at, size_bytes, by) for at, by in each])
        count = len(instructions)
        everyone = np.tile(lanes, count)
        offset = self.locate(everyone, reshape(address, -1), size_bytes)
        numbers = np.array([self.shadow.number(each) for each in instructions])
        # Lanes of a warp mostly read the same: what counts is the last of them.
        last = self.shadow.last_of_warps(everyone, offset, size_bytes)
        if not self.shadow.may_all_load(everyone[last], offset[last], size_bytes):
            self.shadow.check_load(everyone, offset, size_bytes)
        by = numbers[last // len(lanes)]
        self.shadow.loaded(everyone[last], offset[last], size_bytes, by)
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
        """Write bytes (n, size) at addresses (n,) for lanes (n,).

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
        self.shadow.stored(lanes, offset, size, instruction, strong=strong)
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
        """Replace what is at addresses (n,) by `operation(old cells, positions)`, atomically.

        Lanes that meet at an address take turns. Returns the old cells, each as its lane saw it.
        With `asynchronous` it counts as done by the asynchronous agent, whom the lanes asked.

        Raises: Misuse as `load`.
        """
        offset = self.locate(lanes, address, size_bytes)
        self._record(lanes, offset, instruction, asynchronous=asynchronous)
        self.shadow.check_load(lanes, offset, size_bytes, strong=True)
        self.shadow.check_store(lanes, offset, size_bytes, strong=True)
        old = in_turn(self._cells(size_bytes), offset // size_bytes, operation)
        self.shadow.stored(
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
        """Check and mark pieces (n,) of `size_bytes` that lanes' operation will write or read.

        `size_bytes` is a power of two; `proxy` says that the asynchronous proxy does it, as for
        bulk copies and wgmma but not for `cp.async`.

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
        everything = np.ones(len(offset), np.bool_)
        flight = Flight(lanes, offset, size_bytes, instruction, writes, everything)
        self.shadow.begin(flight)
        if self.conflicts is not None and not proxy:
            self.conflicts.count(lanes, address, size_bytes, instruction)
        return flight

    def peek(self, flight: Flight) -> Bytes:
        """Return what a reading operation finds now: (n, size_bytes).

        Raises: Misuse where the CTA has ended.
        """
        self._check_ended(flight.lanes, flight.offset, flight.instruction)
        cells = self._cells(flight.size_bytes)[flight.offset // flight.size_bytes]
        return reshape(view(cells, np.uint8), len(flight.offset), flight.size_bytes)

    def peek_each(self, flights: Sequence[Flight]) -> Bytes:
        """Return what reading operations of one size find now: (flights, n, size_bytes).

        Raises: Misuse as `peek`.
        """
        size = flights[0].size_bytes
        for flight in flights if self._any_ended else ():
            self._check_ended(flight.lanes, flight.offset, flight.instruction)
        offset = np.stack([flight.offset for flight in flights])
        cells = self._cells(size)[offset // size]
        return reshape(view(cells, np.uint8), *offset.shape, size)

    def poke(self, flight: Flight, data: Bytes) -> None:
        """Let a writing operation put down its bytes (n, size_bytes).

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
        """End an operation, or only some pieces (n,) of it, since it has been waited for.

        It then counts as done now by the lanes that issued it, or by the asynchronous agent.
        """
        if asynchronous:
            self._record(flight.lanes, flight.offset, flight.instruction, asynchronous=True)
        self.shadow.finish(flight, pieces, asynchronous=asynchronous)

    def end(self, ctas: Ints) -> None:
        """Give the memory of CTAs back, whose threads have all exited.

        Raises: Misuse where other CTAs' accesses are not ordered before that.
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
        """Return the offsets (n,) that lanes themselves access now, as `locate`; remember the remote."""
        offset = self.locate(lanes, address, size_bytes)
        self._record(lanes, offset, instruction)
        return offset

    def _record(
        self, lanes: Lanes, offset: Ints, instruction: Instruction, *, asynchronous: bool = False
    ) -> None:
        """Remember accesses to other CTAs of a cluster."""
        if self._cluster_size > 1:
            numbers = lanes_array(lanes, len(self._base))
            ctas = offset // self._stride
            self._remote.record(numbers, ctas, instruction, asynchronous=asynchronous)

    def locate(self, lanes: Lanes, address: Ints, size_bytes: int) -> Ints:
        """Return the offsets of lanes' addresses (n,), checked.

        Raises: Misuse for an address outside a CTA's memory, or no multiple of the size, and for
            one in a CTA that has ended.
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
        """Refuse memory of CTAs that have ended: it may be another CTA's by now."""
        if not self._any_ended:
            return
        ended = self._ended[offset // self._stride]
        if ended.any():
            at = int(np.flatnonzero(ended)[0])
            raise Misuse(
                "ended",
                f"touches {self.describe(int(offset[at]))}, after the last thread of the CTA has "
                "exited",
                lane=lane_at(lanes, at),
                instruction=instruction,
            )

    def _check_in_flight(self, ctas: Ints) -> None:
        """Refuse to end CTAs (n,) into which another CTA's operation still writes."""
        if not len(ctas):
            return
        lanes_per_cta = len(self._base) // len(self._ended)
        for flight in self.shadow.open_writes():
            target = flight.offset // self._stride
            is_left = np.isin(target, ctas) & (flight.lanes // lanes_per_cta != target)
            is_left &= flight.open
            if is_left.any():
                at = int(np.flatnonzero(is_left)[0])
                raise Misuse(
                    "ended",
                    f"ends {self.shadow.cta_name(int(target[at]))}, though an asynchronous operation "
                    "of another CTA writes its shared memory and no thread of it has waited for that "
                    "before its last one has exited",
                    lane=(int(target[at]) + 1) * lanes_per_cta - 1,
                    notes=(note_of("the operation", flight.instruction),),
                )

    def describe(self, offset: int) -> str:
        """Return the name of a byte of some CTA's shared memory, for messages."""
        rank = offset // self._stride % self._cluster_size
        where = f" of cluster rank {rank}" if self._cluster_size > 1 else ""
        return f"byte {offset % self._stride} of {self.size_bytes} bytes of shared memory{where}"

    def _cells(self, size_bytes: int) -> npt.NDArray[Any]:
        return view(self._data, cell_dtype(size_bytes))

    def _refuse_address(
        self, kind: str, lanes: Lanes, address: Ints, bad: npt.NDArray[np.bool_], size: int
    ) -> NoReturn:
        at = int(np.flatnonzero(bad)[0])
        byte = (int(address[at]) & (1 << RANK_SHIFT) - 1) - BASE_ADDRESS
        why = "out of bounds" if kind == "bounds" else f"no multiple of {size} bytes"
        raise Misuse(
            kind,
            f"accesses {size} bytes at byte {byte} of {self.size_bytes} bytes of shared memory"
            f" (address {int(address[at]):#x}), {why}",
            lane=lane_at(lanes, at),
        )

    def _refuse_overwritten(self, lanes: Lanes, offset: Ints, at: int) -> NoReturn:
        winner = int(np.flatnonzero(offset == offset[at])[-1])
        raise Misuse(
            "race",
            f"writes {self.describe(int(offset[at]))}, to which lane {lane_at(lanes, winner)} "
            "writes another value at the same time",
            lane=lane_at(lanes, at),
        )
