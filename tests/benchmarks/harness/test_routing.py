"""Rows by expert: each stands once, in a block of its expert."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.routing import Routing


@pytest.mark.parametrize("block", [1, 7, 128])
@pytest.mark.parametrize("tokens", [1, 37])
def test_whole_blocks_hold_every_row_of_their_expert(tokens: int, block: int) -> None:
    routing = Routing(tokens, 3, 5)
    padded = routing.padded(block)
    assert len(padded.experts) == routing.most_blocks(block)
    blocks = padded.rows[: padded.num_rows].reshape(-1, block)
    for rows, expert in zip(blocks, padded.experts, strict=False):
        real = rows[rows < routing.num_rows]
        assert len(real) > 0
        assert (routing.chosen[real] == expert).all()
    real = padded.rows[padded.rows < routing.num_rows]
    assert sorted(real) == list(range(routing.num_rows))
    assert (padded.rows[padded.num_rows :] == routing.num_rows).all()


@pytest.mark.parametrize(("most", "align"), [(1, 1), (4, 8), (300, 32)])
@pytest.mark.parametrize("tokens", [1, 37])
def test_blocks_in_order_are_the_longest_first_and_aligned(
    tokens: int, most: int, align: int
) -> None:
    routing = Routing(tokens, 3, 5)
    ordered = routing.ordered(most, align, at_once=64)
    assert len(ordered.rows) % 64 == 0
    assert len(ordered.starts) == len(ordered.counts) == len(ordered.experts)
    assert ordered.counts == sorted(ordered.counts, reverse=True)
    assert max(ordered.counts) <= most
    assert sum(ordered.counts) == routing.num_rows
    assert not any(ordered.counts[ordered.num_blocks :])
    for start, count, expert in zip(ordered.starts, ordered.counts, ordered.experts, strict=True):
        assert start % align == 0
        rows = ordered.rows[start : start + count]
        assert (routing.chosen[rows] == expert).all()
    assert (ordered.rows[ordered.places] == np.arange(routing.num_rows)).all()
