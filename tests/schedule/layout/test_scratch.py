"""The bank model, by hand and against a count of words lane by lane."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.layout import LinearLayout
from aotc.schedule.layout.layouts import blocked, row_major_shared, swizzled_shared
from aotc.schedule.layout.scratch import (
    bank_conflicts,
    count_wavefronts,
    phase_lane_bits,
    wavefronts_per_access,
)


def lanes_down_the_rows(rows: int, cols: int) -> LinearLayout:
    return blocked((rows, cols), (1, 1), (32, 1), (1, 1), (0, 1))


def test_phases_of_wide_accesses():
    assert [phase_lane_bits(width) for width in (1, 2, 4, 8, 16)] == [5, 5, 5, 4, 3]


def test_a_column_of_an_unswizzled_tile_is_one_bank():
    layout, shared = lanes_down_the_rows(32, 32), row_major_shared((32, 32))
    count = count_wavefronts(layout, shared, 1, 32)
    assert (count.total, count.minimum) == (32 * 32, 32)
    assert bank_conflicts(layout, shared, 1, 32) == 32 * 31


def test_the_xor_swizzle_frees_the_column():
    layout = lanes_down_the_rows(32, 32)
    assert bank_conflicts(layout, swizzled_shared((32, 32), (1, 0), 1, 1, 32), 1, 32) == 0
    assert bank_conflicts(layout, swizzled_shared((32, 32), (1, 0), 1, 1, 16), 1, 32) == 32


def test_lanes_that_read_one_word_do_not_conflict():
    broadcast = LinearLayout({"register": [], "lane": [(0,)] * 5}, (1,))
    shared = LinearLayout({"offset": []}, (1,))
    assert count_wavefronts(broadcast, shared, 1, 32).total == 1
    bytes_of_a_word = LinearLayout({"register": [], "lane": [(1,), (2,), (0,), (0,), (0,)]}, (4,))
    assert count_wavefronts(bytes_of_a_word, row_major_shared((4,)), 1, 8).total == 1


@pytest.mark.parametrize(("vector", "wavefronts"), [(1, 8), (2, 8), (4, 8)])
def test_contiguous_rows_are_free_at_any_width(vector: int, wavefronts: int):
    layout = blocked((256,), (vector,), (32,), (1,), (0,))
    assert count_wavefronts(layout, row_major_shared((256,)), vector, 32).total == wavefronts
    assert bank_conflicts(layout, row_major_shared((256,)), vector, 32) == 0


@given(st.data())
def test_the_rank_formula_counts_what_the_lanes_touch(data: st.DataObject):
    """The planner's closed form against the count of `count_wavefronts`."""
    element_bytes = data.draw(st.sampled_from([1, 2, 4, 8]))
    vector_bits = data.draw(st.integers(0, (16 // element_bytes).bit_length() - 1))
    num_bits = 10
    lanes = [
        data.draw(st.integers(0, (1 << num_bits - vector_bits) - 1)) << vector_bits
        for _ in range(5)
    ]
    skip = data.draw(st.integers(0, 31))
    registers = [1 << bit for bit in range(vector_bits)]
    outs = (("dim0", num_bits),)
    layout = LinearLayout.from_columns([("register", registers), ("lane", lanes)], outs)
    shared = row_major_shared((1 << num_bits,))
    vector = 1 << vector_bits
    counted = count_wavefronts(layout, shared, vector, 8 * element_bytes, skip).total
    assert wavefronts_per_access(lanes, vector, element_bytes, skip) == counted
