"""Global memory of the emulated program: NumPy arrays, each in its own address range.

Each array handed to a kernel gets a range far from every other, with guard room on both sides. An
address names its buffer (high bits) and a byte in it (low bits), so one wrong by gigabytes still
names the buffer it was computed from. Views of one array share its range, as they share its memory.
An array that owns its memory starts at a multiple of 256 bytes, as from `cudaMalloc`; a view starts
at its offset in the owner.

A generic address is a global one, or lies in another space's window above all buffers.

Invariant: only bytes of the caller's arrays are read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, listed, owner_of, reduce_and, reduce_or, reshape, view
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.serialized_rmw import in_turn
from aotc.verify.emulator.memory.vector_clocks import Ints, Lanes

Bytes: TypeAlias = npt.NDArray[np.uint8]

ALIGNMENT_BYTES = 256
PARAM_WINDOW = 0x7C00_0000_0000
CONST_WINDOW = 0x7D00_0000_0000
LOCAL_WINDOW = 0x7E00_0000_0000
SHARED_WINDOW = 0x7F00_0000_0000
_BUFFER_BITS = 37
_GUARD_BYTES = 1 << (_BUFFER_BITS - 1)
_MAX_BUFFERS = (PARAM_WINDOW >> _BUFFER_BITS) - 1


def are_of_one_buffer(left: int, right: int) -> bool:
    """Return whether two addresses were computed from pointers into one buffer."""
    return left >> _BUFFER_BITS == right >> _BUFFER_BITS


def _offset_in(owner: npt.NDArray[Any], array: npt.NDArray[Any]) -> int:
    start: int = array.__array_interface__["data"][0]
    return start - owner.__array_interface__["data"][0]


class Buffer:
    """Hold one owner of memory: its bytes, and masks of readable and writable ones."""

    def __init__(self, owner: npt.NDArray[Any], base: int) -> None:
        flat = owner.ravel(order="K")
        if flat.size and not np.shares_memory(flat, owner):
            raise ValueError("the memory of an argument must be contiguous")
        self.owner = owner
        self.bytes: Bytes = view(flat, np.uint8)
        self.base = base
        self.origin = base
        """Origin of byte offsets in reports: the first added pointer."""
        self.names: list[str] = []
        # The fully accessible range, or None when masks decide.
        self.span: tuple[int, int] | None = (base, base)
        self.may_read = np.zeros(0, np.uint8)
        self.may_write = np.zeros(0, np.uint8)
        self.is_writable = False  # whether any byte is

    def allow(self, start: int, end: int, allowed: tuple[Bytes, Bytes] | None) -> None:
        """Allow access to bytes [start, end) of the owner: all, or those in the two masks."""
        self.is_writable |= allowed is None or bool(allowed[1].any())
        if not self.names and allowed is None:
            self.span = (self.base + start, self.base + end)
            return
        if allowed is None and self.span == (self.base + start, self.base + end):
            return
        if not self.may_read.size:
            self.may_read = np.zeros(self.bytes.size, np.uint8)
            self.may_write = np.zeros(self.bytes.size, np.uint8)
            if self.span is not None:
                opened = slice(self.span[0] - self.base, self.span[1] - self.base)
                self.may_read[opened] = self.may_write[opened] = 1
        self.span = None
        read, write = (1, 1) if allowed is None else allowed
        self.may_read[start:end] |= read
        self.may_write[start:end] |= write

    def cells(self, array: Bytes, size_bytes: int) -> npt.NDArray[Any]:
        """Return the buffer's bytes, or a mask of them, as elements of `size_bytes`."""
        return view(array[: array.size // size_bytes * size_bytes], cell_dtype(size_bytes))


class GlobalMemory:
    """Hold the arrays of one launch and their addresses."""

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []

    def add(
        self,
        name: str,
        array: npt.NDArray[Any],
        readable: npt.NDArray[np.bool_] | None = None,
        writable: npt.NDArray[np.bool_] | None = None,
        pointer_bytes: int = 0,
    ) -> int:
        """Make an array accessible; return the address of its first element plus `pointer_bytes`.

        `readable` and `writable` are masks of its elements, broadcast to its shape. By default the
        array's whole span is accessible, gaps between strides included. A read-only array cannot be
        written to.

        Raises: ValueError if the memory of the array's owner is not contiguous.
        """
        owner = owner_of(array)
        buffer = self._buffer_of(owner)
        if buffer is None:
            if len(self._buffers) == _MAX_BUFFERS:
                raise ValueError(f"more than {_MAX_BUFFERS} arrays of one launch")
            base = (len(self._buffers) + 1 << _BUFFER_BITS) + _GUARD_BYTES
            buffer = Buffer(owner, base)
            self._buffers.append(buffer)
        offset = _offset_in(owner, array)
        reach = [
            (extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)
        ]
        if array.size:
            start = offset + sum(step for step in reach if step < 0)
            end = offset + sum(step for step in reach if step > 0) + array.itemsize
            allowed = None
            if readable is not None or writable is not None or not array.flags.writeable:
                allowed = (
                    _byte_mask(array, readable, offset - start, end - start),
                    _byte_mask(array, writable, offset - start, end - start)
                    if array.flags.writeable
                    else np.zeros(end - start, np.uint8),
                )
            buffer.allow(start, end, allowed)
        pointer = buffer.base + offset + pointer_bytes
        if not buffer.names:
            buffer.origin = pointer
        buffer.names.append(name)
        return pointer

    def address_of(self, array: npt.NDArray[Any]) -> int | None:
        """Return the address of an array's first element; None if its owner was never added."""
        owner = owner_of(array)
        buffer = self._buffer_of(owner)
        return None if buffer is None else buffer.base + _offset_in(owner, array)

    def _buffer_of(self, owner: npt.NDArray[Any]) -> Buffer | None:
        return next((buffer for buffer in self._buffers if buffer.owner is owner), None)

    def read(self, address: Ints, size_bytes: int, lanes: Lanes | None = None) -> Bytes:
        """Return the bytes at addresses (n,): (n, size_bytes).

        Raises: Misuse, with the lane if `lanes` (n,) are given, for an address outside the arrays,
        unreadable or misaligned.
        """
        out = np.empty(len(address), cell_dtype(size_bytes))
        for buffer, chosen in self._locate(address, size_bytes, lanes, write=False):
            index = (address[chosen] - buffer.base) // size_bytes
            out[chosen] = buffer.cells(buffer.bytes, size_bytes)[index]
        return reshape(view(out, np.uint8), len(address), size_bytes)

    def write(self, address: Ints, data: Bytes, lanes: Lanes | None = None) -> None:
        """Write bytes (n, size) at addresses (n,); the last of several writes to one address wins.

        Raises: Misuse as `read`, and for read-only bytes.
        """
        size = data.shape[1]
        values = as_cells(data)
        for buffer, chosen in self._locate(address, size, lanes, write=True):
            index = (address[chosen] - buffer.base) // size
            buffer.cells(buffer.bytes, size)[index] = values[chosen]

    def check(
        self, address: Ints, size_bytes: int, lanes: Lanes | None = None, *, write: bool = False
    ) -> None:
        """Raise Misuse as `read` or `write` would."""
        self._locate(address, size_bytes, lanes, write=write)

    def check_stored(self, address: Ints, data: Bytes, lanes: Lanes | None = None) -> None:
        """Raise Misuse unless addresses (n,) hold bytes (n, size) after a `write`.

        They do not where lanes wrote different values to one address: hardware may keep either.
        """
        size = data.shape[1]
        stored = np.empty(len(address), cell_dtype(size))
        for buffer, chosen in self._locate(address, size, lanes, write=True):  # may be unreadable
            stored[chosen] = buffer.cells(buffer.bytes, size)[
                (address[chosen] - buffer.base) // size
            ]
        lost = differ(stored, as_cells(data))
        if lost.any():
            row = int(np.flatnonzero(lost)[0])
            winner = lane_at(lanes, int(np.flatnonzero(address == address[row])[-1]))
            raise Misuse(
                "race",
                f"writes {self.describe(int(address[row]))}, to which lane {winner} writes another "
                "value at the same time",
                lane=lane_at(lanes, row),
            )

    def update(
        self,
        address: Ints,
        size_bytes: int,
        operation: Callable[[npt.NDArray[Any], Ints], npt.NDArray[Any]],
        lanes: Lanes | None = None,
    ) -> npt.NDArray[Any]:
        """Replace cells at addresses (n,) by `operation(old cells, positions)`, atomically.

        Lanes at one address take turns. Returns the old cells, as each lane saw them.

        Raises: Misuse as `read` and `write`.
        """
        self.check(address, size_bytes, lanes)
        old = np.empty(len(address), cell_dtype(size_bytes))
        for buffer, chosen in self._locate(address, size_bytes, lanes, write=True):
            cells = buffer.cells(buffer.bytes, size_bytes)
            index = (address[chosen] - buffer.base) // size_bytes
            of_all = np.arange(len(address))[chosen]

            def act(
                old_cells: npt.NDArray[Any], positions: Ints, of_all: Ints = of_all
            ) -> npt.NDArray[Any]:
                return operation(old_cells, of_all[positions])

            old[chosen] = in_turn(cells, index, act)
        return old

    def parts(self, address: Ints) -> list[tuple[Buffer, slice | npt.NDArray[np.bool_]]]:
        """Split valid addresses (n,) by buffer: each buffer with the mask of its addresses."""
        if not len(address):
            return []
        first, last = (
            (int(address.min()) >> _BUFFER_BITS) - 1,
            (int(address.max()) >> _BUFFER_BITS) - 1,
        )
        if first == last:
            return [(self._buffers[first], slice(None))]
        indices = (address >> _BUFFER_BITS) - 1
        return [(self._buffers[index], indices == index) for index in np.unique(indices).tolist()]

    def describe(self, address: int) -> str:
        """Return the buffer's name and the byte of an address, for messages."""
        index = (address >> _BUFFER_BITS) - 1
        if not 0 <= index < len(self._buffers):
            return f"address {address:#x}, which is in no buffer"
        buffer = self._buffers[index]
        name = "/".join(dict.fromkeys(buffer.names))
        return f"byte {address - buffer.origin} of {name} ({buffer.bytes.size} bytes)"

    def _locate(
        self, address: Ints, size: int, lanes: Lanes | None, *, write: bool
    ) -> list[tuple[Buffer, slice | npt.NDArray[np.bool_]]]:
        """Check addresses and split them by buffer, as `parts` does."""
        if not len(address):
            return []
        if int(reduce_or(address)) & (size - 1):
            bad = int(np.flatnonzero(address & (size - 1))[0])
            self._refuse("misaligned", address, bad, size, lanes, f"no multiple of {size} bytes")
        lowest, highest = int(address.min()), int(address.max())
        index = (lowest >> _BUFFER_BITS) - 1
        if index == (highest >> _BUFFER_BITS) - 1 and 0 <= index < len(self._buffers):
            buffer = self._buffers[index]
            span = buffer.span
            if span is None or lowest < span[0] or highest + size > span[1]:
                self._check(buffer, address, np.arange(len(address)), size, lanes, write=write)
            return [(buffer, slice(None))]
        indices = (address >> _BUFFER_BITS) - 1
        is_valid = (indices >= 0) & (indices < len(self._buffers))
        if not is_valid.all():
            self._refuse("bounds", address, int(np.flatnonzero(~is_valid)[0]), size, lanes, "")
        parts: list[tuple[Buffer, slice | npt.NDArray[np.bool_]]] = []
        for number in listed(np.unique(indices)):
            chosen = indices == number
            buffer = self._buffers[number]
            self._check(buffer, address, np.flatnonzero(chosen), size, lanes, write=write)
            parts.append((buffer, chosen))
        return parts

    def _check(
        self,
        buffer: Buffer,
        address: Ints,
        chosen: Ints,
        size: int,
        lanes: Lanes | None,
        *,
        write: bool,
    ) -> None:
        """Check the chosen addresses one by one, against the masks if the buffer has any."""
        offset = address[chosen] - buffer.base
        low, high = 0, buffer.bytes.size
        if buffer.span is not None:
            low, high = buffer.span[0] - buffer.base, buffer.span[1] - buffer.base
        outside = (offset < low) | (offset + size > high)
        if outside.any():
            first = int(chosen[np.flatnonzero(outside)[0]])
            self._refuse("bounds", address, first, size, lanes, "out of bounds")
        if buffer.span is None:
            mask = buffer.may_write if write else buffer.may_read
            cells = buffer.cells(mask, size)[offset // size]
            words = view(cells, f"u{min(size, 8)}")
            allowed = view(np.ones(words.itemsize, np.uint8), words.dtype)
            if (reduce_and(words, axis=None) != allowed).any():
                shut = (reshape(words, len(offset), -1) != allowed).any(axis=1)
                first = int(chosen[np.flatnonzero(shut)[0]])
                readable = buffer.may_read[address[first] - buffer.base] != 0
                why = "which is read-only" if write and readable else "out of bounds"
                kind = "read-only" if write and readable else "bounds"
                self._refuse(kind, address, first, size, lanes, why, write=write)

    def _refuse(
        self,
        kind: str,
        address: Ints,
        row: int,
        size: int,
        lanes: Lanes | None,
        why: str,
        *,
        write: bool = False,
    ) -> None:
        verb = "writes" if write else "accesses"
        tail = f", {why}" if why else ""
        message = f"{verb} {size} bytes at {self.describe(int(address[row]))}{tail}"
        raise Misuse(kind, message, lane=lane_at(lanes, row))


def cell_dtype(size_bytes: int) -> np.dtype[Any]:
    """Return a dtype NumPy copies as a unit: unsigned up to 8 bytes, opaque above."""
    return np.dtype(f"u{size_bytes}" if size_bytes <= 8 else f"V{size_bytes}")


def as_cells(data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows of bytes (n, size) as n cells."""
    return reshape(view(np.ascontiguousarray(data), cell_dtype(data.shape[1])), len(data))


def differ(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of differing cells (n,)."""
    if left.dtype.itemsize <= 8:
        return left != right
    different: Array = view(left, np.uint64) != view(right, np.uint64)
    return cast("npt.NDArray[np.bool_]", reshape(different, len(left), -1).any(axis=1))


def lane_at(lanes: Lanes | None, index: int) -> int | None:
    """Return the batch number of the lane at a position of `lanes`."""
    if lanes is None:
        return None
    if isinstance(lanes, slice):
        return (lanes.start or 0) + index * (lanes.step or 1)
    return int(lanes[index])


def _byte_mask(
    array: npt.NDArray[Any], elements: npt.NDArray[np.bool_] | None, offset: int, size: int
) -> Bytes:
    """Return a byte mask of the allowed elements over an array's span; None allows all."""
    if elements is None:
        return np.ones(size, np.uint8)
    mask = np.zeros(size, np.uint8)
    strides = (*array.strides, 1)
    shape = (*array.shape, array.itemsize)
    window = np.ndarray(shape, np.uint8, mask, offset, strides)
    window[...] = np.broadcast_to(elements, array.shape)[..., None]
    return mask
