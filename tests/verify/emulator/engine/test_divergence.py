"""Joins: a warp continues once all its lanes are there, and spinning lanes block none forever."""

from __future__ import annotations

import numpy as np

from aotc.verify.emulator.engine.divergence import SPIN_PATIENCE, Join


def test_a_warp_continues_once_its_lanes_arrive() -> None:
    join = Join(7, None, np.arange(64), 2)
    assert join.arrive(np.arange(16)).tolist() == []
    assert join.arrive(np.arange(32, 40)).tolist() == []
    assert join.arrive(np.arange(16, 32)).tolist() == list(range(32))
    assert join.exit(np.arange(40, 64)).tolist() == list(range(32, 40))


def test_lanes_waiting_for_spinning_lanes_are_released() -> None:
    join = Join(7, None, np.arange(64), 2)
    join.arrive(np.arange(16))
    assert [join.spin() for _ in range(SPIN_PATIENCE - 1)] == [None] * (SPIN_PATIENCE - 1)
    freed = join.spin()
    assert freed is not None
    assert freed.tolist() == list(range(16))


def test_spinning_releases_no_lane_if_none_waits() -> None:
    join = Join(7, None, np.arange(64), 2)
    join.arrive(np.arange(16))
    join.arrive(np.arange(16, 32))  # frees the warp
    assert {join.spin() for _ in range(2 * SPIN_PATIENCE)} == {None}
