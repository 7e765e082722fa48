"""Products by warpgroups: descriptors and registers against the emulator's reading of the manual.

The emulator decodes descriptors and fragments from the PTX ISA by itself, so the two agree only if
both are right about it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.ir.layout import LinearLayout
from aotc.ir.wgmma_tiling import K_BYTES, matrix_in_memory, tile_wgmma
from aotc.schedule.layout.layouts import (
    mma_v2,
    nvmma_shared,
    row_major_shared,
    wgmma_accumulator,
    wgmma_operand_a,
)
from aotc.verify.emulator.mma.fragments import accumulator, operand_a
from aotc.verify.emulator.mma.wgmma_operand import chunk_addresses, decode_descriptor

CHUNK_BYTES = 16


def byte_of_element(buffer: LinearLayout, size_bytes: int) -> dict[tuple[int, ...], int]:
    return {
        buffer.apply(offset=offset): offset * size_bytes
        for offset in range(1 << buffer.total_out_bits)
    }


def read_places(descriptor: int, rows: int, size_bytes: int, *, transposed: bool) -> Any:
    """Return the byte read by the instruction for each element (rows, k)."""
    chunks = chunk_addresses(decode_descriptor(descriptor), rows, transposed=transposed)
    per_chunk = CHUNK_BYTES // size_bytes
    inside = np.arange(per_chunk) * size_bytes
    if transposed:
        return (chunks.reshape(-1, rows // per_chunk, 1) + inside).reshape(-1, rows).T
    return (chunks.reshape(rows, -1, 1) + inside).reshape(rows, -1)


# Shape, the axis of rows, rows of an instruction, bits of an element, swizzle, rows contiguous.
MATRICES = [
    ((64, 64), 0, 64, 16, 128, False),
    ((64, 64), 0, 64, 16, 128, True),
    ((128, 32), 0, 64, 16, 64, False),
    ((128, 16), 0, 64, 16, 32, False),
    ((256, 64), 0, 64, 16, 64, True),
    ((64, 128), 0, 64, 8, 128, False),
    ((64, 32), 0, 64, 8, 32, False),
    ((64, 8), 0, 64, 32, 32, False),
    ((128, 64), 0, 64, 32, 128, False),
    ((64, 256), 1, 256, 16, 128, True),
    ((16, 16), 1, 16, 16, 32, True),
    ((32, 32), 1, 32, 16, 64, True),
    ((64, 8), 1, 8, 16, 128, False),
    ((128, 128), 1, 64, 16, 128, False),
    ((128, 512), 1, 256, 16, 128, True),
    ((32, 64), 1, 64, 8, 32, False),
    ((16, 128), 1, 128, 32, 64, False),
]


@pytest.mark.parametrize(("shape", "axis", "rows", "bits", "span", "contiguous"), MATRICES)
def test_a_descriptor_leads_to_every_element(
    shape: tuple[int, int], axis: int, rows: int, bits: int, span: int, *, contiguous: bool
) -> None:
    transposed = contiguous == (axis == 0)
    buffer = nvmma_shared(shape, bits, span, transposed=transposed)
    matrix = matrix_in_memory(buffer, axis, rows, bits)
    assert (matrix.span_bytes, matrix.rows_contiguous) == (span, contiguous)
    where, k = byte_of_element(buffer, bits // 8), 8 * K_BYTES // bits
    for row in range(0, shape[axis], rows):
        for first in range(0, shape[1 - axis], k):
            descriptor = matrix.descriptor | matrix.start_bytes(row, first) >> 4
            elements = read_places(descriptor, rows, bits // 8, transposed=contiguous)
            coords = np.add(np.indices((rows, k)).reshape(2, -1), [[row], [first]])
            expected = [where[tuple(pair[:: 1 if axis == 0 else -1])] for pair in coords.T.tolist()]
            np.testing.assert_array_equal(elements.ravel(), expected)


def test_a_matrix_without_a_swizzle() -> None:
    """Pieces of eight rows by 16 bytes, one after the other: the strides say all."""
    columns = [(0, 1), (0, 2), (0, 4), (1, 0), (2, 0), (4, 0), (0, 8), (8, 0), (16, 0), (32, 0)]
    buffer = LinearLayout({"offset": columns}, (64, 16))
    matrix = matrix_in_memory(buffer, 0, 64, 16)
    assert (matrix.span_bytes, matrix.leading_bytes, matrix.stride_bytes) == (0, 128, 256)
    elements = read_places(matrix.descriptor, 64, 2, transposed=False)
    where = byte_of_element(buffer, 2)
    assert elements.ravel().tolist() == [where[row, k] for row in range(64) for k in range(16)]


@pytest.mark.parametrize(
    ("buffer", "bits"),
    [
        (row_major_shared((64, 64)), 16),  # rows one after the other need a swizzle of their width
        (nvmma_shared((64, 64), 8, 64, transposed=True), 8),  # bytes are contiguous along K
        (nvmma_shared((64, 64), 32, 128, transposed=True), 32),
        (nvmma_shared((64, 64), 32, 128), 16),  # a swizzle for other elements
    ],
)
def test_what_no_descriptor_describes(buffer: LinearLayout, bits: int) -> None:
    with pytest.raises(ValueError, match="no descriptor describes"):
        matrix_in_memory(buffer, 0, 64, bits)


# ---- registers --------------------------------------------------------------------------------

B = nvmma_shared((32, 64), 16, 64)


@pytest.mark.parametrize(
    ("num_columns", "expected"),
    [
        (256, [(0, 256)]),
        (264, [(0, 144), (144, 120)]),
        (272, [(0, 144), (144, 128)]),
        (288, [(0, 144), (144, 144)]),
        (512, [(0, 256), (256, 256)]),
    ],
)
def test_some_of_many_columns_are_instructions_of_about_as_many(
    num_columns: int, expected: list[tuple[int, int]]
) -> None:
    """Their accumulators are consecutive registers, each starting at a multiple of 16 columns."""
    acc = wgmma_accumulator((64, 512), (1, 1))
    a, b = nvmma_shared((64, 64), 16, 128), nvmma_shared((64, 512), 16, 128, transposed=True)
    tiling = tile_wgmma(a, b, acc, 16, num_columns, in_memory=True)
    assert [(part.column, part.columns) for part in tiling.acc_tiles] == expected
    coords = acc.coords_table("register")
    for part in tiling.acc_tiles:
        inside = range(part.column, part.column + part.columns)
        assert {coords[register][1] for register in part.acc} <= {*inside}
        assert len(part.acc) == part.columns // 2
        assert tiling.b.start_bytes(part.column, 0) == part.column * 128


def test_other_warpgroups_columns_are_not_left_out() -> None:
    acc = wgmma_accumulator((64, 512), (1, 2))
    a, b = nvmma_shared((64, 64), 16, 128), nvmma_shared((64, 512), 16, 128, transposed=True)
    with pytest.raises(ValueError, match="several warpgroups'"):
        tile_wgmma(a, b, acc, 16, 288, in_memory=True)


@pytest.mark.parametrize(
    ("shape", "groups", "n", "num_tiles"),
    [
        ((64, 8), (1, 1), 8, 1),
        ((64, 256), (1, 1), 256, 1),
        ((128, 64), (1, 1), 64, 2),
        ((128, 64), (2, 1), 64, 1),
        ((64, 64), (1, 2), 32, 1),
        ((256, 64), (2, 2), 32, 2),
        ((64, 512), (1, 1), 256, 2),
    ],
)
@pytest.mark.parametrize("bits", [16, 32])
def test_registers_are_the_manuals(
    shape: tuple[int, int], groups: tuple[int, int], n: int, num_tiles: int, bits: int
) -> None:
    """Every warp's registers of a tile hold the instruction's elements."""
    acc = wgmma_accumulator(shape, groups)
    k = 8 * K_BYTES // bits
    a = wgmma_operand_a((shape[0], 2 * k), groups, bits)
    b = nvmma_shared((2 * k, shape[1]), bits, 64, transposed=True)
    tiling = tile_wgmma(a, b, acc, bits, in_memory=False)
    assert (tiling.k, tiling.num_steps, len(tiling.acc_tiles)) == (k, 2, num_tiles)
    assert {acc_tile.columns for acc_tile in tiling.acc_tiles} == {n}
    seen: set[tuple[int, ...]] = set()
    results, operands = accumulator(16, n, 32), operand_a(16, k, bits)
    for warp in range(4 * groups[0] * groups[1]):
        row = sum(step for bit, step in enumerate(tiling.warp_rows) if warp >> bit & 1)
        column = sum(step for bit, step in enumerate(tiling.warp_columns) if warp >> bit & 1)
        for tile in tiling.acc_tiles:
            for lane in range(32):
                for index, register in enumerate(tile.acc):
                    coords = divmod(int(results.positions[index, lane, 0]), n)
                    expected = (row + tile.row + coords[0], column + tile.column + coords[1])
                    assert acc.apply(register=register, lane=lane, warp=warp) == expected
                    seen.add(expected)
                for step, words in enumerate(tile.a):
                    for index, word in enumerate(words):
                        for part, register in enumerate(word):
                            coords = divmod(int(operands.positions[index, lane, part]), k)
                            expected = (row + tile.row + coords[0], step * k + coords[1])
                            assert a.apply(register=register, lane=lane, warp=warp) == expected
    assert len(seen) == shape[0] * shape[1]


def test_an_operand_in_memory_has_no_registers() -> None:
    tiling = tile_wgmma(
        nvmma_shared((128, 32), 16, 64), B, wgmma_accumulator((128, 64), (2, 1)), 16, in_memory=True
    )
    assert tiling.a is not None
    assert tiling.a.start_bytes(64, 16) == 64 * 64 + 32
    assert all(tile.a == () for tile in tiling.acc_tiles)


A, ACC = wgmma_operand_a((64, 32), (1, 1), 16), wgmma_accumulator((64, 64), (1, 1))


@pytest.mark.parametrize(
    ("a", "acc", "message"),
    [
        (A, mma_v2((64, 64), (1, 4)), "do not hold a result of wgmma"),
        (A, ACC.with_columns("register", (1, 8, 16, 32)), "whole results"),
        (wgmma_operand_a((64, 32), (1, 1), 32), ACC, "operand A"),
        (wgmma_operand_a((64, 8), (1, 1), 16), ACC, "not a multiple of 16"),
    ],
)
def test_layouts_that_are_no_product(a: LinearLayout, acc: LinearLayout, message: str) -> None:
    tile_wgmma(A, B, ACC, 16, in_memory=False)
    with pytest.raises(ValueError, match=message):
        tile_wgmma(a, B, acc, 16, in_memory=False)
