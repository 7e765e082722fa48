"""Memory that grows with a kernel's accesses, and so defines the kernel's buffers.

A signature gives a pointer, not the size of its memory. So a kernel is first interpreted on
endless buffers with elements drawn at their first access. The accessed bytes then define the
buffers: the compiled kernel gets exactly these, and one byte more is an error.

An element is a function of its position, the seed and the dtype, independent of the order of
accesses. Programs of a grid run in any order, so a program's write to memory that another
accesses is recorded as a conflict, except by atomics. There is no conflict after a release and
acquire: the last program at a counter, for example, may read what all others wrote before it. A
program that overwrites its own writes with other values is recorded as well, because its
threads may do so in any order.

Two pointers may share one buffer. A program may then read through one and write through the
other only the same element of a tile, since any thread may do either.

A sparse buffer holds only the accessed pages, and rows may be gigabytes apart.

Invariant: a byte is marked as read or written exactly if an access of the kernel named it, or a
bf16 atomic named the other half of its 4-byte word.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from aotc.ir.dialects.tile import AtomicSem
from aotc.ir.types import BF16, ScalarType
from aotc.verify.arrays import Array, copied, reduce_or, reshape, view
from aotc.verify.checks.contents import HEAD_BYTES, Contents, Listed
from aotc.verify.checks.marks import NOBODY, SEVERAL, Marks, Order, extended
from aotc.verify.interpreter.memory import (
    Access,
    AccessError,
    Address,
    Box,
    Memory,
    OutOfBoundsError,
    Part,
)
from aotc.verify.pages import PAGE_BYTES, Pages, Runs

_WORD_BYTES = 4  # accessed by bf16 atomics

_BUFFER_BITS = 40
_BASE = 1 << (_BUFFER_BITS - 1)
_MAX_SPARSE_BYTES = 1 << 36
_MAX_ACCESSED = 1 << 22  # elements with cached positions, 16 bytes each
_RELEASES = ("release", "acq_rel")
_ACQUIRES = ("acquire", "acq_rel")


_EMPTY = np.empty(0, np.uint8)


@dataclass(slots=True)
class _Buffer:
    name: str
    pointee: ScalarType
    contents: Contents | Listed
    start_bytes: int
    pages: Pages | None
    initial: npt.NDArray[np.uint8]  # bytes before the kernel ran; empty if untraced
    marks: Marks
    size: int | None = None  # elements from the pointer on; None if undeclared
    is_shared: bool = False  # by two pointers
    updated: str = ""  # the kind of the last atomic here
    # In a shared buffer: for each byte, the accessing tile element of the running program.
    loaded: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    stored: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


class ElasticMemory(Memory):
    """Buffers that grow with accesses, up to `max_bytes` each.

    Without `is_traced`, accesses are not marked and conflicts not recorded: it is faster.
    With `is_sparse`, only accessed pages are held, and `max_bytes` limits those.
    """

    def __init__(self, max_bytes: int, *, is_traced: bool = True, is_sparse: bool = False) -> None:
        super().__init__()
        self.conflict = ""
        """The conflict of two programs over a result; empty if there is none."""
        self.rewritten = ""
        """The buffer in which a program overwrote its own results; empty if none did."""
        self.crossed = ""
        """The shared buffer in which different elements of tiles accessed the same bytes."""
        self.met_undefined = False
        """Whether the kernel made an undefined value, used or not."""
        self._max_bytes = max_bytes
        self._is_traced = is_traced
        self._is_sparse = is_sparse
        self._shapes: dict[tuple[int, ...], int] = {}
        self._boxes: dict[tuple[Box, int], Runs] = {}  # in elements of a size
        self._accesses: dict[tuple[Box, int], Access] = {}  # to the first boxes, up to a limit
        self._num_accessed = 0  # elements of the cached accesses
        self._borrowed: set[int] = set()  # buffers with another memory's bytes, copy-on-write
        self._buffers: list[_Buffer] = []
        self._program = 0
        self._order = Order()
        self._sem: AtomicSem | None = None  # of the running atomic
        self._kind = ""

    def add_buffer(
        self,
        name: str,
        pointee: ScalarType,
        contents: Contents | Listed,
        offset_bytes: int = 0,
        size: int | None = None,
    ) -> Address:
        """Add a buffer of `size` elements, or an endless one; return its pointer's address.

        The address is a multiple of 256 plus `offset_bytes`.
        """
        index = len(self._bytes)
        start = HEAD_BYTES + offset_bytes
        self._bytes.append(_EMPTY)
        self._names.append(name)
        pages = Pages() if self._is_sparse else None
        marks = Marks(pointee.size_bytes)
        self._buffers.append(_Buffer(name, pointee, contents, start, pages, _EMPTY, marks, size))
        base = self.base_of(index)
        self._starts = np.append(self._starts, base)
        self._ends = np.append(self._ends, base)
        if pages is None:
            self._grow(index, start + 1)
        else:
            self._ends[index] = base + _MAX_SPARSE_BYTES
            self._place(index, np.array([base + start]))
        return Address(base + start)

    def again(self) -> ElasticMemory:
        """Return untraced memory with the same buffers as before the kernel ran.

        The bytes here are shared at the same offsets, to avoid drawing them again; a write
        copies them.
        """
        memory = ElasticMemory(self._max_bytes, is_traced=False, is_sparse=self._is_sparse)
        memory._names, memory._boxes = list(self._names), dict(self._boxes)
        memory._accesses, memory._num_accessed = dict(self._accesses), self._num_accessed
        memory._starts, memory._ends = copied(self._starts), copied(self._ends)
        for buffer in self._buffers:
            pages = None if buffer.pages is None else buffer.pages.copy()
            marks = Marks(buffer.pointee.size_bytes)
            if pages is None:
                size = -(-max(buffer.marks.end_bytes, HEAD_BYTES + 1) // PAGE_BYTES) * PAGE_BYTES
                memory._ends[len(memory._bytes)] = memory._starts[len(memory._bytes)] + size
            else:
                size = pages.size_bytes
            memory._bytes.append(buffer.initial[:size])
            memory._buffers.append(replace(buffer, pages=pages, initial=_EMPTY, marks=marks))
        memory._borrowed.update(range(len(memory._bytes)))
        return memory

    @staticmethod
    def address_of(index: int) -> int:
        """Return the address of the aligned pointer into the buffer number `index`."""
        return ElasticMemory.base_of(index) + HEAD_BYTES

    def share_buffer(self, index: int) -> Address:
        """Return the address of a buffer for a second pointer."""
        self._buffers[index].is_shared = True
        self._extend_marks(index)
        return Address(int(self._starts[index]) + self._buffers[index].start_bytes)

    def begin_program(self) -> None:
        for buffer in self._buffers:
            buffer.loaded.fill(NOBODY)
            buffer.stored.fill(NOBODY)
        self._program += 1
        self._order.begin_program()

    def meet_programs(self) -> None:
        for buffer in self._buffers:
            if "reader" in buffer.marks:
                buffer.marks.of("reader", buffer.marks.granule_bytes).fill(NOBODY)
        self._order.meet()

    @contextmanager
    def atomic(self, sem: AtomicSem = "relaxed", kind: str = "") -> Generator[None]:
        """Treat the accesses inside the block as an atomic's.

        Single-element atomics, on flags and counters, order programs according to `sem`.
        Atomics of one `kind` commute only with each other.
        """
        self._sem, self._kind = sem, kind
        try:
            yield
        finally:
            self._sem = None
            if sem in _RELEASES:
                self._order.end_era()

    def read(self, access: Access, element: ScalarType) -> Array:
        out = super().read(access, element)
        if not self._is_traced:
            return out
        self._meet(access, element, is_store=False)
        size = element.size_bytes
        for part in access.parts:
            cells, marks = part.cells, self._marks(part.index, size)
            marks.of("read", size)[cells] = True
            if self._sem is not None:
                if element == BF16:
                    # Before sm_90 this is a compare-and-swap of the containing word.
                    for kind in ("read", "written"):
                        marks.of(kind, _WORD_BYTES)[cells * size // _WORD_BYTES] = True
                if self._sem in _ACQUIRES and cells.size == 1:
                    self._order.acquire((part.index, int(cells[0])))
            else:
                if "writer" in marks:
                    eras = marks.of("writer", size)[cells]
                    if not self._order.are_behind(eras):
                        self._note(part.index, "reads what another has written")
                self._meet_update(part.index, cells, size, "reads")
                reader = marks.of("reader", size)
                unseen = self._order.unseen(reader[cells])
                reader[cells] = np.where(unseen, SEVERAL, self._order.era)
        return out

    def write(self, access: Access, values: Array, element: ScalarType) -> None:
        if not self._is_traced:
            for part in access.parts:
                self._own(part.index)
            super().write(access, values, element)
            return
        self._meet(access, element, is_store=True)
        size = element.size_bytes
        bits = np.dtype(f"u{size}")
        before = [self._elements(part.index, bits)[part.cells] for part in access.parts]
        super().write(access, values, element)
        for part, old in zip(access.parts, before, strict=True):
            cells, buffer = part.cells, self._buffers[part.index]
            marks = self._marks(part.index, size)
            marks.of("written", size)[cells] = True
            is_read = "reader" in marks and not self._order.are_behind(
                marks.of("reader", size)[cells]
            )
            changed = self._elements(part.index, bits)[cells] != old
            if self._sem is not None:
                if buffer.is_shared and is_read:  # through the other pointer, not atomically
                    self._note(part.index, "updates what another has read")
                if buffer.is_shared:
                    if not self._order.are_behind(marks.of("writer", size)[cells]):
                        self._note(part.index, "updates what another has written")
                    marks.of("updater", size)[cells] = self._order.era
                if buffer.is_shared and buffer.updated not in ("", self._kind):
                    self._note(
                        part.index,
                        "updates by another kind of atomic what it or another has updated",
                    )
                buffer.updated = self._kind
                has_failed = self._kind == "cas" and not changed.any()
                if self._sem in _RELEASES and cells.size == 1 and not has_failed:
                    self._order.release((part.index, int(cells[0])))
                continue
            writer = marks.of("writer", size)
            if changed.any():
                eras = writer[cells]
                if not self._order.are_behind(eras):
                    self._note(part.index, "writes what another has written")
                is_own = self._order.are_own(reshape(eras, len(cells), -1)[:, 0])
                if (changed & is_own).any():
                    self.rewritten = self.rewritten or buffer.name
            if is_read:
                self._note(part.index, "writes what another has read")
            self._meet_update(part.index, cells, size, "writes")
            writer[cells] = self._order.era

    def _own(self, index: int) -> None:
        """Copy a buffer's bytes before a write if other memory shares them."""
        if index in self._borrowed:
            self._borrowed.remove(index)
            self._bytes[index] = copied(self._bytes[index])

    def _meet_update(self, index: int, cells: Array, size_bytes: int, doing: str) -> None:
        """Record a non-atomic access to another program's updates in a shared buffer.

        Through a single pointer it may be intended, such as polling.
        """
        if self._buffers[index].is_shared:
            eras = self._marks(index, size_bytes).of("updater", size_bytes)[cells]
            if not self._order.are_behind(eras):
                self._note(index, f"{doing} what another has updated")

    def _marks(self, index: int, size_bytes: int) -> Marks:
        """Return a buffer's marks, split for accesses of smaller elements."""
        marks = self._buffers[index].marks
        if size_bytes < marks.granule_bytes:
            marks.split(size_bytes)
        return marks

    def start_bytes(self, index: int) -> int:
        """Return the offset of a pointer in its buffer."""
        return self._buffers[index].start_bytes

    @staticmethod
    def base_of(index: int) -> int:
        """Return the address at which the memory of a buffer begins."""
        return (index + 1 << _BUFFER_BITS) + _BASE

    def places_of_maps(self, index: int) -> tuple[int, ...]:
        """Return the ascending offsets of tensor maps stored by programs in a buffer."""
        base = self.base_of(index)
        return tuple(
            slot - base for slot in sorted(self.stored_maps) if slot >> _BUFFER_BITS == index + 1
        )

    def end_bytes(self, index: int) -> int:
        """Return the end of the accessed part of a buffer."""
        return self._buffers[index].marks.end_bytes

    def pages(self, index: int) -> list[int]:
        """Return the pages held of a sparse buffer, in order; empty for a dense one."""
        table = self._buffers[index].pages
        return [] if table is None else sorted(table.numbers)

    def size_bytes(self, index: int) -> int:
        """Return the current size of a dense buffer."""
        return self._bytes[index].size

    def result(
        self, index: int, size_bytes: int, pages: Sequence[int] = ()
    ) -> npt.NDArray[np.uint8]:
        """Return the first `size_bytes` of a buffer, or its `pages` one by one.

        Untraced memory must not change afterwards.
        """
        if not pages:
            self._grow(index, size_bytes)
            content = self._bytes[index][:size_bytes]
            return copied(content) if self._is_traced else content
        slots = self._slots(index, pages)
        return reshape(reshape(self._bytes[index], -1, PAGE_BYTES)[slots], -1)

    def initial(
        self, index: int, size_bytes: int, pages: Sequence[int] = ()
    ) -> npt.NDArray[np.uint8]:
        """Return the bytes of `result` as they were before the kernel ran, of traced memory."""
        assert self._is_traced
        if not pages:
            self._grow(index, size_bytes)
            return copied(self._buffers[index].initial[:size_bytes])
        slots = self._slots(index, pages)
        return reshape(reshape(self._buffers[index].initial, -1, PAGE_BYTES)[slots], -1)

    def touched(
        self, index: int, pages: Sequence[int] = ()
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return masks of the bytes read and written, in a buffer or its `pages`."""
        marks = self._buffers[index].marks
        read, written = (marks.of(kind, marks.granule_bytes) for kind in ("read", "written"))
        if pages:
            count = PAGE_BYTES // marks.granule_bytes
            slots = self._slots(index, pages)
            read, written = (reshape(reshape(m, -1, count)[slots], -1) for m in (read, written))
        return np.repeat(read, marks.granule_bytes), np.repeat(written, marks.granule_bytes)

    def _slots(self, index: int, pages: Sequence[int]) -> Array:
        """Return the offsets of pages in a buffer's bytes, counted in pages."""
        return (
            self._place(index, self._starts[index] + np.asarray(pages, np.int64) * PAGE_BYTES)
            // PAGE_BYTES
        )

    def describe(self, address: int) -> str:
        index = (address >> _BUFFER_BITS) - 1
        if not 0 <= index < len(self._names):
            return super().describe(address)
        offset = (address & ((1 << _BUFFER_BITS) - 1)) - _BASE
        return f"byte {offset - self._buffers[index].start_bytes} of {self._names[index]}"

    # ---- growing -----------------------------------------------------------------------------

    def _check_bounds(
        self, flat: Array, size: int, spans: Sequence[tuple[int, Array | slice]]
    ) -> None:
        max_bytes = _MAX_SPARSE_BYTES if self._is_sparse else self._max_bytes
        for index, lanes in spans:
            if not 0 <= index < len(self._buffers):
                super()._check_bounds(flat, size, spans)
            low, high = int(flat[lanes].min()), int(flat[lanes].max())
            end = high - int(self._starts[index]) + size
            self._check_size(index, low, end)
            if low < self._starts[index] or end > max_bytes:
                location = self.describe(low if low < self._starts[index] else high)
                limit = (
                    "before the pointer"
                    if low < self._starts[index]
                    else f"beyond {max_bytes} bytes"
                )
                raise AccessError(f"accesses {location}, {limit}")
            if not self._is_sparse:
                self._grow(index, end)

    def _check_size(self, index: int, low: int, end_bytes: int) -> None:
        """Raise OutOfBoundsError for an access outside a buffer of declared size."""
        buffer = self._buffers[index]
        if buffer.size is None:
            return
        width, base = buffer.pointee.size_bytes, int(self._starts[index]) + buffer.start_bytes
        last = (end_bytes - 1 - buffer.start_bytes) // width
        first = (low - base) // width
        if first < 0 or last >= buffer.size:
            message = f"accesses element {first if first < 0 else last} of {buffer.name}"
            raise OutOfBoundsError(f"{message}, which has {buffer.size} elements")

    def _grow(self, index: int, size_bytes: int) -> None:
        old_size = self._bytes[index].size
        if size_bytes <= old_size:
            return
        size = -(-max(size_bytes, min(2 * old_size, self._max_bytes)) // PAGE_BYTES) * PAGE_BYTES
        fresh = self._drawn(self._buffers[index], old_size, size)
        self._bytes[index] = np.concatenate([self._bytes[index], fresh])
        if self._is_traced:
            self._buffers[index].initial = np.concatenate([self._buffers[index].initial, fresh])
        self._ends[index] = self._starts[index] + size
        self._extend_marks(index)

    def _hold(self, index: int, missing: Array) -> None:
        """Hold more pages of a sparse buffer."""
        buffer = self._buffers[index]
        assert buffer.pages is not None
        old_size = buffer.pages.size_bytes
        size = old_size + missing.size * PAGE_BYTES
        if size > self._max_bytes:
            raise AccessError(f"touches more than {self._max_bytes} bytes of {buffer.name}")
        self._own(index)
        if size > self._bytes[index].size:
            room = max(size, 2 * old_size)
            self._bytes[index] = extended(self._bytes[index], room)
            if self._is_traced:
                buffer.initial = extended(buffer.initial, room)
            self._extend_marks(index)
        self._bytes[index][old_size:size] = self._drawn_pages(buffer, missing)
        if self._is_traced:
            buffer.initial[old_size:size] = self._bytes[index][old_size:size]
        buffer.pages.hold(missing)

    def _extend_marks(self, index: int) -> None:
        """Extend a buffer's marks to its size."""
        if not self._is_traced:
            return
        buffer, size = self._buffers[index], self._bytes[index].size
        buffer.marks.extend(size)
        if buffer.is_shared:
            buffer.loaded = extended(buffer.loaded, size)
            buffer.stored = extended(buffer.stored, size)

    def box_access(self, box: Box, element: ScalarType) -> Access:
        size = element.size_bytes
        key = (box, size)
        cached = self._accesses.get(key)
        if cached is not None:
            return cached
        runs = self._boxes.get(key)
        if runs is None:
            runs = self._runs_of(box, size)
            if runs is None:
                access = super().box_access(box, element)
                if not access.flat.size:
                    self._accesses[key] = access
                return access
            self._boxes[key] = runs
        starts, length = runs.starts, runs.length
        flat = reshape(starts[:, None] + np.arange(0, length * size, size), -1)
        part = Part(runs.index, slice(None), runs.cells())
        access = Access(flat, [part], box.extents, box.inside)
        self._num_accessed += flat.size
        if self._num_accessed <= _MAX_ACCESSED:
            self._accesses[key] = access
        return access

    def _runs_of(self, box: Box, size: int) -> Runs | None:
        """Return a box's runs; None if it is empty, in several buffers, or not accessible."""
        starts, length = box.runs(size)
        if not (starts.size and length) or int(reduce_or(starts)) % size:
            return None
        ends = np.array([starts.min(), starts.max() + (length - 1) * size])
        spans = self._by_buffer(ends)
        index = spans[0][0]
        if len(spans) != 1 or not 0 <= index < len(self._buffers):
            return None
        self._check_bounds(ends, size, spans)
        offsets, shift = starts - self._starts[index], size.bit_length() - 1
        pages = self._buffers[index].pages
        if pages is None:
            return Runs(index, starts, length, offsets >> shift, None)
        first_bytes, lengths = pages.runs(
            offsets, length * size, lambda missing: self._hold(index, missing)
        )
        return Runs(index, starts, length, first_bytes >> shift, lengths >> shift)

    def _place(self, index: int, address: Array) -> Array:
        pages = self._buffers[index].pages
        offsets = address - self._starts[index]
        if pages is None:
            return offsets
        return pages.places(offsets, lambda missing: self._hold(index, missing))

    @staticmethod
    def _drawn(buffer: _Buffer, start: int, end: int) -> npt.NDArray[np.uint8]:
        size = buffer.pointee.size_bytes
        elements = buffer.contents.elements(start // size, -(-end // size))
        return view(np.ascontiguousarray(elements), np.uint8)

    @staticmethod
    def _drawn_pages(buffer: _Buffer, pages: Array) -> npt.NDArray[np.uint8]:
        """Return the initial contents of pages, one after the other."""
        count = PAGE_BYTES // buffer.pointee.size_bytes
        positions = pages[:, None] * count + np.arange(count)
        return view(np.ascontiguousarray(buffer.contents.at(reshape(positions, -1))), np.uint8)

    # ---- marking -----------------------------------------------------------------------------

    def _meet(self, access: Access, element: ScalarType, *, is_store: bool) -> None:
        """Record accesses by different elements of tiles to the same bytes of a shared buffer.

        Different threads of a program may hold them, with no order between their accesses.
        """
        if not any(buffer.is_shared for buffer in self._buffers):
            return
        shape = self._shapes.setdefault(access.shape, len(self._shapes) + 1)
        numbers = access.numbers() + (shape << 40)
        for part in access.parts:
            buffer = self._buffers[part.index]
            if not buffer.is_shared:
                continue
            cells, mine = part.cells * element.size_bytes, numbers[part.lanes]
            accessors = [buffer.stored[cells], *([buffer.loaded[cells]] if is_store else [])]
            if any(((accessor != NOBODY) & (accessor != mine)).any() for accessor in accessors):
                self.crossed = self.crossed or buffer.name
            if is_store:
                buffer.stored[cells] = mine
            else:
                loaded = buffer.loaded[cells]
                buffer.loaded[cells] = np.where((loaded == NOBODY) | (loaded == mine), mine, -1)

    def _note(self, index: int, action: str) -> None:
        if not self.conflict:
            name = self._names[index]
            self.conflict = f"program {self._program - 1} {action} in {name}"
