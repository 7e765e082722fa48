"""benchmarks/row_table.py without a GPU: only correct candidates are ranked, rows are printed whole."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="row_table")
def _row_table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("row_table")


def test_the_fastest_is_one_of_those_that_are_right(
    row_table: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    took = {"wrong": 1.0, "fast": 2.0, "slow": 3.0}
    launched: list[tuple[str, str]] = []

    def bind(name: str) -> Callable[[str], Callable[[], None]]:
        return lambda operands: lambda: launched.append((name, operands))

    def problem(launch: Callable[[], None], operands: str) -> str:
        del operands
        launch()
        name = launched[-1][0]
        if name == "failed":
            raise ValueError(name)
        return "1 element is wrong" if name == "wrong" else ""

    def ranked(launches, *_: object, ahead: bool) -> list[tuple[float, str]]:
        assert ahead
        for launch in launches.values():
            launch()
            launch()
        return sorted((took[key.split(chr(34))[3]], key) for key in launches)

    monkeypatch.setattr(row_table, "ranked", ranked)
    names = ("slow", "failed", "wrong", "fast")
    candidates = (({"name": name}, bind(name)) for name in names)
    fastest = row_table.fastest(candidates, problem, ["x", "y"], trials=3, launches=1)
    assert fastest[0] == '{"name": "fast"}'
    printed = capsys.readouterr().out
    assert "1 element is wrong" in printed
    assert "ValueError: failed" in printed
    for name in ("fast", "slow"):  # after it was checked, on both sets of operands in turn
        assert [call for call in launched if call[0] == name][1:] == [(name, "x"), (name, "y")]
    no_launch = row_table.fastest(iter([({}, bind("wrong"))]), problem, ["x"], trials=3, launches=1)
    assert no_launch is None


def test_a_row_is_printed_whole(row_table: ModuleType) -> None:
    row = {
        "work": "softmax 1x2",
        "tb_s": {"aotc": 3.0, "copy": 2.5},
        "over": {"copy": 1.2},
        "configs": {"aotc": "c"},
    }
    text = row_table.line(row)
    assert "aotc 3.000" in text
    assert "copy 1.200" in text
