"""Read-modify-write in turn, against a loop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.emulator.memory.serialized_rmw import in_turn


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 255)), max_size=20))
def test_is_one_after_the_other(pairs):
    index = np.array([cell for cell, _ in pairs], np.int64)
    amount = np.array([by for _, by in pairs], np.uint8)
    cells = np.arange(5, dtype=np.uint8)
    expected, seen = cells.tolist(), []
    for cell, by in pairs:
        seen.append(expected[cell])
        expected[cell] = (3 * expected[cell] + by) % 256  # does not commute
    old = in_turn(cells, index, lambda old_cells, positions: 3 * old_cells + amount[positions])
    assert old.tolist() == seen
    assert cells.tolist() == expected
