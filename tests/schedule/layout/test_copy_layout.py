"""The layout between two given buffers: whole, no dearer than before, and without conflicts."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, FP32, FP64, I8, DescriptorType, ScalarType
from aotc.schedule.layout.copy_layout import copy_layout
from aotc.schedule.layout.scratch import bank_conflicts
from aotc.schedule.layout.tensor_copies import (
    access_cost,
    block_layout,
    buffer_access,
    buffer_layout,
    read_modes,
    tensor_map_of,
    write_modes,
)
from aotc.target import TARGETS
from tests.support.extent import examples

TARGET = TARGETS["sm_90a"]
ELEMENTS = (I8, BF16, FP32, FP64)
ROW_BYTES = (16, 32, 64, 128, 256)


def buffers(element: ScalarType, rows: int, columns: int) -> tuple[LinearLayout, LinearLayout]:
    """Return buffers of a block and of its transpose, both in coordinates of the block."""
    sides = (rows, columns), (columns, rows)
    straight, other = (
        buffer_layout(tensor_map_of(DescriptorType(element, shape)), shape) for shape in sides
    )
    return straight, other.transpose((1, 0))


def total_cost(layout: LinearLayout, sides: tuple[LinearLayout, LinearLayout], bits: int) -> int:
    modes = read_modes(TARGET), write_modes(layout, TARGET)
    return sum(access_cost(layout, *side) for side in zip(sides, (bits, bits), modes, strict=True))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize("num_warps", [1, 4, 16])
def test_a_transpose_meets_no_bank_twice(element: ScalarType, num_warps: int) -> None:
    for row_bytes, column_bytes in product(ROW_BYTES, repeat=2):
        rows, columns = column_bytes // element.size_bytes, row_bytes // element.size_bytes
        sides = buffers(element, rows, columns)
        current = block_layout(DescriptorType(element, (rows, columns)), num_warps)
        layout = copy_layout(current, sides, (element.bits, element.bits), TARGET)
        assert layout.is_surjective()
        assert [name for name, _ in layout.ins] == [name for name, _ in current.ins]
        assert layout.in_size("lane") == 32
        assert layout.in_size("warp") == num_warps
        for buffer, modes in zip(
            sides, (read_modes(TARGET), write_modes(layout, TARGET)), strict=True
        ):
            vector, mode = buffer_access(layout, buffer, element.bits, modes)
            # Matrices are conflict-free by the swizzle; the emulator counts conflicts.
            assert mode or not bank_conflicts(layout, buffer, vector, element.bits)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_what_is_copied_as_it_lies_stays(element: ScalarType) -> None:
    kind = DescriptorType(element, (64, 128 // element.size_bytes))
    buffer = buffer_layout(tensor_map_of(kind), kind.block)
    current = block_layout(kind, 4)
    assert copy_layout(current, (buffer, buffer), (element.bits,) * 2, TARGET) is current


def test_halves_go_by_matrices() -> None:
    sides = buffers(BF16, 64, 64)
    current = block_layout(DescriptorType(BF16, (64, 64)), 4)
    layout = copy_layout(current, sides, (16, 16), TARGET)
    assert buffer_access(layout, sides[0], 16, read_modes(TARGET)) == (8, "b16")
    assert buffer_access(layout, sides[1], 16, write_modes(layout, TARGET)) == (8, "b16.trans")


def test_bytes_go_in_squares() -> None:
    """Eight by eight bytes of a thread: 8 bytes at a time on either side."""
    sides = buffers(I8, 128, 128)
    current = block_layout(DescriptorType(I8, (128, 128)), 8)
    layout = copy_layout(current, sides, (8, 8), TARGET)
    assert [buffer_access(layout, side, 8, ("",)) for side in sides] == [(8, ""), (8, "")]


@settings(max_examples=examples(60), deadline=None)
@given(
    element=st.sampled_from(ELEMENTS),
    sizes=st.tuples(st.sampled_from(ROW_BYTES), st.sampled_from(ROW_BYTES)),
    warps=st.sampled_from([1, 2, 8]),
    turned=st.booleans(),
)
def test_it_is_never_dearer(
    element: ScalarType, sizes: tuple[int, int], warps: int, turned: bool
) -> None:  # fmt: skip
    rows, columns = (size // element.size_bytes for size in sizes)
    sides = buffers(element, rows, columns)
    sides = (sides[1], sides[0]) if turned else sides
    current = block_layout(DescriptorType(element, (rows, columns)), warps)
    layout = copy_layout(current, sides, (element.bits, element.bits), TARGET)
    assert total_cost(layout, sides, element.bits) <= total_cost(current, sides, element.bits)
