"""A box of a tensor: its bytes in global memory, and its layout in shared memory.

In shared memory a box is dense, the innermost dimension first, each row padded to the swizzle's
span; the swizzle then permutes its 16-byte chunks. Elements outside the tensor are filled by loads
and dropped by stores.

Invariant: pieces are as large as alignment allows, at most 16 bytes, and never straddle the
tensor's edge.

Source: PTX ISA, "Tensors": tiled mode, swizzling modes, out-of-boundary access; CUDA driver API,
cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.async_copies.tensor_map import (
    SWIZZLE_SPANS_BYTES,
    TensorMap,
    TensorMapError,
)
from aotc.verify.emulator.async_copies.transfers import CHUNK_BYTES, as_chunks
from aotc.verify.emulator.memory.global_memory import Bytes
from aotc.verify.emulator.memory.swizzle import swizzled
from aotc.verify.emulator.memory.vector_clocks import Ints

# By the code of `.swizzle_atomicity`: log2 of the bytes moved as a unit.
_CHUNK_BITS = {0: 4, 1: 5, 2: 5, 3: 6}
_FLIP = 2  # the atomicity with the halves of chunks swapped in every other line
_LINE_BYTES = 128
_LARGEST_DISTANCE = 1 << 62  # within the range of int64


@dataclass(frozen=True)
class Pieces:
    """Hold the in-bounds bytes of a box; `indices` count pieces of the dense box."""

    address: Ints
    indices: Ints
    size_bytes: int


def pieces_of(tensor: TensorMap, coordinates: Sequence[int]) -> Pieces:
    """Return the pieces of the box that starts at `coordinates`, innermost first."""
    extents, size = tensor.box_elems, tensor.element_bytes
    low = max(0, -coordinates[0])
    high = min(extents[0], tensor.dims[0] - coordinates[0])
    rows, row_bytes = _rows(tensor, coordinates)
    if high <= low or not len(rows):
        return Pieces(np.zeros(0, np.int64), np.zeros(0, np.int64), CHUNK_BYTES)
    first, length, skipped = (coordinates[0] + low) * size, (high - low) * size, low * size
    pitch = extents[0] * size
    piece = math.gcd(CHUNK_BYTES, first, length, skipped)
    steps = np.arange(0, length, piece)
    address = (tensor.address + first + row_bytes)[:, None] + steps
    indices = ((rows * pitch + skipped)[:, None] + steps) // piece
    return Pieces(address.ravel(), indices.ravel(), piece)


def _rows(tensor: TensorMap, coordinates: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the in-bounds rows of a box, and their distance from the tensor's start."""
    steps, outer = tensor.element_strides, range(1, tensor.rank)
    lasts = [coordinates[axis] + steps[axis] * (tensor.box_elems[axis] - 1) for axis in outer]
    first = sum(coordinates[axis] * tensor.strides_bytes[axis - 1] for axis in outer)
    is_inside = all(
        coordinates[axis] >= 0 and lasts[axis - 1] < tensor.dims[axis] for axis in outer
    )
    if is_inside and first < _LARGEST_DISTANCE:
        rows, distance = _all_rows(tensor.box_elems, steps, tensor.strides_bytes)
        return rows, distance + first
    rows, distance = np.zeros(1, np.int64), np.zeros(1, np.int64)
    inside = np.ones(1, np.bool_)
    count = 1
    for axis in range(1, tensor.rank):
        extent = tensor.box_elems[axis]
        positions = coordinates[axis] + tensor.element_strides[axis] * np.arange(extent)
        valid = (positions >= 0) & (positions < tensor.dims[axis])
        rows = (rows + count * np.arange(extent)[:, None]).ravel()
        distance = (distance + tensor.strides_bytes[axis - 1] * positions[:, None]).ravel()
        inside = (inside & valid[:, None]).ravel()
        count *= extent
    return rows[inside], distance[inside]


@lru_cache(maxsize=256)
def _all_rows(
    box: tuple[int, ...], element_strides: tuple[int, ...], strides_bytes: tuple[int, ...]
) -> tuple[Ints, Ints]:
    """Return all rows of an in-bounds box, and their distance from the first row."""
    distance = np.zeros(1, np.int64)
    for extent, step, stride in zip(box[1:], element_strides[1:], strides_bytes, strict=False):
        distance = (distance + stride * step * np.arange(extent)[:, None]).ravel()
    return np.arange(len(distance)), distance


def fill_of(tensor: TensorMap) -> Bytes:
    """Return the bytes of an out-of-bounds element: zero, or a NaN of every type.

    The NaN repeats 0x7FF7, the H200's fill.
    """
    pattern = (0xF7, 0x7F) if tensor.fill else (0, 0)
    return np.resize(np.array(pattern, np.uint8), tensor.element_bytes)


def assemble(tensor: TensorMap, pieces: Pieces, data: Bytes) -> Bytes:
    """Return the dense box (n, 16): `data` (pieces, size) at its indices, fill elsewhere."""
    count = tensor.box_bytes // tensor.element_bytes
    box = reshape(np.tile(fill_of(tensor), count), -1, pieces.size_bytes)
    box[pieces.indices] = data
    return as_chunks(box)


def pick(pieces: Pieces, box: Bytes) -> Bytes:
    """Return the in-bounds pieces (n, size) of a dense box (n, 16)."""
    return reshape(np.ascontiguousarray(box), -1, pieces.size_bytes)[pieces.indices]


@lru_cache(maxsize=256)
def shared_chunks(tensor: TensorMap, base: int) -> Ints:
    """Return the shared addresses of the dense box's chunks."""
    pitch, span = tensor.box_elems[0] * tensor.element_bytes, SWIZZLE_SPANS_BYTES[tensor.swizzle]
    rows = tensor.box_bytes // pitch
    row, chunk = np.ogrid[:rows, : pitch // CHUNK_BYTES]
    address = (base + row * max(pitch, span) + chunk * CHUNK_BYTES).ravel()
    chunk_addresses = swizzled(address, span, chunk_bits=_CHUNK_BITS[tensor.atomicity])
    chunk_addresses.flags.writeable = False  # the cache keeps it
    return chunk_addresses


def flipped(tensor: TensorMap, chunks: Ints, box: Bytes) -> Bytes:
    """Return the dense box with chunk halves swapped, as the swizzle's 8-byte flip does."""
    if tensor.atomicity != _FLIP:
        return box
    swap = (chunks // _LINE_BYTES & 1).astype(np.bool_)
    halves = view(np.ascontiguousarray(box), np.uint64)
    return view(np.where(swap[:, None], halves[:, ::-1], halves), np.uint8)


@lru_cache(maxsize=256)
def check_supported(tensor: TensorMap, *, load: bool) -> None:
    """Raise TensorMapError for a map refused by the driver, or not emulated."""
    tensor.check()
    if tensor.interleave:
        raise TensorMapError("interleaved tensors are not emulated")
    if tensor.element_type.endswith(".ftz") or tensor.element_type == "tf32":
        raise TensorMapError(f"conversion to {tensor.element_type} is not emulated: use f32")
    if tensor.atomicity and tensor.swizzle != 3:
        raise TensorMapError("an atomicity other than 16 bytes needs the 128-byte swizzle")
    if tensor.atomicity == _FLIP and not load:
        raise TensorMapError("a swizzle with 8-byte flip is for loads alone")
