"""Shared memory of an interpreted program: bytes, and the races on them.

A buffer with an offset is a range of the program's shared bytes. A buffer without one has bytes
of its own, at the same address in all CTAs of a cluster. So an allocator bug that overlaps
live buffers gives wrong results here as on the GPU.

Between barriers, an element written by one warp may be accessed by this warp only, and an
element read by one warp may be written by this warp only. Each access names its warps, element
by element, and the first violation is reported. So a missing barrier shows on the first run,
where on the GPU it needs luck.

An asynchronous copy is in flight from its start until a wait covers its group. It lands at the
wait, the latest possible time, and any earlier access to its bytes is reported.

Several groups of warps run in turn, each with its own barriers and its own copies to wait for.
So no barrier orders accesses of two groups.

A producer does not take part in the others' barriers. Mbarriers order accesses before its own:
an arrival passes on a mark, and all accesses of its group up to the mark happen before the wait
returns.

Invariant: `_writer` and `_readers` describe exactly the accesses since the last barrier.
`_in_flight` counts the pending copies to each byte, `_being_read` the products that read it.
`_touched` is the mark of each byte's last access, except by the producer. For the producer,
accesses of a group up to `_known` are over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.ir.layout import LinearLayout
from aotc.verify.arrays import Array, reshape, view
from aotc.verify.interpreter.memory import AccessError
from aotc.verify.interpreter.numerics import Poison

SHARED_BYTES = 256 * 1024
_NOBODY = -1
_COUNTING = -2  # less the number of the group
_THREAD_SHIFT = 32
_MAX_GROUPS = 8
_MAX_WARPS = 64
_FLOATING_ALIGNMENT = 1024

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Places:
    """The elements of each thread: `elements[thread, register]` is a row-major index.

    `warps` names the warp of each thread. `first` marks the first holder of each element, in
    order of register, lane and warp: the one that stores it.
    """

    elements: Indices
    warps: Indices
    first: npt.NDArray[np.bool_]


@lru_cache(maxsize=1024)
def places_of(layout: LinearLayout) -> Places:
    """Return the holders of a distributed layout's elements."""
    elements = np.zeros((1, 1), np.int64)
    warps = np.zeros(1, np.int64)
    free = layout.free_variable_masks()
    first = np.ones((1, 1), np.bool_)
    for dim in layout.in_dims:
        table = np.array(layout.table(dim), np.int64)
        is_first = np.arange(table.size) & free.get(dim, 0) == 0
        if dim == "register":
            elements, first = elements ^ table, first & is_first
            continue
        elements = reshape(elements[None] ^ table[:, None, None], -1, elements.shape[1])
        first = reshape(first[None] & is_first[:, None, None], -1, first.shape[1])
        index = np.arange(table.size) if dim == "warp" else np.zeros(table.size, np.int64)
        warps = reshape(warps[None] + index[:, None], -1)
    return Places(elements, warps, first)


def check_vectors(
    addresses: Indices, mask: Array | None, layout: LinearLayout, vector: int, size_bytes: int
) -> None:
    """Check that runs of `vector` registers of a thread may move in one access.

    `addresses` and `mask` are by element. Raises: AccessError if a run is not consecutive, not
    aligned to its length, or not under one mask value.
    """
    if vector == 1:
        return
    elements = reshape(places_of(layout).elements, -1, vector)
    runs = reshape(addresses, -1)[elements]
    active = np.ones(runs.shape, np.bool_) if mask is None else reshape(mask, -1)[elements]
    if (active != active[:, :1]).any():
        raise AccessError(f"moves {vector} elements at a time, whose masks differ")
    runs = runs[active[:, 0]]
    if (runs != runs[:, :1] + np.arange(vector) * size_bytes).any():
        raise AccessError(f"moves {vector} elements at a time, which are not consecutive")
    if (runs[:, 0] % (vector * size_bytes)).any():
        raise AccessError(f"moves {vector} elements at a time, which are not aligned")


