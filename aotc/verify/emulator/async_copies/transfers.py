"""Common parts of bulk copies: deferred moves between shared memory and elsewhere.

One lane issues a copy. From then on, the shared-memory bytes it accesses are in flight, through the
asynchronous proxy. Copies into shared memory end by completing bytes at an mbarrier, copies out of
it at the wait for their group.

Source: PTX ISA, "Data Movement and Conversion Instructions: Bulk copy", "Async proxy".
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape
from aotc.verify.emulator.control.cluster import map_to_rank
from aotc.verify.emulator.engine.context import Context, Machine, Pending
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.global_memory import Bytes
from aotc.verify.emulator.memory.shared_memory import Flight
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.synchronization.mbarrier import Mbarriers
from aotc.verify.emulator.syntax import Instruction

CHUNK_BYTES = 16  # the grain of all bulk copies
_WARP = 32
COMPLETES = "mbarrier::complete_tx::bytes"


@dataclass(eq=False)
class _Outgoing:
    """A copy out of shared memory: a read, and a later write elsewhere."""

    flight: Flight
    reading: Pending
    writing: Pending


class BulkGroups:
    """Track each lane's copies out of shared memory not yet waited for.

    `_read` holds groups with only their reads waited for; they are older than all others.
    """

    def __init__(self, machine: Machine) -> None:
        self._shared = machine.shared
        self._open: dict[int, list[_Outgoing]] = defaultdict(list)
        self._groups: dict[int, deque[list[_Outgoing]]] = defaultdict(deque)
        self._read: dict[int, deque[list[_Outgoing]]] = defaultdict(deque)

    def issue(self, lane: int, copy: _Outgoing) -> None:
        """Add a copy to its lane's open group."""
        self._open[lane].append(copy)

    def commit(self, lanes: Ints) -> None:
        """Close each lane's open group; it may be empty."""
        for lane in lanes.tolist():
            self._groups[lane].append(self._open.pop(lane, []))

    def wait_reads(self, lanes: Ints, allowed: int) -> None:
        """Finish the reads of all groups of each lane but the last `allowed`."""
        for lane in lanes.tolist():
            groups, read = self._groups[lane], self._read[lane]
            while len(groups) > allowed:
                read.append(groups.popleft())
                for copy in read[-1]:
                    copy.reading.force()
                    self._shared.finish(copy.flight)

    def wait_writes(self, lanes: Ints, allowed: int) -> None:
        """Finish the writes of all groups of each lane but the last `allowed`."""
        self.wait_reads(lanes, allowed)
        for lane in lanes.tolist():
            groups, read = self._groups[lane], self._read[lane]
            while len(read) + len(groups) > allowed:
                for copy in read.popleft():
                    copy.writing.force()


def begin_each(
    ctx: Context, lanes: Sequence[int], chunks: Sequence[Ints], *, writes: bool
) -> list[Flight]:
    """Mark the shared-memory chunks of each lane's copy as in flight.

    Lanes of different clusters cannot overlap, so they are checked together.

    Raises: Misuse as `SharedMemory.begin`.
    """
    shared, instruction = ctx.machine.shared, ctx.instruction
    sizes = [len(lane_chunks) for lane_chunks in chunks]
    cluster_lanes = ctx.machine.cluster_size * ctx.machine.warps_per_cta * _WARP
    clusters = dict.fromkeys(lane // cluster_lanes for lane in lanes)
    if len(set(sizes)) == 1 < len(lanes) == len(clusters):
        owners = np.repeat(np.array(lanes), sizes[0])
        where = np.concatenate(chunks)
        flight = shared.begin(owners, where, CHUNK_BYTES, instruction, writes=writes)
        return shared.shadow.split(flight, len(lanes))
    return [
        shared.begin(np.full(len(where), lane), where, CHUNK_BYTES, instruction, writes=writes)
        for lane, where in zip(lanes, chunks, strict=True)
    ]


def copy_in(
    ctx: Context,
    lane: int,
    chunks: Ints,
    mbarrier: int,
    fetch: Callable[[], Bytes],
    *,
    ranks: Sequence[int] | None = None,
    count_bytes: int | None = None,
    flight: Flight | None = None,
) -> Pending:
    """Start a copy of `fetch()`, (n, 16), to chunks (n,) of shared memory; return it.

    It then completes `count_bytes`, by default all of them, at the mbarrier. With `ranks`, both
    happen in each of these CTAs of the cluster. `flight` comes from `begin_each`.

    Raises: Misuse as `SharedMemory.begin` and `Mbarriers.find_for_copies`.
    """
    machine, instruction = ctx.machine, ctx.instruction
    shared, mbarriers = machine.shared, machine.part(Mbarriers)
    issuer = np.array([lane])
    destinations = [(chunks, mbarrier)]
    if ranks is not None:
        destinations = [
            (
                map_to_rank(chunks, np.array(rank)),
                int(map_to_rank(np.array(mbarrier), np.array(rank))),
            )
            for rank in ranks
        ]
    owners = np.full(len(chunks), lane)
    landings = [
        (
            flight or shared.begin(owners, where, CHUNK_BYTES, instruction, writes=True),
            mbarriers.find_for_copies(issuer, np.array([barrier]), instruction),
        )
        for where, barrier in destinations
    ]
    completed = np.array([len(chunks) * CHUNK_BYTES if count_bytes is None else count_bytes])

    def complete() -> None:
        with blamed_on(instruction):
            data = fetch()
            for landing, row in landings:
                shared.poke(landing, data)
                shared.finish(landing, asynchronous=True)
                mbarriers.complete_bytes(issuer, row, completed)

    return machine.defer(issuer, complete, is_silent=True)


def copy_out(
    ctx: Context, lane: int, flight: Flight, write_out: Callable[[Bytes], None]
) -> Pending:
    """Start a copy out of shared memory; `write_out` receives its chunks (n, 16).

    `flight` comes from `begin_each`. Returns the read, the part that `wait_group.read` waits for.
    """
    machine, instruction = ctx.machine, ctx.instruction
    data: list[Bytes] = []

    def read() -> None:
        with blamed_on(instruction):
            data.append(machine.shared.peek(flight))

    def write() -> None:
        with blamed_on(instruction):
            write_out(data.pop())

    issuer = np.array([lane])
    reading = machine.defer(issuer, read, is_silent=True)
    writing = machine.defer(issuer, write, ready=lambda: reading.is_done)
    machine.part(BulkGroups).issue(lane, _Outgoing(flight, reading, writing))
    return reading


def chunks_of(address: int, count_bytes: int) -> Ints:
    """Return the addresses of the 16-byte chunks from `address` on."""
    return address + CHUNK_BYTES * np.arange(count_bytes // CHUNK_BYTES)


def ranks_of(mask: int) -> list[int]:
    """Return the ranks whose bits are set in a multicast's mask of CTAs."""
    return [rank for rank in range(16) if mask >> rank & 1]


@contextmanager
def blamed_on(instruction: Instruction) -> Generator[None]:
    """Blame the instruction for a `Misuse` raised inside."""
    try:
        yield
    except Misuse as misuse:
        misuse.instruction = misuse.instruction or instruction
        raise


def as_chunks(data: npt.NDArray[np.uint8]) -> Bytes:
    """Return bytes as rows of 16."""
    return reshape(data, -1, CHUNK_BYTES)
