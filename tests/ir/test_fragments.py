"""Fragments as registers: every product once, zeros where there is nothing, agreement demanded."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.fragments import ZERO, Fragments, Grid, fragments
from aotc.ir.layout import LinearLayout
from aotc.schedule.layout.layouts import blocked_for, dot_operand, mma_v2

# Bits of an operand -> instructions.
SHAPES = {
    8: [(16, 8, 16), (16, 8, 32)],
    16: [(16, 8, 8), (16, 8, 16)],
    32: [(16, 8, 4), (16, 8, 8)],
    64: [(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)],
}


def layouts_of(
    m: int, n: int, k: int, warps: tuple[int, int], bits: int, widths: tuple[int, int] = (1, 1)
) -> tuple[LinearLayout, LinearLayout, LinearLayout]:
    k_width = max(widths[0], 32 // bits, 1)
    return (
        dot_operand(0, (m, k), warps, bits, k_width),
        dot_operand(1, (k, n), warps, bits, k_width, widths[1]),
        mma_v2((m, n), warps, widths[1]),
    )


def registers_in(grid: Grid) -> list[int]:
    return [
        register
        for batch in grid
        for row in batch
        for fragment in row
        for word in fragment
        for register in word
    ]


@given(st.data())
def test_every_register_is_in_one_fragment(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from(sorted(SHAPES)))
    shape = data.draw(st.sampled_from(SHAPES[bits]))
    warps = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 2)]))
    widths = data.draw(st.sampled_from([(1, 1), (4, 1), (1, 2), (8, 2)]))
    m, n = (16 * 4 << data.draw(st.integers(0, 1)) for _ in range(2))
    tiles = layouts_of(m, n, 64, warps, bits, widths)
    tile_fragments = fragments(shape, *tiles, bits)
    for grid, layout in zip(
        (tile_fragments.a, tile_fragments.b, tile_fragments.acc), tiles, strict=True
    ):
        assert sorted(registers_in(grid)) == list(range(layout.in_size("register")))
    assert tile_fragments.copy_lanes == 0


@given(st.data())
def test_fragments_hold_the_rows_and_columns_they_meet_at(data: st.DataObject) -> None:
    """Along K, A and B agree element by element; rows and columns are those of the accumulator."""
    bits = data.draw(st.sampled_from([8, 16, 32]))
    shape = data.draw(st.sampled_from(SHAPES[bits]))
    widths = data.draw(st.sampled_from([(1, 1), (4, 1), (1, 2)]))
    a, b, acc = layouts_of(64, 64, 64, (2, 2), bits, widths)
    tile_fragments = fragments(shape, a, b, acc, bits)
    lane, warp = data.draw(st.integers(0, 31)), data.draw(st.integers(0, 3))
    a_at, b_at, acc_at = (x.coords_table("register", lane=lane, warp=warp) for x in (a, b, acc))
    rows_of_a = len(tile_fragments.a[0][0][0]) // len(
        tile_fragments.b[0][0][0]
    )  # words of one step along K
    for row, step in product(range(len(tile_fragments.a[0])), range(len(tile_fragments.a[0][0]))):
        for index, word in enumerate(tile_fragments.a[0][row][step]):
            in_b = tile_fragments.b[0][0][step][index // rows_of_a]
            assert [a_at[r][1] for r in word] == [b_at[r][0] for r in in_b]
            (m,) = {a_at[r][0] for r in word}
            half = index % rows_of_a
            for column in range(len(tile_fragments.acc[0][row])):
                pair = tile_fragments.acc[0][row][column][2 * half : 2 * half + 2]
                assert {acc_at[r][0] for (r,) in pair} == {m}


def test_what_a_small_tile_lacks() -> None:
    """Rows and columns are copies, elements along K zeros, lanes without an element copies."""
    a, b, acc = layouts_of(8, 4, 4, (1, 1), 16)
    tile_fragments: Fragments = fragments((16, 8, 16), a, b, acc, 16)
    assert tile_fragments.a == (((((0, 1), (0, 1), (ZERO, ZERO), (ZERO, ZERO)),),),)
    assert tile_fragments.b == (((((0, 1), (ZERO, ZERO)),),),)
    assert tile_fragments.acc == (((((0,), (1,), (0,), (1,)),),),)
    assert tile_fragments.copy_lanes == 0b10


def test_layouts_that_disagree() -> None:
    a, b, acc = layouts_of(32, 32, 32, (2, 1), 16)
    other = layouts_of(32, 32, 32, (1, 2), 16)
    wrong = [
        (dot_operand(0, (32, 32), (2, 1), 16, 4), b, acc),
        (a, other[1], acc),
        (other[0], b, acc),
        (a, b, other[2]),
        (a, b, blocked_for((32, 32), (1, 1), 2)),
        (a, b, mma_v2((32, 32), (2, 1), 2)),
    ]
    for tiles in wrong:
        with pytest.raises(ValueError, match="of a dot"):
            fragments((16, 8, 16), *tiles, 16)
    slanted = acc.with_columns("register", [3 << 8, *acc.columns("register")[1:]])
    with pytest.raises(ValueError, match="not along one axis|of a dot"):
        fragments((16, 8, 16), a, b, slanted, 16)
