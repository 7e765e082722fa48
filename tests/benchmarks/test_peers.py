"""benchmarks/peers.py without a GPU: order of turns, and operands of each."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="peers")
def _peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers")


@pytest.mark.parametrize("num_sets", [2, 3, 5])
@pytest.mark.parametrize("num_peers", [2, 3])
def test_no_peer_comes_after_its_own_operands_or_always_after_the_same_peer(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, num_peers: int, num_sets: int
) -> None:
    calls_in_order: list[tuple[str, int]] = []
    turns = itertools.count()

    def peer(name: str) -> object:
        calls = [lambda at=at: calls_in_order.append((name, at)) for at in range(num_sets)]
        return peers.of_turn(calls, turns)

    def milliseconds(launch, launches: int, *, ahead: bool) -> float:
        assert ahead
        for _ in range(launches):
            launch()
        return float(len(calls_in_order))

    monkeypatch.setattr(peers, "milliseconds", milliseconds)
    names = "abc"[:num_peers]
    times = peers.in_turn({name: peer(name) for name in names}, 60, 1, ahead=True)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(names, 60)
    assert len(calls_in_order) == 60 * num_peers
    assert all(first[1] != second[1] for first, second in itertools.pairwise(calls_in_order))
    rounds = [
        calls_in_order[index : index + num_peers]
        for index in range(0, len(calls_in_order), num_peers)
    ]
    assert all(sorted(name for name, _ in turn) == list(names) for turn in rounds)
    for name in names:
        assert {index for peer_name, index in calls_in_order if peer_name == name} == set(
            range(num_sets)
        )
        assert {turn[0][0] for turn in rounds} == set(names)
        before = {
            earlier
            for (earlier, _), (other, _) in itertools.pairwise(calls_in_order)
            if other == name
        }
        assert before == set(names)
