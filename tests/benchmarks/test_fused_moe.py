"""benchmarks/fused_moe.py without a GPU: rates of the whole from both layers' rates."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="fused_moe")
def _fused_moe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fused_moe")


def test_layers_one_after_the_other_take_the_sum_of_their_times(fused_moe: ModuleType) -> None:
    layers = [
        {"layer": "first", "rows": 1, "flop": 600, "aotc": 300.0, "triton": 100.0, "dense": 600.0},
        {"layer": "second", "rows": 1, "flop": 200, "aotc": 100.0, "dense": 100.0},
    ]
    row = fused_moe.whole(layers)
    assert row == {
        "layer": "first + second",
        "aotc": 200.0,
        "dense": 800 / 3,
        "aotc/dense": 0.75,
    }, "a peer that did not run one layer has no part in it"


@pytest.mark.parametrize(
    ("most", "tiles", "counts"),
    [(132, 32, [132, 128]), (66, 16, [66, 64]), (132, 24, [132]), (132, 33, [132]), (8, 32, [8])],
)
def test_programs_are_as_many_as_run_at_once_or_hardly_fewer_for_whole_blocks(
    fused_moe: ModuleType, most: int, tiles: int, counts: list[int]
) -> None:
    assert fused_moe.program_counts(most, tiles) == counts
