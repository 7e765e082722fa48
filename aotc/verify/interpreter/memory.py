"""Global memory of an interpreted kernel: NumPy arrays at addresses of their own.

Each array handed to a kernel gets an address range far from every other, so that an address names
its buffer (the high bits) and a byte in it (the low ones), and pointer arithmetic is plain 64-bit
arithmetic that overflows where the hardware's does. Views of one array share its range, as they
share its memory: in-place kernels and aliasing arguments see each other's writes. An array that
owns its memory starts at a multiple of 256 bytes, as `cudaMalloc` gives it; a view starts where
it lies in its owner, so a misaligned pointer is made by slicing.

Invariant: no byte outside the arrays handed over is read or written; what is tried is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array, indices_in, owner_of, reduce_or, reshape, view
from aotc.verify.interpreter.numerics import dtype_of

ALIGNMENT_BYTES = 256
_BUFFER_BITS = 40
# Room below every buffer, so that an address a little too low still names the right one.
_GUARD_BYTES = 1 << (_BUFFER_BITS - 1)


# Of addresses, what was there, operands and their combination: what an atomic writes instead.
Adjust: TypeAlias = Callable[[Array, Array, Array, Array], Array]

Chosen: TypeAlias = "Array | tuple[slice, ...] | None"
"""Which elements of a tile: a mask, or a slice of each axis, or all."""


class AccessError(Exception):
    """Report an access that no hardware would forgive; the interpreter adds the place."""


class OutOfBoundsError(AccessError):
    """Report an access beyond a buffer whose size is stated."""


class Address(int):
    """An address in a memory: the argument of a pointer parameter whose buffer is there already."""


@dataclass(frozen=True)
class TensorAddress:
    """Place a tensor in a memory: the argument of a descriptor. Strides are in elements."""

    address: Address
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Say which elements of a tensor a copy moves: `extents` of them from `start` on, if they exist.

    All but the address is in elements.
    """

    tensor: TensorAddress
    start: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def inside(self) -> tuple[slice, ...]:
        """Which part of the box lies in the tensor."""
        places = zip(self.start, self.extents, self.tensor.shape, strict=True)
        return tuple(
            slice(min(max(-start, 0), extent), max(min(size - start, extent), 0))
            for start, extent, size in places
        )

    @property
    def is_inside(self) -> bool:
        """Whether all of the box lies in the tensor."""
        places = zip(self.start, self.extents, self.tensor.shape, strict=True)
        return all(0 <= start <= size - extent for start, extent, size in places)

    def runs(self, size_bytes: int) -> tuple[Array, int]:
        """Return the addresses of runs of elements in the tensor, in order, and their length."""
        address = np.array(self.tensor.address, np.int64)
        *outer, last = self.inside
        length = max(last.stop - last.start, 0)
        spans = [
            *outer,
            slice(last.start, last.start + 1) if self.tensor.strides[-1] == 1 else last,
        ]
        for span, start, stride in zip(spans, self.start, self.tensor.strides, strict=True):
            index = (indices_in(span) + start) * np.int64(stride) * size_bytes
            address = address[..., None] + index
        is_dense = self.tensor.strides[-1] == 1
        return reshape(address, -1), length if is_dense else 1


@dataclass(frozen=True, slots=True)
class Part:
    """Say which lanes of an access fall into a buffer, and which of its elements they name."""

    index: int
    lanes: Array | slice
    cells: Array


@dataclass(frozen=True, slots=True)
class Access:
    """Hold the addresses of the lanes that access memory, checked, and what they are in.

    The lanes are elements of a tile of a `shape`: those `chosen` by a mask or slices.
    """

    flat: Array
    parts: list[Part]
    shape: tuple[int, ...]
    chosen: Chosen

    def numbers(self) -> Array:
        """Return the number of each lane's element in the tile."""
        return selected(reshape(np.arange(math.prod(self.shape)), self.shape), self.chosen)

    def values(self, tile: Array) -> Array:
        """Return the element of a tile of each lane."""
        return selected(np.broadcast_to(tile, self.shape), self.chosen)