def check_shared_vectors(
    addresses: Indices, layout: LinearLayout, vector: int, size_bytes: int
) -> None:
    """Check that each thread holds whole aligned runs of `vector` elements of a buffer.

    Any registers may hold a run, in any order. Raises: AccessError if one is incomplete.
    """
    if vector == 1:
        return
    span_bytes = vector * size_bytes
    elements = places_of(layout).elements
    # Thread and address in one integer; copies in several registers of a thread count once.
    touched = np.unique(addresses[elements] + (np.arange(len(elements))[:, None] << _THREAD_SHIFT))
    runs, counts = np.unique(touched // span_bytes, return_counts=True)
    if (counts != vector).any():
        cut = int(runs[counts != vector][0]) * span_bytes & ((1 << _THREAD_SHIFT) - 1)
        raise AccessError(f"holds a part of the {vector} elements at shared byte {cut}")


@dataclass(frozen=True)
class _Copy:
    """The writes of warps: the bytes, a row for each element, and their content."""

    touched: Indices
    warps: Indices
    content: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Transfer:
    """The bytes of a tensor copy, a row for each element, and their new content."""

    touched: Indices
    content: npt.NDArray[np.uint8] | None = None


class _Floating:
    """Offsets for buffers before allocation: beyond a GPU's shared memory, without overlap."""

    def __init__(self) -> None:
        self._offsets: dict[object, int] = {}
        self._end = SHARED_BYTES

    def offset_of(self, owner: object, size_bytes: int) -> int:
        """Return the offset of a buffer, the same one at each call."""
        if owner not in self._offsets:
            self._offsets[owner] = self._end
            self._end += -(-size_bytes // _FLOATING_ALIGNMENT) * _FLOATING_ALIGNMENT
        return self._offsets[owner]


class SharedMemory:
    """The shared bytes of one program, and the accesses since the last barrier."""

    def __init__(self, poison: Poison, *, check_races: bool = True) -> None:
        self._poison = poison
        self._check_races = check_races
        self._bytes = np.empty(0, np.uint8)
        self._writer = np.empty(0, np.int64)
        self._readers: Array = np.empty(0, np.uint64)
        self._in_flight = np.empty(0, np.int64)
        self._being_read = np.empty(0, np.int64)
        self._touched = np.empty(0, np.int64)
        self._now = 0
        self._known = np.zeros(_MAX_GROUPS, np.int64)
        self._copies: list[_Copy] = []
        self._commits: list[list[_Copy]] = []
        self._floating = _Floating()
        self._group = 0
        self._others: dict[int, tuple[list[_Copy], list[list[_Copy]]]] = {}
        self._warps = range(_MAX_WARPS)

    def join(self, other: SharedMemory) -> None:
        """Share the offsets of unallocated buffers with another CTA of the cluster."""
        self._floating = other._floating

    def run_group(self, number: int, num_warps: int = _MAX_WARPS) -> None:
        """Switch to a group of warps, number 0 or one of several."""
        if number != self._group:
            self._others[self._group] = self._copies, self._commits
            self._copies, self._commits = self._others.pop(number, ([], []))
        self._group = number
        self._warps = range(number * num_warps, (number + 1) * num_warps)

    def place(
        self,
        owner: object,
        layout: LinearLayout,
        size_bytes: int,
        offset_bytes: int,
        total_bytes: int = 0,
    ) -> Indices:
        """Return the address of every element of a buffer, in row-major order.

        `owner` identifies the buffer from run to run; with a negative `offset_bytes` it is
        unallocated. For a buffer of several slots, `total_bytes` in all, these are the
        addresses of the first.
        """
        num_offsets = layout.in_size("offset")
        total_bytes = max(total_bytes, num_offsets * size_bytes)
        if offset_bytes < 0:
            offset_bytes = self._floating.offset_of(owner, total_bytes)
        self._grow(offset_bytes + total_bytes)
        addresses = np.full(1 << layout.total_out_bits, -1, np.int64)
        addresses[layout.table("offset")] = offset_bytes + np.arange(num_offsets) * size_bytes
        return addresses

    def store(self, addresses: Indices, value: Array, layout: LinearLayout) -> None:
        """Write a tile held by threads in `layout`. Raises: AccessError for a race."""
        write = self._claim(addresses, value, layout)
        self._writer[write.touched] = write.warps[:, None]
        self._bytes[write.touched] = write.content
        self._touch(write.touched)

    def copy(self, addresses: Indices, value: Array, layout: LinearLayout) -> None:
        """Start an asynchronous copy of a tile. Raises: AccessError for a race."""
        write = self._claim(addresses, value, layout)
        np.add.at(self._in_flight, write.touched, 1)
        self._copies.append(write)

    def commit(self) -> None:
        """Make a group of the copies started since the last one."""
        self._commits.append(self._copies)
        self._copies = []

    def wait(self, num_pending: int) -> None:
        """Land the copies of all groups but the newest `num_pending`."""
        landed = len(self._commits) - num_pending
        for write in [write for group in self._commits[: max(0, landed)] for write in group]:
            np.add.at(self._in_flight, write.touched, -1)
            self._bytes[write.touched] = write.content
            self._writer[write.touched] = write.warps[:, None]
            self._touch(write.touched)
        self._commits = self._commits[max(0, landed) :]

    def _claim(self, addresses: Indices, value: Array, layout: LinearLayout) -> _Copy:
        """Return the writes of a tile's first holders. Raises: AccessError for a race."""
        holders = places_of(layout)
        warps = np.broadcast_to(holders.warps[:, None], holders.elements.shape)[holders.first]
        warps = warps + self._warps.start
        elements = holders.elements[holders.first]
        touched = _bytes_of(addresses[elements], value.dtype.itemsize)
        self._check_landed(touched)
        self._check_unread(touched)
        self._check(touched, self._writer[touched] != _NOBODY, self._writer[touched], warps)
        own_bit: Array = np.left_shift(np.uint64(1), warps.astype(np.uint64)[:, None])
        other_readers = self._readers[touched] & ~own_bit
        self._check(touched, other_readers != 0, _lowest_bit(other_readers), warps)
        flat = reshape(np.ascontiguousarray(value), -1)[elements]
        return _Copy(touched, warps, reshape(view(flat, np.uint8), touched.shape))

    def store_remote(self, address: int, value: Array) -> None:
        """Write a scalar from another CTA, as its warp 0. Raises: AccessError for a race."""
        touched = _bytes_of(np.array([address]), value.dtype.itemsize)
        self._grow(int(touched.max()) + 1)  # this CTA may not have allocated the buffer yet
        warps = np.zeros(1, np.int64)
        self._check_landed(touched)
        self._check_unread(touched)
        self._check(touched, self._writer[touched] != _NOBODY, self._writer[touched], warps)
        readers = self._readers[touched]
        self._check(touched, readers != 0, _lowest_bit(readers), warps)
        self._writer[touched] = 0
        self._bytes[touched] = reshape(view(reshape(value, 1), np.uint8), touched.shape)
        self._touch(touched)

    def start_remote(self, address: int, value: Array) -> Transfer:
        """Start a send from another CTA. Raises: AccessError if threads use the bytes, too."""
        touched = _bytes_of(np.array([address]), value.dtype.itemsize)
        self._grow(int(touched.max()) + 1)  # this CTA may not have allocated the buffer yet
        self._check_landed(touched)
        self._check_unread(touched)
        nobody = np.full(1, _NOBODY)
        self._check(touched, self._writer[touched] != _NOBODY, self._writer[touched], nobody)
        readers = self._readers[touched]
        self._check(touched, readers != 0, _lowest_bit(readers), nobody)
        np.add.at(self._in_flight, touched, 1)
        content = reshape(view(reshape(np.ascontiguousarray(value), 1), np.uint8), touched.shape)
        return Transfer(touched, content)

    def start_sent(self, addresses: Indices, value: Array, mark: int) -> Transfer:
        """Start a send from another CTA that may rely on all accesses here up to a mark.

        Raises: AccessError if there are later accesses.
        """
        touched = _bytes_of(addresses, value.dtype.itemsize)
        self._grow(int(touched.max()) + 1)  # this CTA may not have allocated the buffer yet
        self._check_landed(touched)
        self._check_unread(touched)
        late = self._touched[touched] > mark
        if self._check_races and late.any():
            raise AccessError(
                f"sends to shared byte {touched[late][0]}, which a CTA touched and did not say that it has"
            )
        self._writer[touched], self._readers[touched] = _NOBODY, 0
        np.add.at(self._in_flight, touched, 1)
        content = reshape(view(reshape(np.ascontiguousarray(value), -1), np.uint8), touched.shape)
        return Transfer(touched, content)

    def load_remote(self, addresses: Indices, dtype: np.dtype[Any]) -> Array:
        """Read a flat tile for another CTA.

        Raises: AccessError if it was written since the last barrier.
        """
        touched = _bytes_of(addresses, dtype.itemsize)
        self._grow(int(touched.max()) + 1)  # this CTA may not have allocated the buffer yet
        self._check_landed(touched)
        nobody = np.full(len(touched), _NOBODY)
        self._check(touched, self._writer[touched] != _NOBODY, self._writer[touched], nobody)
        self._readers[touched] |= np.uint64(1 << _MAX_WARPS - 1)
        self._touch(touched)
        return reshape(view(self._bytes[touched], dtype), -1)

    def load(self, addresses: Indices, dtype: np.dtype[Any], layout: LinearLayout) -> Array:
        """Read a flat tile held by threads in `layout`. Raises: AccessError for a race."""
        holders = places_of(layout)
        for warp in range(int(holders.warps.max()) + 1):
            elements = np.unique(holders.elements[holders.warps == warp])
            touched = _bytes_of(addresses[elements], dtype.itemsize)
            self._check_landed(touched)
            writer, reader = self._writer[touched], self._warps.start + warp
            self._check(touched, writer != _NOBODY, writer, np.full(elements.shape, reader))
            self._readers[touched] |= np.uint64(1 << reader)
            self._touch(touched)
        return reshape(view(self._bytes[_bytes_of(addresses, dtype.itemsize)], dtype), -1)

    def count(self, addresses: Indices, counted: Array, layout: LinearLayout) -> None:
        """Add 1 to the i32 at each counted address, by a thread holding it.

        Warps may count at the same address; any other access is a race. Raises: AccessError for
        a race.
        """
        holders = places_of(layout)
        warps = np.broadcast_to(holders.warps[:, None], holders.elements.shape)[holders.first]
        elements = holders.elements[holders.first]
        warps, elements = warps[counted[elements]] + self._warps.start, elements[counted[elements]]
        touched = _bytes_of(addresses[elements], np.dtype(np.int32).itemsize)
        self._check_landed(touched)
        self._check_unread(touched)
        writer, counting = self._writer[touched], _COUNTING - self._group
        self._check(touched, (writer != _NOBODY) & (writer != counting), writer, warps)
        own_bit: Array = np.left_shift(np.uint64(1), warps.astype(np.uint64)[:, None])
        other_readers = self._readers[touched] & ~own_bit
        self._check(touched, other_readers != 0, _lowest_bit(other_readers), warps)
        self._writer[touched] = counting
        where, counts = np.unique(addresses[elements], return_counts=True)
        word_bytes = _bytes_of(where, np.dtype(np.int32).itemsize)
        sums = reshape(view(self._bytes[word_bytes], np.int32), -1) + counts.astype(np.int32)
        self._bytes[word_bytes] = reshape(view(sums, np.uint8), word_bytes.shape)
        self._touch(touched)

    def start_fill(self, addresses: Indices, value: Array, *, in_order: bool = True) -> Transfer:
        """Start a tensor copy to a buffer, by the first warp or, not `in_order`, a producer.

        Raises: AccessError for a race.
        """
        touched = _bytes_of(addresses, value.dtype.itemsize)
        self._check_unread(touched)
        if in_order:
            self._check_quiet(touched, writes=True)
        else:
            self._check_landed(touched)
            self._check_known(touched)
        np.add.at(self._in_flight, touched, 1)
        content = reshape(view(reshape(np.ascontiguousarray(value), -1), np.uint8), touched.shape)
        return Transfer(touched, content)

    def land(self, transfer: Transfer) -> None:
        """Land a tensor copy, for all warps."""
        np.add.at(self._in_flight, transfer.touched, -1)
        assert transfer.content is not None
        self._bytes[transfer.touched] = transfer.content

    def start_read(self, addresses: Indices, dtype: np.dtype[Any]) -> tuple[Transfer, Array]:
        """Start a product's read of a buffer; return the flat contents.

        Raises: AccessError for a race: the contents must be written before a barrier.
        """
        touched = _bytes_of(addresses, dtype.itemsize)
        self._check_landed(touched)
        written = self._writer[touched] != _NOBODY
        if self._check_races and written.any():
            raise AccessError(
                f"starts to read shared byte {touched[written][0]}, which warp "
                f"{self._writer[touched][written][0]} wrote since the last barrier"
            )
        np.add.at(self._being_read, touched, 1)
        return Transfer(touched), reshape(view(self._bytes[touched], dtype), -1)

    def finish_read(self, transfer: Transfer) -> None:
        """Finish a product's read of its operand, after all warps have waited for it."""
        np.add.at(self._being_read, transfer.touched, -1)
        self._readers[transfer.touched] |= self._own_bits()
        self._touch(transfer.touched)

    def start_drain(self, addresses: Indices, dtype: np.dtype[Any]) -> tuple[Transfer, Array]:
        """Start the first warp's tensor copy from a buffer; return the flat contents.

        Raises: AccessError for a race.
        """
        touched = _bytes_of(addresses, dtype.itemsize)
        self._check_quiet(touched, writes=False)
        np.add.at(self._in_flight, touched, 1)
        return Transfer(touched), reshape(view(self._bytes[touched], dtype), -1)

    def finish_drain(self, transfer: Transfer) -> None:
        """Finish a tensor copy from a buffer, after the first warp has waited for it."""
        np.add.at(self._in_flight, transfer.touched, -1)
        self._readers[transfer.touched] |= np.uint64(1 << self._warps.start)
        self._touch(transfer.touched)

    def _check_quiet(self, touched: Indices, *, writes: bool) -> None:
        """Raise AccessError if any warp but the first accessed bytes since the last barrier."""
        first = np.full(len(touched), self._warps.start)
        self._check_landed(touched)
        self._check(touched, self._writer[touched] != _NOBODY, self._writer[touched], first)
        if writes:
            own_bit = np.uint64(1 << self._warps.start)
            other_readers = self._readers[touched] & np.bitwise_not(own_bit)
            self._check(touched, other_readers != 0, _lowest_bit(other_readers), first)

    def barrier(self, *, for_producer: bool = True) -> None:
        """Order the group's earlier accesses before later ones, also for a producer."""
        is_own = (self._writer >= self._warps.start) & (self._writer < self._warps.stop)
        is_own |= self._writer == _COUNTING - self._group
        self._writer[is_own] = _NOBODY
        self._readers &= ~self._own_bits()
        if for_producer:
            self.learn(self.mark())

    def mark(self) -> int:
        """Return the mark of the group's latest access."""
        return self._now * _MAX_GROUPS + self._group

    def learn(self, mark: int) -> None:
        """Order all accesses up to a mark before the producer's next ones."""
        group = mark % _MAX_GROUPS
        self._known[group] = max(self._known[group], mark)

    def _own_bits(self) -> np.uint64:
        return np.uint64((1 << self._warps.stop) - (1 << self._warps.start))

    def _touch(self, touched: Indices) -> None:
        self._now += 1
        self._touched[touched] = self.mark()

    def _check_known(self, touched: Indices) -> None:
        """Raise AccessError for the first byte with an access unordered before the producer's."""
        marks = self._touched[touched]
        late = marks > self._known[marks % _MAX_GROUPS]
        if self._check_races and late.any():
            raise AccessError(
                f"touches shared byte {touched[late][0]}, which other warps touched and did not say "
                "that they have"
            )

    def _check(self, touched: Indices, is_accessed: Array, by: Array, warps: Indices) -> None:
        """Raise AccessError for the first byte accessed by another warp."""
        race = is_accessed & (by != warps[:, None])
        if self._check_races and race.any():
            row, column = np.argwhere(race)[0]
            other = by[row, column]
            accessor = f"warp {other}" if other >= 0 else "counting"
            raise AccessError(
                f"in warp {warps[row]} touches shared byte {touched[row, column]}, which {accessor} "
                "touched since the last barrier"
            )

    def _check_landed(self, touched: Indices) -> None:
        """Raise AccessError for the first byte with a pending copy."""
        awaited = self._in_flight[touched] > 0
        if awaited.any():
            raise AccessError(
                f"touches shared byte {touched[awaited][0]}, where an asynchronous copy has not "
                "landed"
            )

    def _check_unread(self, touched: Indices) -> None:
        """Raise AccessError for the first byte read by a product in flight."""
        read = self._being_read[touched] > 0
        if read.any():
            raise AccessError(
                f"writes shared byte {touched[read][0]}, which a product in flight reads"
            )

    def _grow(self, end: int) -> None:
        missing = end - self._bytes.size
        if missing > 0:
            fresh = self._poison.fill(np.dtype(np.uint8), (missing,))
            self._bytes = np.concatenate([self._bytes, fresh])
            self._writer = np.concatenate([self._writer, np.full(missing, _NOBODY)])
            self._readers = np.concatenate([self._readers, np.zeros(missing, np.uint64)])
            self._in_flight = np.concatenate([self._in_flight, np.zeros(missing, np.int64)])
            self._being_read = np.concatenate([self._being_read, np.zeros(missing, np.int64)])
            self._touched = np.concatenate([self._touched, np.zeros(missing, np.int64)])


def _bytes_of(addresses: Indices, size_bytes: int) -> Indices:
    return addresses[:, None] + np.arange(size_bytes)


def _lowest_bit(masks: Array) -> Array:
    lowest = (masks & -masks.astype(np.int64).astype(np.uint64)).astype(np.float64)
    return np.log2(np.maximum(lowest, 1.0)).astype(np.int64)
