from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.layout import LinearLayout
from aotc.ir.layout_access import (
    representatives,
    run_elems_in_order,
    thread_offsets,
    vector_accesses,
)
from tests.ir.layout_strategies import bijections, elements_bits, layouts

ROWS = LinearLayout({"offset": [(0, 1), (0, 2), (1, 0), (2, 0)]}, (4, 4))


def xor_of(index: int, columns: tuple[int, ...]) -> int:
    out = 0
    for bit, column in enumerate(columns):
        out ^= column if index >> bit & 1 else 0
    return out


@given(layouts())
def test_representatives_hold_the_same_and_are_the_first(layout: LinearLayout):
    elements = layout.table("register", lane=layout.in_size("lane") - 1)
    assert list(representatives(layout)) == [elements.index(element) for element in elements]


@given(st.data())
def test_accesses_cover_a_thread_once(data: st.DataObject):
    layout = data.draw(layouts())
    memory = data.draw(bijections(shape=layout.shape)).flatten_ins("offset")
    width = 1 << data.draw(st.integers(0, min(2, elements_bits(layout.shape))))
    try:
        (accesses,) = vector_accesses(layout, memory, width)
    except ValueError:
        return
    offsets = thread_offsets(layout, memory)
    for lane in range(layout.in_size("lane")):
        for warp in range(layout.in_size("warp")):
            elements = layout.table("register", lane=lane, warp=warp)
            base = xor_of(lane, offsets.lanes) ^ xor_of(warp, offsets.warps)
            seen: list[int] = []
            for access in accesses:
                start = base ^ access.offset_elems
                assert start % width == 0
                for step, register in enumerate(access.registers):
                    assert memory.apply_packed(offset=start + step) == elements[register]
                seen += access.registers
            assert len(seen) == len(set(seen))
            assert sorted(elements[register] for register in seen) == sorted(set(elements))


def test_vectors_are_found_in_any_registers():
    layout = LinearLayout({"register": [(1, 0), (0, 1), (0, 2)], "lane": [(2, 0)]}, (4, 4))
    (accesses,) = vector_accesses(layout, ROWS, 4)
    assert [(a.registers, a.offset_elems) for a in accesses] == [
        ((0, 2, 4, 6), 0),
        ((1, 3, 5, 7), 4),
    ]


def test_vectors_that_threads_would_misalign_are_refused():
    layout = LinearLayout({"register": [(0, 1)], "lane": [(0, 3), (1, 0), (2, 0)]}, (4, 4))
    assert len(vector_accesses(layout, ROWS, 1)[0]) == 2
    with pytest.raises(ValueError, match="not aligned"):
        vector_accesses(layout, ROWS, 2)
    with pytest.raises(ValueError, match="hold no 4 neighbours"):
        vector_accesses(layout, ROWS, 4)


@given(st.data())
def test_registers_in_order_are_the_longest_run_of_every_thread(data: st.DataObject):
    layout = data.draw(layouts())
    memory = data.draw(bijections(shape=layout.shape)).flatten_ins("offset")
    offset_of = {element: offset for offset, element in enumerate(memory.table("offset"))}
    threads = [
        [offset_of[e] for e in layout.table("register", lane=lane, warp=warp)]
        for lane in range(layout.in_size("lane"))
        for warp in range(layout.in_size("warp"))
    ]

    def in_order(width: int) -> bool:
        return all(
            elements[register] == elements[register // width * width] + register % width
            and elements[register] % width == register % width
            for elements in threads
            for register in range(len(elements))
        )

    width = run_elems_in_order(layout, memory)
    wider = 2 * width
    assert in_order(width)
    assert wider > layout.in_size("register") or not in_order(wider)


def test_a_swizzle_within_the_run_ends_it() -> None:
    layout = LinearLayout({"register": [(0, 1), (0, 2), (2, 0)], "lane": [(1, 0)]}, (4, 4))
    assert run_elems_in_order(layout, ROWS) == 4
    swizzled = LinearLayout({"offset": [(0, 1), (0, 2), (1, 0), (2, 2)]}, (4, 4))
    assert run_elems_in_order(layout, swizzled) == 2