class Memory:
    """Hold the arrays of one launch and the addresses they were given."""

    def __init__(self) -> None:
        self._owners: list[Array] = []
        self._bytes: list[npt.NDArray[np.uint8]] = []
        self._names: list[str] = []
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)
        self.printed: list[str] = []
        """What programs have printed, in the order in which they ran."""
        self.adjust_atomic: Adjust | None = None
        self.buffers_read: set[int] = set()
        """The numbers of the buffers that were read since this was last cleared."""
        self.buffers_written: set[int] = set()
        """The numbers of the buffers that were written to."""
        self.stored_maps: dict[int, None] = {}
        """The addresses at which programs stored tensor maps."""

    def add(self, name: str, array: Array) -> int:
        """Make the bytes `array` spans accessible; return the address of its first element.

        Raises: ValueError if the memory of its owner is not contiguous.
        """
        owner = owner_of(array)
        index = next((i for i, known in enumerate(self._owners) if known is owner), None)
        if index is None:
            index = len(self._owners)
            self._owners.append(owner)
            self._bytes.append(_as_bytes(owner))
            self._names.append(name)
        else:
            self._names[index] += f"/{name}"
        base = (index + 1 << _BUFFER_BITS) + _GUARD_BYTES
        offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        reach = [
            (extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)
        ]
        if array.size:
            start = base + offset + sum(step for step in reach if step < 0)
            end = base + offset + sum(step for step in reach if step > 0) + array.itemsize
            self._add_span(start, end)
        return base + offset

    def load(self, address: Array, mask: Array | None, element: ScalarType) -> Array:
        """Return the elements at the addresses where `mask`, in order, as a flat array.

        Raises: AccessError for an address outside the arrays or not a multiple of the size.
        """
        return self.read(self._access(address, mask, element), element)

    def store(self, address: Array, value: Array, mask: Array | None, element: ScalarType) -> None:
        """Write `value` at the addresses where `mask`.

        Raises: AccessError as `load`, and for an array that is read-only, and where two lanes
        write different values to one address, since which of them stays is anyone's guess.
        """
        access = self._access(address, mask, element)
        self.write(access, access.values(value), element)

    def load_box(self, box: Box, element: ScalarType) -> Array:
        """Return the elements of a box that lie in the tensor, in order, as a flat array.

        Raises: as `load`.
        """
        return self.read(self.box_access(box, element), element)

    def store_box(self, box: Box, value: Array, element: ScalarType) -> None:
        """Write those elements of a tile that lie in the tensor. Raises: as `store`."""
        access = self.box_access(box, element)
        self.write(access, access.values(value), element)

    def read(self, access: Access, element: ScalarType) -> Array:
        dtype = _memory_dtype(element)
        self.buffers_read.update(part.index for part in access.parts)
        if len(access.parts) == 1:
            part = access.parts[0]
            out = self._elements(part.index, dtype)[part.cells]
        else:
            out = np.empty(access.flat.shape, dtype)
            for part in access.parts:
                out[part.lanes] = self._elements(part.index, dtype)[part.cells]
        return out != 0 if element.is_bool else out

    def write(self, access: Access, values: Array, element: ScalarType) -> None:
        dtype = _memory_dtype(element)
        values = values.astype(dtype, copy=False)
        for part in access.parts:
            if not self._bytes[part.index].flags.writeable:
                raise AccessError(f"writes to {self._names[part.index]}, which is read-only")
            self.buffers_written.add(part.index)
            elements, wanted = self._elements(part.index, dtype), values[part.lanes]
            elements[part.cells] = wanted
            written = elements[part.cells]
            if written.tobytes() != wanted.tobytes():
                lost = _bits(written) != _bits(wanted)
                at = self.describe(int(access.flat[part.lanes][lost][0]))
                raise AccessError(f"two lanes write different values to {at}")

    def _elements(self, index: int, dtype: np.dtype[Any]) -> Array:
        """Return the bytes of a buffer as elements, of which the last may be cut off."""
        held = self._bytes[index]
        return view(held[: held.size // dtype.itemsize * dtype.itemsize], dtype)

    def begin_program(self) -> None:
        """Take note that the accesses to come are those of the next program of the grid."""

    def meet_programs(self) -> None:
        """Take note that all programs have come to a barrier of the grid."""

    def describe(self, address: int) -> str:
        """Return the name of the buffer of `address` and the byte in it, for messages."""
        index = (address >> _BUFFER_BITS) - 1
        if not 0 <= index < len(self._names):
            return f"address {address:#x}, which is in no buffer"
        offset = _offset(address)
        return f"byte {offset} of {self._names[index]} ({self._bytes[index].size} bytes)"

    def _place(self, index: int, address: Array) -> Array:
        """Return where in the bytes that are held of a buffer addresses in it are."""
        return address - ((index + 1 << _BUFFER_BITS) + _GUARD_BYTES)

    def _add_span(self, start: int, end: int) -> None:
        spans: list[tuple[int, int]] = []
        known = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        for low, high in sorted([*known, (start, end)]):
            if spans and low <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], high))
            else:
                spans.append((low, high))
        self._starts = np.array([low for low, _ in spans], np.int64)
        self._ends = np.array([high for _, high in spans], np.int64)

    def _access(self, address: Array, mask: Array | None, element: ScalarType) -> Access:
        """Return what is accessed, checked. Raises: AccessError, as `load`."""
        return self._found(selected(address, mask), element, address.shape, mask)

    def box_access(self, box: Box, element: ScalarType) -> Access:
        """Return what is accessed, checked. Raises: AccessError, as `load`."""
        size = _memory_dtype(element).itemsize
        starts, length = box.runs(size)
        flat = reshape(starts[:, None] + np.arange(length) * size, -1)
        return self._found(flat, element, box.extents, box.inside)

    def _found(
        self, flat: Array, element: ScalarType, shape: tuple[int, ...], chosen: Chosen
    ) -> Access:
        size = _memory_dtype(element).itemsize
        if not flat.size:
            return Access(flat, [], shape, chosen)
        found = self._by_buffer(flat)
        self._check_bounds(flat, size, found)
        if int(reduce_or(flat)) % size:
            lane = int(flat[flat % size != 0][0])
            raise AccessError(f"accesses {self.describe(lane)}, no multiple of {size} bytes")
        shift = size.bit_length() - 1
        parts = [Part(i, lanes, self._place(i, flat[lanes]) >> shift) for i, lanes in found]
        return Access(flat, parts, shape, chosen)

    def _check_bounds(
        self, flat: Array, size: int, found: Sequence[tuple[int, Array | slice]]
    ) -> None:
        """Raise AccessError for an address outside of what may be accessed."""
        del found
        low, high = int(flat.min()), int(flat.max())
        first = int(np.searchsorted(self._starts, low, side="right")) - 1
        if first >= 0 and high + size <= self._ends[first]:
            return
        span = np.searchsorted(self._starts, flat, side="right") - 1
        inside = span >= 0
        if self._ends.size:
            inside &= flat <= self._ends[np.maximum(span, 0)] - size  # no sum that overflows
        if not inside.all():
            outside = flat[~inside]
            raise AccessError(
                f"accesses {self.describe(int(outside[0]))}, out of bounds "
                f"({outside.size} of {flat.size} lanes)"
            )

    def _by_buffer(self, flat: Array) -> list[tuple[int, Array | slice]]:
        """Return the buffers that checked addresses fall into, each with its lanes."""
        if not flat.size:
            return []
        first = (int(flat.min()) >> _BUFFER_BITS) - 1
        if first == (int(flat.max()) >> _BUFFER_BITS) - 1:
            return [(first, slice(None))]
        index = (flat >> _BUFFER_BITS) - 1
        return [(int(i), index == i) for i in np.unique(index)]


def _as_bytes(owner: Array) -> npt.NDArray[np.uint8]:
    flat = owner.ravel(order="K")
    if flat.size and not np.shares_memory(flat, owner):
        raise ValueError("the memory of an argument must be contiguous")
    return view(flat, np.uint8)


def _offset(address: Any) -> Any:
    return (address & ((1 << _BUFFER_BITS) - 1)) - _GUARD_BYTES


def _memory_dtype(element: ScalarType) -> np.dtype[Any]:
    # A boolean is a byte that is 0 or not; reading one as NumPy's bool would trust it to be 0 or 1.
    return np.dtype(np.uint8) if element.is_bool else dtype_of(element)


def selected(tile: Array, chosen: Chosen) -> Array:
    """Return elements of a tile, in order."""
    return reshape(tile if chosen is None else tile[chosen], -1)


def _bits(values: Array) -> Array:
    return view(np.ascontiguousarray(values), f"u{values.dtype.itemsize}")
