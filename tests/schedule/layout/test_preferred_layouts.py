"""Layouts for splits of a tile where its own does not fit."""

from __future__ import annotations

import pytest

from aotc.ir.layout import LinearLayout
from aotc.schedule.layout.preferred_layouts import splittable

LANES = (8, 16, 32, 64, 128)


def layout_of(num_bits: int, num_rows: int = 0, **columns: tuple[int, ...]) -> LinearLayout:
    """Return a layout of 2**num_rows rows, as many columns as are left, and pairs."""
    outs = (("dim0", num_rows), ("dim1", num_bits - num_rows - 1), ("dim2", 1))
    return LinearLayout.from_columns(columns.items(), outs)


@pytest.mark.parametrize(
    ("layout", "expected_layout"),
    [
        pytest.param(
            layout_of(8, register=(2, 1, 4), lane=LANES, warp=()),
            layout_of(8, register=(2, 1, 4), lane=LANES, warp=()),
            id="in registers it stays",
        ),
        pytest.param(
            layout_of(8, register=(2, 4), lane=(8, 1, 32, 64, 128), warp=(16,)),
            layout_of(8, register=(1, 4), lane=(8, 2, 32, 64, 128), warp=(16,)),
            id="a lane changes places with the first register",
        ),
        pytest.param(
            layout_of(8, 1, register=(2, 128), lane=(8, 1, 32, 64, 4), warp=(16,)),
            layout_of(8, 1, register=(2, 1), lane=(8, 128, 32, 64, 4), warp=(16,)),
            id="or with one of the rows",
        ),
        pytest.param(
            layout_of(9, register=(2, 4), lane=LANES, warp=(256, 1)),
            layout_of(9, register=(1, 256), lane=LANES, warp=(4, 2)),
            id="all warps change places at once",
        ),
        pytest.param(
            layout_of(9, 1, register=(2, 4), lane=LANES, warp=(256, 1)),
            layout_of(9, 1, register=(1, 4), lane=LANES, warp=(256, 2)),
            id="but for those that hold rows",
        ),
        pytest.param(
            layout_of(9, 2, register=(2, 4), lane=(8, 16, 32, 128, 256), warp=(64, 1)),
            layout_of(9, 2, register=(1, 64), lane=(8, 16, 32, 2, 4), warp=(256, 128)),
            id="rows come from lanes to warps",
        ),
        pytest.param(
            layout_of(8, register=(2,), lane=LANES, warp=(4, 1)),
            layout_of(8, register=(1,), lane=LANES, warp=(4, 2)),
            id="as many warps as there are registers",
        ),
        pytest.param(
            layout_of(5, register=(), lane=(1, 2, 4, 8, 16), warp=(0,)),
            layout_of(5, register=(1,), lane=(0, 2, 4, 8, 16), warp=(0,)),
            id="without registers, lanes hold copies",
        ),
        pytest.param(
            layout_of(6, register=(), lane=(2, 4, 8, 16, 32), warp=(1,)),
            layout_of(6, register=(1,), lane=(2, 4, 8, 16, 32), warp=(0,)),
            id="or warps do",
        ),
        pytest.param(
            layout_of(6, register=(2,), lane=(1, 3, 4, 8, 16), warp=(32,)),
            layout_of(6, register=(1,), lane=(2, 4, 8, 16, 32), warp=(0,)),
            id="what no bit selects is laid out anew",
        ),
    ],
)
def test_both_halves_come_to_one_thread(
    layout: LinearLayout, expected_layout: LinearLayout
) -> None:
    actual = splittable(layout, 1 << layout.in_bits("warp"))
    assert actual.split_register_bit() is not None
    assert actual.is_surjective()
    assert actual == expected_layout
