"""Memory that is as large as a kernel makes it: what it touches is what its buffers hold.

A signature says that an argument is a pointer, not how much lies behind it. So a kernel is first
interpreted on buffers without an end, whose elements are drawn when they are first touched. What it
read and wrote then defines the buffers: the compiled kernel is given exactly those bytes, and one
more is an error.

An element is a function of its position, the seed and the dtype: which are touched, and in what
order, changes none of them. Programs of a grid run in any order, so two of which one writes what
the other touches have no defined result; such a conflict is noted, atomics aside. There is none
where an atomic that acquires has seen one that released after the write, as the last program at a
counter may read what all have left. A program that changes what it has written before is noted as
well: its threads may do that in any order too.

Two pointers may be given one buffer. What a program then reads through the one and writes through
the other is only defined if the same element of a tile did both, whichever thread that is.

A sparse buffer holds only the pages that were touched, so that rows may be gigabytes apart.

Invariant: a byte is marked as read or written exactly if an access of the kernel named it, or an
atomic of bf16 named another one of its 4-byte word.
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

_WORD_BYTES = 4  # what atomics of bf16 may touch instead

_BUFFER_BITS = 40
_BASE = 1 << (_BUFFER_BITS - 1)
_MAX_SPARSE_BYTES = 1 << 36
_MAX_ACCESSED = 1 << 22  # elements whose places are kept, in 16 bytes each
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
    initial: npt.NDArray[np.uint8]  # what its bytes were; of one that is not traced, none
    marks: Marks
    size: int | None = None  # elements from the pointer on; None if nobody says
    is_shared: bool = False  # by two pointers
    updated: str = ""  # by which kind of atomic last
    # Of a shared one: the elements of tiles that the running program accessed each byte for.
    loaded: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    stored: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


class ElasticMemory(Memory):
    """Hold buffers that grow as they are touched, up to `max_bytes` each.

    Unless it `is_traced`, nothing is marked and no conflict is noted, which is faster. One that
    `is_sparse` holds the pages that are touched alone, and `max_bytes` is for those.
    """

    def __init__(self, max_bytes: int, *, is_traced: bool = True, is_sparse: bool = False) -> None:
        super().__init__()
        self.conflict = ""
        """What two programs do that leaves the result open; empty if there is no such thing."""
        self.rewritten = ""
        """The buffer in which a program changed what it had written itself; empty if none did."""
        self.crossed = ""
        """The buffer of two pointers in which an element of a tile met that of another."""
        self.met_undefined = False
        """Whether the kernel made an undefined value, whatever came of it."""
        self._max_bytes = max_bytes
        self._is_traced = is_traced
        self._is_sparse = is_sparse
        self._shapes: dict[tuple[int, ...], int] = {}
        self._boxes: dict[tuple[Box, int], Runs] = {}  # in elements of a size
        self._accesses: dict[tuple[Box, int], Access] = {}  # to the first of them
        self._num_accessed = 0  # elements of these
        self._borrowed: set[int] = set()  # buffers whose bytes are those of other memory
        self._buffers: list[_Buffer] = []
        self._program = 0
        self._order = Order()
        self._sem: AtomicSem | None = None  # of the atomic that is made
        self._kind = ""

    def add_buffer(
        self,
        name: str,
        pointee: ScalarType,
        contents: Contents | Listed,
        offset_bytes: int = 0,
        size: int | None = None,
    ) -> Address:
        """Add a buffer of `size` elements, or an endless one; return the address of its pointer.

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
        """Return memory with the same buffers as they were before the kernel ran, not traced.

        What is held here is held there, at the same places, so that it is not drawn again; it is
        copied when it is written to.
        """
        made = ElasticMemory(self._max_bytes, is_traced=False, is_sparse=self._is_sparse)
        made._names, made._boxes = list(self._names), dict(self._boxes)
        made._accesses, made._num_accessed = dict(self._accesses), self._num_accessed
        made._starts, made._ends = copied(self._starts), copied(self._ends)
        for buffer in self._buffers:
            pages = None if buffer.pages is None else buffer.pages.copy()
            marks = Marks(buffer.pointee.size_bytes)
            if pages is None:
                size = -(-max(buffer.marks.end_bytes, HEAD_BYTES + 1) // PAGE_BYTES) * PAGE_BYTES
                made._ends[len(made._bytes)] = made._starts[len(made._bytes)] + size
            else:
                size = pages.size_bytes
            made._bytes.append(buffer.initial[:size])
            made._buffers.append(replace(buffer, pages=pages, initial=_EMPTY, marks=marks))
        made._borrowed.update(range(len(made._bytes)))
        return made

    @staticmethod
    def address_of(index: int) -> int:
        """Return the address that the pointer into the buffer number `index` has, if aligned."""
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
        """Take the accesses inside the block as one that others may share.

        Those of a single element, as flags and counters are, order programs as `sem` says. Those of
        a `kind` commute with each other alone.
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
                    # Before sm_90 no instruction does it: the word around is exchanged instead.
                    for each in ("read", "written"):
                        marks.of(each, _WORD_BYTES)[cells * size // _WORD_BYTES] = True
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
                if buffer.is_shared and is_read:  # through the other pointer, by no atomic
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
                own = self._order.are_own(reshape(eras, len(cells), -1)[:, 0])
                if (changed & own).any():
                    self.rewritten = self.rewritten or buffer.name
            if is_read:
                self._note(part.index, "writes what another has read")
            self._meet_update(part.index, cells, size, "writes")
            writer[cells] = self._order.era

    def _own(self, index: int) -> None:
        """Copy the bytes of a buffer that other memory has, before they are changed."""
        if index in self._borrowed:
            self._borrowed.remove(index)
            self._bytes[index] = copied(self._bytes[index])

    def _meet_update(self, index: int, cells: Array, size_bytes: int, doing: str) -> None:
        """Note whether an access by no atomic meets updates of another program.

        Through one pointer a kernel may mean to, such as one that polls.
        """
        if self._buffers[index].is_shared:
            eras = self._marks(index, size_bytes).of("updater", size_bytes)[cells]
            if not self._order.are_behind(eras):
                self._note(index, f"{doing} what another has updated")

    def _marks(self, index: int, size_bytes: int) -> Marks:
        """Return the marks of a buffer of which elements of a size are accessed."""
        marks = self._buffers[index].marks
        if size_bytes < marks.granule_bytes:
            marks.split(size_bytes)
        return marks

    def start_bytes(self, index: int) -> int:
        """Return where in its buffer a pointer points."""
        return self._buffers[index].start_bytes

    @staticmethod
    def base_of(index: int) -> int:
        """Return the address at which the memory of a buffer begins."""
        return (index + 1 << _BUFFER_BITS) + _BASE

    def places_of_maps(self, index: int) -> tuple[int, ...]:
        """Return the bytes of a buffer's memory at which programs stored tensor maps, in order."""
        base = self.base_of(index)
        return tuple(
            slot - base for slot in sorted(self.stored_maps) if slot >> _BUFFER_BITS == index + 1
        )

    def end_bytes(self, index: int) -> int:
        """Return where in a buffer all ends that was touched."""
        return self._buffers[index].marks.end_bytes

    def pages(self, index: int) -> list[int]:
        """Return the pages of a sparse buffer that are held, in order; none of any other."""
        held = self._buffers[index].pages
        return [] if held is None else sorted(held.numbers)

    def size_bytes(self, index: int) -> int:
        """Return how large a buffer that is not sparse has become."""
        return self._bytes[index].size

    def result(
        self, index: int, size_bytes: int, pages: Sequence[int] = ()
    ) -> npt.NDArray[np.uint8]:
        """Return what the first `size_bytes` of a buffer hold now, or its `pages` one by one.

        Of memory that is not traced nothing is to change it any more.
        """
        if not pages:
            self._grow(index, size_bytes)
            held = self._bytes[index][:size_bytes]
            return copied(held) if self._is_traced else held
        slots = self._slots(index, pages)
        return reshape(reshape(self._bytes[index], -1, PAGE_BYTES)[slots], -1)

    def initial(
        self, index: int, size_bytes: int, pages: Sequence[int] = ()
    ) -> npt.NDArray[np.uint8]:
        """Return what `result` gives as it was before the kernel ran, of memory that is traced."""
        assert self._is_traced
        if not pages:
            self._grow(index, size_bytes)
            return copied(self._buffers[index].initial[:size_bytes])
        slots = self._slots(index, pages)
        return reshape(reshape(self._buffers[index].initial, -1, PAGE_BYTES)[slots], -1)

    def touched(
        self, index: int, pages: Sequence[int] = ()
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which bytes of a buffer, or of `pages` of it, were read and which were written."""
        marks = self._buffers[index].marks
        read, written = (marks.of(kind, marks.granule_bytes) for kind in ("read", "written"))
        if pages:
            count = PAGE_BYTES // marks.granule_bytes
            slots = self._slots(index, pages)
            read, written = (reshape(reshape(m, -1, count)[slots], -1) for m in (read, written))
        return np.repeat(read, marks.granule_bytes), np.repeat(written, marks.granule_bytes)

    def _slots(self, index: int, pages: Sequence[int]) -> Array:
        """Return where pages are held, counted in pages."""
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
        self, flat: Array, size: int, found: Sequence[tuple[int, Array | slice]]
    ) -> None:
        max_bytes = _MAX_SPARSE_BYTES if self._is_sparse else self._max_bytes
        for index, lanes in found:
            if not 0 <= index < len(self._buffers):
                super()._check_bounds(flat, size, found)
            low, high = int(flat[lanes].min()), int(flat[lanes].max())
            end = high - int(self._starts[index]) + size
            self._check_size(index, low, end)
            if low < self._starts[index] or end > max_bytes:
                at = self.describe(low if low < self._starts[index] else high)
                limit = (
                    "before the pointer"
                    if low < self._starts[index]
                    else f"beyond {max_bytes} bytes"
                )
                raise AccessError(f"accesses {at}, {limit}")
            if not self._is_sparse:
                self._grow(index, end)

    def _check_size(self, index: int, low: int, end_bytes: int) -> None:
        """Raise OutOfBoundsError for an access from `low` on that leaves a buffer of stated size."""
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
        held = self._bytes[index].size
        if size_bytes <= held:
            return
        size = -(-max(size_bytes, min(2 * held, self._max_bytes)) // PAGE_BYTES) * PAGE_BYTES
        fresh = self._drawn(self._buffers[index], held, size)
        self._bytes[index] = np.concatenate([self._bytes[index], fresh])
        if self._is_traced:
            self._buffers[index].initial = np.concatenate([self._buffers[index].initial, fresh])
        self._ends[index] = self._starts[index] + size
        self._extend_marks(index)

    def _hold(self, index: int, missing: Array) -> None:
        """Hold more pages of a sparse buffer."""
        buffer = self._buffers[index]
        assert buffer.pages is not None
        held = buffer.pages.size_bytes
        size = held + missing.size * PAGE_BYTES
        if size > self._max_bytes:
            raise AccessError(f"touches more than {self._max_bytes} bytes of {buffer.name}")
        self._own(index)
        if size > self._bytes[index].size:
            room = max(size, 2 * held)
            self._bytes[index] = extended(self._bytes[index], room)
            if self._is_traced:
                buffer.initial = extended(buffer.initial, room)
            self._extend_marks(index)
        self._bytes[index][held:size] = self._drawn_pages(buffer, missing)
        if self._is_traced:
            buffer.initial[held:size] = self._bytes[index][held:size]
        buffer.pages.hold(missing)

    def _extend_marks(self, index: int) -> None:
        """Make room for marks of all bytes that are held."""
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
        known = self._accesses.get(key)
        if known is not None:
            return known
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
        """Return where a box is; None if it is empty, in several buffers, or may not be accessed."""
        starts, length = box.runs(size)
        if not (starts.size and length) or int(reduce_or(starts)) % size:
            return None
        ends = np.array([starts.min(), starts.max() + (length - 1) * size])
        found = self._by_buffer(ends)
        index = found[0][0]
        if len(found) != 1 or not 0 <= index < len(self._buffers):
            return None
        self._check_bounds(ends, size, found)
        offsets, shift = starts - self._starts[index], size.bit_length() - 1
        pages = self._buffers[index].pages
        if pages is None:
            return Runs(index, starts, length, offsets >> shift, None)
        places, lengths = pages.runs(
            offsets, length * size, lambda missing: self._hold(index, missing)
        )
        return Runs(index, starts, length, places >> shift, lengths >> shift)

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
        """Return what pages hold before the kernel runs, one after the other."""
        count = PAGE_BYTES // buffer.pointee.size_bytes
        places = pages[:, None] * count + np.arange(count)
        return view(np.ascontiguousarray(buffer.contents.at(reshape(places, -1))), np.uint8)

    # ---- marking -----------------------------------------------------------------------------

    def _meet(self, access: Access, element: ScalarType, *, is_store: bool) -> None:
        """Note where elements of tiles that are not the same one meet in a shared buffer.

        The threads of a program may hold them both, with nothing that orders their accesses.
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
            others = [buffer.stored[cells], *([buffer.loaded[cells]] if is_store else [])]
            if any(((each != NOBODY) & (each != mine)).any() for each in others):
                self.crossed = self.crossed or buffer.name
            if is_store:
                buffer.stored[cells] = mine
            else:
                known = buffer.loaded[cells]
                buffer.loaded[cells] = np.where((known == NOBODY) | (known == mine), mine, -1)

    def _note(self, index: int, what: str) -> None:
        if not self.conflict:
            name = self._names[index]
            self.conflict = f"program {self._program - 1} {what} in {name}"
