"""Mbarriers under the interpreter: phases end with their last arrival, and never with more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.interpreter.mbarriers import Mbarrier


@given(count=st.integers(1, 5), arrivals=st.lists(st.integers(1, 3), max_size=20))
def test_a_phase_ends_with_its_last_arrival(count: int, arrivals: list[int]) -> None:
    barrier, total = Mbarrier(count), 0
    for mark, number in enumerate(arrivals):
        before = barrier.phases
        fits = barrier.arrive(number, mark)
        total += number
        assert fits == (total <= count * (before + 1))
        if not fits:
            return
        assert barrier.phases == total // count
        assert barrier.arrived == total % count
        if barrier.phases > before:
            assert barrier.mark == mark


@pytest.mark.parametrize(("phases", "ended"), [(0, 1), (1, 0), (2, 1), (7, 0)])
def test_the_newest_phase_and_the_one_before_have_a_parity_each(phases: int, ended: int) -> None:
    """Before the first phase has ended, the one before it counts as over."""
    barrier = Mbarrier(1, phases=phases)
    assert barrier.has_ended(ended)
    assert not barrier.has_ended(1 - ended)
