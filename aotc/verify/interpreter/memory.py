"""Global memory of an interpreted kernel: NumPy arrays with separate address ranges.

The high bits of an address name its buffer, and the low ones a byte in it. Pointer arithmetic
is plain 64-bit arithmetic and overflows as on hardware. Views of one array share its range, as
they share its memory: in-place kernels and aliasing arguments see each other's writes. An array
with its own memory starts at a multiple of 256 bytes, like memory from `cudaMalloc`. A view
starts at its offset in its owner, so slicing makes misaligned pointers.

Invariant: an access outside of the arrays is reported, and touches nothing.
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
# Room below every buffer, so an address slightly too low still names the right buffer.
_GUARD_BYTES = 1 << (_BUFFER_BITS - 1)


# A function of addresses, old contents, operands and results; an atomic stores its result instead.
Adjust: TypeAlias = Callable[[Array, Array, Array, Array], Array]

Chosen: TypeAlias = "Array | tuple[slice, ...] | None"
"""A selection of a tile's elements: a mask, or a slice of each axis, or all."""


class AccessError(Exception):
    """Report an access illegal on any hardware; the interpreter adds the location."""


class OutOfBoundsError(AccessError):
    """Report an access outside of a buffer of declared size."""


class Address(int):
    """An address of an existing buffer, as the argument of a pointer parameter."""


@dataclass(frozen=True)
class TensorAddress:
    """A tensor in a memory, as the argument of a descriptor; strides are in elements."""

    address: Address
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """The elements of a tensor in a copy: `extents` from `start` on, within the tensor.

    All but the address is in elements.
    """

    tensor: TensorAddress
    start: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def inside(self) -> tuple[slice, ...]:
        """The part of the box within the tensor."""
        axes = zip(self.start, self.extents, self.tensor.shape, strict=True)
        return tuple(
            slice(min(max(-start, 0), extent), max(min(size - start, extent), 0))
            for start, extent, size in axes
        )

    @property
    def is_inside(self) -> bool:
        """Whether the whole box lies in the tensor."""
        axes = zip(self.start, self.extents, self.tensor.shape, strict=True)
        return all(0 <= start <= size - extent for start, extent, size in axes)

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
    """The lanes of an access in one buffer, and the indices of their elements there."""

    index: int
    lanes: Array | slice
    cells: Array


@dataclass(frozen=True, slots=True)
class Access:
    """The checked addresses of an access, by lane and by buffer.

    The lanes are the elements of a tile of a `shape`, `chosen` by a mask or slices.
    """

    flat: Array
    parts: list[Part]
    shape: tuple[int, ...]
    chosen: Chosen

    def numbers(self) -> Array:
        """Return the number of each lane's element in the tile."""
        return selected(reshape(np.arange(math.prod(self.shape)), self.shape), self.chosen)

    def values(self, tile: Array) -> Array:
        """Return the element of a tile for each lane."""
        return selected(np.broadcast_to(tile, self.shape), self.chosen)


