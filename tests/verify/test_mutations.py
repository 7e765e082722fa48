"""Planted compiler bugs: `aotc verify` finds them, at its own choice of launches."""

from __future__ import annotations

import pytest

from tests.support.mutations.hopper import PtxMutation
from tests.support.mutations.plant import Mutation
from tests.support.mutations.table import KNOWN_MISSES, MUTATIONS

_SHARE = 0.95


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation | PtxMutation) -> None:
    right, wrong = mutation.control(), mutation.observe()
    assert not right.kind, right.detail
    assert wrong.program != right.program, "the bug changes nothing"
    assert bool(wrong.kind) == (mutation.name not in KNOWN_MISSES), wrong.detail


def test_all_but_few_are_found() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    assert set(KNOWN_MISSES) <= set(names)
    assert len(KNOWN_MISSES) <= (1 - _SHARE) * len(names)
