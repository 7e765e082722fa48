"""Registers of one thread with the same element."""

from __future__ import annotations

import pytest

from aotc.backend.thread_map import first_holders
from aotc.ir.layout import LinearLayout

LAYOUT = LinearLayout(
    {"register": [(0, 1), (0, 2), (1, 0), (0, 0)], "lane": [(0, 4)], "warp": [(2, 0)]}, (4, 8)
)


@pytest.mark.parametrize(
    ("constancy", "holders"),
    [
        ((), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]),
        ((1, 2), [0, 0, 2, 2, 4, 4, 6, 6, 0, 0, 2, 2, 4, 4, 6, 6]),
        ((1, 4), [0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4]),
        ((2, 1), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]),
        ((64, 64), [0] * 16),  # of a tile larger than this part of it
        ((1, 64), [0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4]),
    ],
)
def test_registers_in_a_run_count_as_the_same(
    constancy: tuple[int, ...], holders: list[int]
) -> None:
    assert first_holders(LAYOUT, constancy) == holders
