"""Views of matrix accesses against the instruction's documentation."""

from __future__ import annotations

import pytest

from aotc.ir.layout import LinearLayout
from aotc.ir.matrix_access import (
    RUN_BYTES,
    MatrixMode,
    check_runs,
    matrix_view,
    num_matrices,
    word_registers,
)
from aotc.schedule.layout.layouts import dot_operand, mma_v2, row_major_shared
from tests.backend.simt_mma import matrix_places

LAYOUTS = {
    "a of 16 bits": (dot_operand(0, (32, 64), (2, 1), 16), 16),
    "b of 16 bits": (dot_operand(1, (64, 32), (1, 2), 16), 16),
    "a of 8 bits": (dot_operand(0, (16, 64), (1, 1), 8), 8),
    "b of 8 bits by twos": (dot_operand(1, (64, 32), (1, 1), 16, None, 2), 8),
    "a of 32 bits": (dot_operand(0, (16, 16), (1, 1), 32), 32),
    "two matrices": (dot_operand(1, (16, 8), (1, 1), 16), 16),
    "an accumulator": (mma_v2((32, 16), (2, 1)), 16),
}
CASES = [
    (name, mode)
    for name, (_, bits) in LAYOUTS.items()
    for mode in ("b16", "b16.trans")
    if not (bits == 32 and mode == "b16.trans")
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_view_gives_every_lane_the_rows_that_the_instruction_takes(
    name: str, mode: MatrixMode
) -> None:
    layout, bits = LAYOUTS[name]
    view = matrix_view(layout, bits, mode)
    assert view is not None
    run = RUN_BYTES * 8 // bits
    per_unit = 16 // bits or 1
    for start in range(0, view.in_size("register"), run):
        for lane in range(32):
            lane_elements = layout.table("register", lane=lane)
            for matrix, word in enumerate(word_registers(layout, bits, start)):
                elements = [lane_elements[register] for register in word]
                # Two units of 2 bytes each; an element of 4 bytes is both of one.
                for half, (row, column) in enumerate(
                    matrix_places(lane, matrix, trans=mode == "b16.trans")
                ):
                    rows = view.table("register", lane=row)[start : start + run]
                    first = column * 16 // bits
                    unit = rows[first : first + per_unit] if bits <= 16 else [rows[column // 2]]
                    mine = elements[half * per_unit : (half + 1) * per_unit]
                    assert unit == (mine if bits <= 16 else elements)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_accesses_cover_every_register_once(name: str, mode: MatrixMode) -> None:
    layout, bits = LAYOUTS[name]
    view = matrix_view(layout, bits, mode)
    assert view is not None
    starts = range(0, view.in_size("register"), RUN_BYTES * 8 // bits)
    words = [word for start in starts for word in word_registers(layout, bits, start)]
    assert sorted(r for word in words for r in word) == list(range(layout.in_size("register")))
    assert len(words) == len(starts) * num_matrices(layout, bits)


def test_without_a_mode_nothing_changes() -> None:
    layout = mma_v2((16, 8), (1, 1))
    assert matrix_view(layout, 16, "") == layout


def test_what_has_no_matrices() -> None:
    assert matrix_view(dot_operand(0, (16, 16), (1, 1), 64), 64, "b16") is None
    assert matrix_view(dot_operand(0, (16, 16), (1, 1), 32), 32, "b16.trans") is None
    # Replica lanes have no place in a run.
    assert matrix_view(dot_operand(1, (16, 4), (1, 1), 16), 16, "b16.trans") is None
    assert matrix_view(dot_operand(0, (16, 4), (1, 1), 16), 16, "b16") is None


def test_runs_must_lie_in_memory_in_their_order() -> None:
    view = matrix_view(dot_operand(0, (16, 16), (1, 1), 16), 16, "b16")
    assert view is not None
    check_runs(view, row_major_shared((16, 16)), 8)
    with pytest.raises(ValueError, match="are not runs of"):
        check_runs(view, row_major_shared((16, 16), (0, 1)), 8)


@pytest.mark.parametrize(("bit", "elements"), [(5, (2, 1)), (7, (8, 4)), (8, (16, 1))])
def test_runs_must_begin_at_boundaries(bit: int, elements: tuple[int, int]) -> None:
    """Elements of a row are swizzled, by a row's, a matrix's or an access's place in the tile."""
    view = matrix_view(dot_operand(0, (32, 16), (1, 1), 16), 16, "b16")
    assert view is not None
    memory = row_major_shared((32, 16))
    check_runs(view, memory, 8)
    offsets = list(memory.bases("offset"))
    offsets[bit] = elements
    swizzled = LinearLayout({"offset": tuple(offsets)}, (32, 16))
    with pytest.raises(ValueError, match="are not runs of"):
        check_runs(view, swizzled, 8)


def test_a_view_holds_what_the_warp_holds() -> None:
    layout = dot_operand(1, (64, 32), (1, 2), 16)
    view = matrix_view(layout, 16, "b16.trans")
    assert view is not None

    def held(layout: LinearLayout) -> set[int]:
        return {e for lane in range(32) for e in layout.table("register", lane=lane, warp=1)}

    assert held(view) == held(layout)
