"""Sparse pages at any distance."""

import tracemalloc

import numpy as np

from aotc.verify.arrays import Array
from aotc.verify.pages import PAGE_BYTES, Pages

FAR = 1 << 40


def test_pages_are_held_in_the_order_of_their_touch() -> None:
    pages = Pages()
    for offsets in ([FAR, FAR + 8], [0, 3 * PAGE_BYTES, FAR]):
        pages.places(np.array(offsets), pages.hold)
    assert pages.numbers == [FAR // PAGE_BYTES, 0, 3]
    missing: list[int] = []

    def hold(numbers: Array) -> None:
        missing.extend(numbers.tolist())
        pages.hold(numbers)

    pages.places(np.array([5, FAR, PAGE_BYTES, PAGE_BYTES + 1]), hold)
    assert missing == [1]
    positions = pages.places(np.array([7, FAR + 9, 3 * PAGE_BYTES + 1]))
    assert positions.tolist() == [PAGE_BYTES + 7, 9, 2 * PAGE_BYTES + 1]


def test_a_page_far_away_takes_no_more_room() -> None:
    tracemalloc.start()
    try:
        pages = Pages()
        pages.places(np.array([0, FAR]), pages.hold)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