class Memory:
    """The arrays of one launch, and their addresses."""

    def __init__(self) -> None:
        self._owners: list[Array] = []
        self._bytes: list[npt.NDArray[np.uint8]] = []
        self._names: list[str] = []
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)
        self.printed: list[str] = []
        """Lines printed by programs, in the order of execution."""
        self.adjust_atomic: Adjust | None = None
        self.buffers_read: set[int] = set()
        """The numbers of the buffers read since the last clear."""
        self.buffers_written: set[int] = set()
        """The numbers of the buffers written to."""
        self.stored_maps: dict[int, None] = {}
        """The addresses at which programs stored tensor maps."""

    def add(self, name: str, array: Array) -> int:
        """Make the bytes of `array` accessible; return the address of its first element.

        Raises: ValueError if the memory of its owner is not contiguous.
        """
        owner = owner_of(array)
        index = next((i for i, other in enumerate(self._owners) if other is owner), None)
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
        """Return the elements at the addresses selected by `mask`, in order, as a flat array.

        Raises: AccessError for an address outside the arrays or not a multiple of the size.
        """
        return self.read(self._access(address, mask, element), element)

    def store(self, address: Array, value: Array, mask: Array | None, element: ScalarType) -> None:
        """Write `value` at the addresses selected by `mask`.

        Raises: AccessError as `load`, for a read-only array, and for lanes that write different
        values to one address, a race with an arbitrary winner.
        """
        access = self._access(address, mask, element)
        self.write(access, access.values(value), element)

    def load_box(self, box: Box, element: ScalarType) -> Array:
        """Return the elements of a box within the tensor, in order, as a flat array.

        Raises: as `load`.
        """
        return self.read(self.box_access(box, element), element)

    def store_box(self, box: Box, value: Array, element: ScalarType) -> None:
        """Write the elements of a tile within the tensor. Raises: as `store`."""
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
            elements, stored = self._elements(part.index, dtype), values[part.lanes]
            elements[part.cells] = stored
            written = elements[part.cells]
            if written.tobytes() != stored.tobytes():
                lost = _bits(written) != _bits(stored)
                location = self.describe(int(access.flat[part.lanes][lost][0]))
                raise AccessError(f"two lanes write different values to {location}")

    def _elements(self, index: int, dtype: np.dtype[Any]) -> Array:
        """View the bytes of a buffer as whole elements."""
        content = self._bytes[index]
        return view(content[: content.size // dtype.itemsize * dtype.itemsize], dtype)

    def begin_program(self) -> None:
        """Begin the accesses of the grid's next program."""

    def meet_programs(self) -> None:
        """Pass a barrier of the grid, with all programs."""

    def describe(self, address: int) -> str:
        """Return the name of the buffer of `address` and the byte in it, for messages."""
        index = (address >> _BUFFER_BITS) - 1
        if not 0 <= index < len(self._names):
            return f"address {address:#x}, which is in no buffer"
        offset = _offset(address)
        return f"byte {offset} of {self._names[index]} ({self._bytes[index].size} bytes)"

    def _place(self, index: int, address: Array) -> Array:
        """Return the offsets of addresses in the held bytes of a buffer."""
        return address - ((index + 1 << _BUFFER_BITS) + _GUARD_BYTES)

    def _add_span(self, start: int, end: int) -> None:
        spans: list[tuple[int, int]] = []
        old_spans = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        for low, high in sorted([*old_spans, (start, end)]):
            if spans and low <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], high))
            else:
                spans.append((low, high))
        self._starts = np.array([low for low, _ in spans], np.int64)
        self._ends = np.array([high for _, high in spans], np.int64)

    def _access(self, address: Array, mask: Array | None, element: ScalarType) -> Access:
        """Return the checked access. Raises: AccessError, as `load`."""
        return self._checked(selected(address, mask), element, address.shape, mask)

    def box_access(self, box: Box, element: ScalarType) -> Access:
        """Return the checked access. Raises: AccessError, as `load`."""
        size = _memory_dtype(element).itemsize
        starts, length = box.runs(size)
        flat = reshape(starts[:, None] + np.arange(length) * size, -1)
        return self._checked(flat, element, box.extents, box.inside)

    def _checked(
        self, flat: Array, element: ScalarType, shape: tuple[int, ...], chosen: Chosen
    ) -> Access:
        size = _memory_dtype(element).itemsize
        if not flat.size:
            return Access(flat, [], shape, chosen)
        spans = self._by_buffer(flat)
        self._check_bounds(flat, size, spans)
        if int(reduce_or(flat)) % size:
            lane = int(flat[flat % size != 0][0])
            raise AccessError(f"accesses {self.describe(lane)}, no multiple of {size} bytes")
        shift = size.bit_length() - 1
        parts = [Part(i, lanes, self._place(i, flat[lanes]) >> shift) for i, lanes in spans]
        return Access(flat, parts, shape, chosen)

    def _check_bounds(
        self, flat: Array, size: int, spans: Sequence[tuple[int, Array | slice]]
    ) -> None:
        """Raise AccessError for an inaccessible address."""
        del spans
        low, high = int(flat.min()), int(flat.max())
        first = int(np.searchsorted(self._starts, low, side="right")) - 1
        if first >= 0 and high + size <= self._ends[first]:
            return
        span = np.searchsorted(self._starts, flat, side="right") - 1
        inside = span >= 0
        if self._ends.size:
            inside &= (
                flat <= self._ends[np.maximum(span, 0)] - size
            )  # subtracted: a sum could overflow
        if not inside.all():
            outside = flat[~inside]
            raise AccessError(
                f"accesses {self.describe(int(outside[0]))}, out of bounds "
                f"({outside.size} of {flat.size} lanes)"
            )

    def _by_buffer(self, flat: Array) -> list[tuple[int, Array | slice]]:
        """Return the buffers of checked addresses, each with its lanes."""
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
    # Any nonzero byte is true; NumPy's bool would trust the byte to be 0 or 1.
    return np.dtype(np.uint8) if element.is_bool else dtype_of(element)


def selected(tile: Array, chosen: Chosen) -> Array:
    """Return elements of a tile, in order."""
    return reshape(tile if chosen is None else tile[chosen], -1)


def _bits(values: Array) -> Array:
    return view(np.ascontiguousarray(values), f"u{values.dtype.itemsize}")
