"""Operands of `wgmma` in shared memory: matrix descriptors and layouts.

A descriptor holds the first byte, two strides and a swizzle. The matrix is made of pieces of eight
rows by 16 bytes; the meaning of the strides depends on the contiguous dimension ("K-major" or
"MN-major") and on the swizzle:

                 within 8 rows   next 8 rows     next chunk of a row
    K, none      16 bytes        stride          leading
    K, swizzled  the span        stride          16 bytes
                 within 8 k      next 8 k        next chunk of a column
    MN, none     16 bytes        leading         stride
    MN, swizzled the span        stride          16 bytes; leading after each span

Source: PTX ISA, "Shared Memory Matrix Layout", "Strides", "Matrix Descriptor Format" of wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, reshape, view
from aotc.verify.emulator.memory.swizzle import swizzled
from aotc.verify.emulator.mma.fragments import split_bits

CHUNK_BYTES = 16
K_BYTES = 32  # per row and instruction, for every type
_SPANS_BYTES = (0, 128, 64, 32)
_FIELD = 0x3FFF
_RESERVED_BITS = ~(_FIELD | _FIELD << 16 | _FIELD << 32 | 7 << 49 | 3 << 62) & (1 << 64) - 1


class DescriptorError(ValueError):
    """Report an invalid matrix descriptor."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Hold the fields of a matrix descriptor, in bytes; `first_line` is the base offset."""

    start: int
    leading_bytes: int
    stride_bytes: int
    first_line: int
    span_bytes: int


def decode_descriptor(bits: int) -> Descriptor:
    """Return the fields of a 64-bit matrix descriptor.

    Raises: DescriptorError when reserved bits are set. Source: PTX ISA, "Matrix Descriptor Format"
    of wgmma.
    """
    if bits & _RESERVED_BITS:
        raise DescriptorError(
            f"the matrix descriptor {bits:#018x} has bits set that mean nothing: "
            f"{bits & _RESERVED_BITS:#018x}"
        )
    start, leading, stride = ((bits >> shift & _FIELD) << 4 for shift in (0, 16, 32))
    return Descriptor(start, leading, stride, bits >> 49 & 7, _SPANS_BYTES[bits >> 62])


@lru_cache(maxsize=512)
def _chunk_offsets(descriptor: Descriptor, rows: int, *, transposed: bool) -> Array:
    """Return the byte offset of each chunk: (rows, 2), or (16, rows / 8) if transposed."""
    span, leading, stride = descriptor.span_bytes, descriptor.leading_bytes, descriptor.stride_bytes
    pitch = span or CHUNK_BYTES
    if not transposed:
        row, chunk = np.ogrid[:rows, : K_BYTES // CHUNK_BYTES]
        return row % 8 * pitch + row // 8 * stride + chunk * (CHUNK_BYTES if span else leading)
    k, chunk = np.ogrid[: K_BYTES // 2, : rows // 8]
    if not span:
        return k % 8 * pitch + k // 8 * leading + chunk * stride
    per_span = span // CHUNK_BYTES
    inside = chunk % per_span * CHUNK_BYTES
    return k % 8 * pitch + k // 8 * stride + inside + chunk // per_span * leading


def chunk_addresses(
    descriptor: Descriptor, rows: int, *, transposed: bool = False, first_row: int = 0
) -> npt.NDArray[np.int64]:
    """Return the addresses of the 16-byte chunks of an operand, flat.

    `rows` (M of A, N of B) start at `first_row`; both are multiples of 8.
    """
    offsets = _chunk_offsets(descriptor, first_row + rows, transposed=transposed)
    offsets = offsets[:, first_row // 8 :] if transposed else offsets[first_row:]
    address = descriptor.start + offsets.ravel()
    return swizzled(address, descriptor.span_bytes, first_line=descriptor.first_line)


@lru_cache(maxsize=1024)
def operand_addresses(bits: int, rows: int, *, transposed: bool) -> npt.NDArray[np.int64]:
    """Return `chunk_addresses` for the operand of a descriptor.

    Raises: DescriptorError.
    """
    return chunk_addresses(decode_descriptor(bits), rows, transposed=transposed)


def elements(
    chunks: npt.NDArray[np.uint8], rows: int, element_bits: int, *, transposed: bool = False
) -> Array:
    """Return the elements' bits (…, rows, k) of chunks (…, n, 16) from `chunk_addresses`."""
    around, whole = chunks.shape[:-2], np.ascontiguousarray(chunks)
    if transposed:
        return np.swapaxes(reshape(view(whole, np.uint16), *around, K_BYTES // 2, rows), -2, -1)
    words = reshape(view(whole, np.uint64), *around, rows, K_BYTES // 8)
    return reshape(split_bits(words, element_bits), *around, rows, -1)
