"""Parts of tiles: elements of each thread, register by register."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.layout import LinearLayout
from aotc.ir.sub_tile import part_registers, sub_tile, within
from aotc.schedule.layout.layouts import dot_operand


@given(st.data())
def test_a_part_is_held_by_the_registers_it_names(data: st.DataObject) -> None:
    k, size = (1 << data.draw(st.integers(4, 6)) for _ in range(2))
    whole = dot_operand(0, (32, k), (2, 1), 16)
    part = sub_tile(whole, (32, min(size, k)))
    assert part is not None
    start = (0, data.draw(st.integers(0, k // part.shape[1] - 1)) * part.shape[1])
    registers = part_registers(whole, part, start)
    for position in ({"lane": 0, "warp": 0}, {"lane": 29, "warp": 1}):
        coords = whole.coords_table("register", **position)
        expected = [
            (m + start[0], n + start[1]) for m, n in part.coords_table("register", **position)
        ]
        assert [coords[register] for register in registers] == expected


def test_a_whole_tile_is_its_own_part() -> None:
    layout = dot_operand(1, (16, 8), (1, 1), 16)
    assert sub_tile(layout, (16, 8)) == layout
    assert within(layout, (16, 8)) is layout


def test_within_keeps_places_at_the_origin() -> None:
    part = LinearLayout({"register": [(0, 1)], "lane": [(1, 0)]}, (2, 2))
    shifted = within(part, (4, 8))
    assert shifted.shape == (4, 8)
    assert shifted.coords_table("register", lane=1) == part.coords_table("register", lane=1)


@pytest.mark.parametrize("shape", [(4,), (2,), (1,)])
def test_threads_that_differ_share_no_part(shape: tuple[int, ...]) -> None:
    """Lanes lie on the high bit, or a register moves along two bits at once."""
    on_lanes = LinearLayout({"register": [(1,), (2,)], "lane": [(4,)]}, (8,))
    assert sub_tile(on_lanes, shape) is None
    slanted = LinearLayout({"register": [(1,), (6,), (4,)], "lane": [(0,)]}, (8,))
    assert sub_tile(slanted, shape) is None


def test_a_part_that_is_not_held_has_no_registers() -> None:
    layout = LinearLayout({"register": [(1,)], "lane": [(2,)]}, (4,))
    with pytest.raises(ValueError, match="do not hold the part"):
        part_registers(layout, LinearLayout({"register": [(1,)], "lane": [(0,)]}, (2,)), (2,))
