"""Matrix descriptors and the chunk addresses of an operand, against the intended tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aotc.schedule.layout.layouts import nvmma_shared
from aotc.verify.emulator.memory.swizzle import swizzled
from aotc.verify.emulator.mma.wgmma_operand import (
    CHUNK_BYTES,
    Descriptor,
    DescriptorError,
    chunk_addresses,
    decode_descriptor,
    elements,
)

BASE = 2048


def _read(memory: npt.NDArray[np.uint8], addresses: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return memory[addresses[:, None] + np.arange(CHUNK_BYTES)]


def test_fields() -> None:
    bits = 0x1234 >> 4 | (0x2000 >> 4) << 16 | (1024 >> 4) << 32 | 5 << 49 | 1 << 62
    assert decode_descriptor(bits) == Descriptor(0x1230, 0x2000, 1024, 5, 128)
    assert [decode_descriptor(mode << 62).span_bytes for mode in range(4)] == [0, 128, 64, 32]


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 48, 52, 61])
def test_bits_without_a_meaning_are_an_error(bit: int) -> None:
    with pytest.raises(DescriptorError, match="mean nothing"):
        decode_descriptor(1 << bit)


@pytest.mark.parametrize("element_bits", [8, 16, 32])
@pytest.mark.parametrize("span", [32, 64, 128])
def test_k_major_swizzled(span: int, element_bits: int) -> None:
    """A tile as written by a tensor copy, one span wide, read step by step along K."""
    rows, cols = 64, span * 8 // element_bits
    rng = np.random.default_rng(span)
    dtype = np.dtype(f"u{element_bits // 8}")
    tile = rng.integers(0, np.iinfo(dtype).max, (rows, cols), dtype)
    layout = nvmma_shared((rows, cols), element_bits, span)
    memory = np.zeros(BASE + tile.nbytes, np.uint8)
    flat = np.array([layout.apply_packed(offset=i) for i in range(tile.size)])
    memory[BASE:] = tile.ravel()[flat].view(np.uint8)
    k = 256 // element_bits
    for step in range(cols // k):
        descriptor = Descriptor(BASE + 32 * step, 16, 8 * span, 0, span)
        chunks = _read(memory, chunk_addresses(descriptor, rows))
        read = elements(chunks, rows, element_bits)
        np.testing.assert_array_equal(read, tile[:, step * k : (step + 1) * k])


def test_k_major_without_a_swizzle() -> None:
    """Pieces of 8 rows x 16 bytes: `leading` along K, `stride` down the rows."""
    rows, leading, stride = 24, 4096, 256
    tile = np.random.default_rng(1).integers(0, 65536, (rows, 16), np.uint16)
    memory = np.zeros(BASE + 2 * leading, np.uint8)
    for row in range(rows):
        for half in range(2):
            address = BASE + row % 8 * 16 + row // 8 * stride + half * leading
            memory[address : address + 16] = tile[row, 8 * half : 8 * half + 8].view(np.uint8)
    descriptor = Descriptor(BASE, leading, stride, 0, 0)
    read = elements(_read(memory, chunk_addresses(descriptor, rows)), rows, 16)
    np.testing.assert_array_equal(read, tile)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_mn_major_swizzled(span: int) -> None:
    """A tile with K as rows: as wide as a span, further spans `leading` bytes on."""
    width, spans, depth = span // 2, 3, 32
    tile = np.random.default_rng(span).integers(0, 65536, (depth, width * spans), np.uint16)
    leading = depth * span
    memory = np.zeros(BASE + leading * spans, np.uint8)
    layout = nvmma_shared((depth, width), 16, span)
    flat = np.array([layout.apply_packed(offset=i) for i in range(depth * width)])
    for piece in range(spans):
        address = BASE + piece * leading
        part = np.ascontiguousarray(tile[:, piece * width : (piece + 1) * width])
        memory[address : address + leading] = part.ravel()[flat].view(np.uint8)
    for step in range(depth // 16):
        descriptor = Descriptor(BASE + 16 * span * step, leading, 8 * span, 0, span)
        addresses = chunk_addresses(descriptor, width * spans, transposed=True)
        read = elements(_read(memory, addresses), width * spans, 16, transposed=True)
        np.testing.assert_array_equal(read, tile[16 * step : 16 * step + 16].T)


def test_mn_major_without_a_swizzle() -> None:
    """Pieces of 8 k x 16 bytes: `leading` along K, `stride` along M."""
    columns, leading, stride = 24, 4096, 128
    tile = np.random.default_rng(2).integers(0, 65536, (16, columns), np.uint16)
    memory = np.zeros(BASE + 2 * leading, np.uint8)
    for k in range(16):
        for piece in range(columns // 8):
            address = BASE + k % 8 * 16 + k // 8 * leading + piece * stride
            memory[address : address + 16] = tile[k, 8 * piece : 8 * piece + 8].view(np.uint8)
    descriptor = Descriptor(BASE, leading, stride, 0, 0)
    addresses = chunk_addresses(descriptor, columns, transposed=True)
    read = elements(_read(memory, addresses), columns, 16, transposed=True)
    np.testing.assert_array_equal(read, tile.T)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_warp_reads_its_rows_alone(transposed: bool) -> None:
    descriptor = Descriptor(BASE, 4096, 1024, 0, 128)
    whole = chunk_addresses(descriptor, 64, transposed=transposed)
    whole = whole.reshape((16, 8) if transposed else (64, 2))
    for warp in range(4):
        addresses = chunk_addresses(descriptor, 16, transposed=transposed, first_row=16 * warp)
        expected = whole[:, 2 * warp : 2 * warp + 2] if transposed else whole[16 * warp :][:16]
        np.testing.assert_array_equal(addresses, expected.ravel())


def test_the_base_offset_moves_the_pattern() -> None:
    """A tile starting three lines after a multiple of 1024 bytes, per its base offset."""
    shifted = chunk_addresses(Descriptor(BASE + 3 * 128, 16, 1024, 3, 128), 8)
    aligned = chunk_addresses(Descriptor(BASE, 16, 1024, 0, 128), 8)
    np.testing.assert_array_equal(shifted, aligned + 3 * 128)


def test_coarser_chunks() -> None:
    """32-byte chunks within 128 bytes: lines 0 to 3 give the four places."""
    lines = np.arange(8) * 128
    assert (swizzled(lines, 128, chunk_bits=5) - lines).tolist() == [0, 32, 64, 96] * 2
