"""docs/results/index.md equals the page its script writes from the runs."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.__main__ import options_of
from benchmarks.harness.registry import selected

results_index = importlib.import_module("benchmarks.results_index")

_ROOT = Path(__file__).parents[2]
_RUN: dict[str, Any] = {
    "area": "matmul",
    "title": "A run",
    "card": "H200",
    "date": "2026-11-28",
    "command": ["python benchmarks/verify.py A.aotc"],
    "unit": "µs",
    "rows": [{"work": "M = 1", "figure": 1200, "ratios": {"Triton": 1.5}}],
}


def test_the_index_is_up_to_date() -> None:
    runs = results_index.runs_of(results_index.RESULTS)
    written = (results_index.RESULTS / "index.md").read_text()
    assert written == results_index.page(runs), "run python benchmarks/results_index.py"


def test_commands_name_scripts_that_exist() -> None:
    runs = results_index.runs_of(results_index.RESULTS)
    commands = " ".join(text for run in runs for text in run["command"])
    files = re.findall(r"(?:benchmarks|examples|kernels)/[\w/]+\.(?:py|toml)", commands)
    modules = [name.replace(".", "/") for name in re.findall(r"-m (benchmarks[\w.]+)", commands)]
    missing = [path for path in files if not (_ROOT / path).exists()]
    missing += [
        name
        for name in modules
        if not (_ROOT / f"{name}.py").exists() and not (_ROOT / name / "__main__.py").exists()
    ]
    assert missing == []
    assert len(files) > 50


def test_commands_of_the_harness_name_items_and_rows() -> None:
    runs = results_index.runs_of(results_index.RESULTS)
    commands = [shlex.split(text) for run in runs for text in run["command"]]
    of_harness = [words[3:] for words in commands if words[1:3] == ["-m", "benchmarks.harness"]]
    assert len(of_harness) > 30
    for words in of_harness:
        options = options_of(words)
        workloads = selected(options.family, options.items, options.only)
        assert workloads, words
        peers = {"Triton", *(name for w in workloads for name in (*w.peers, *w.rivals))}
        assert {*(options.peers or ())} <= peers, words


def test_a_row_shows_figure_unit_ratios_card_and_date() -> None:
    text = results_index.page([_RUN])
    assert "| **A run** | | | H200 | 2026-11-28 |" in text
    assert "| M = 1 | 1,200 µs | Triton 1.50 | | |" in text
    assert "- A run: `python benchmarks/verify.py A.aotc`." in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"area": "art"}, "area 'art'"),
        ({"date": "28 November"}, "expected YYYY-MM-DD"),
        ({"rows": []}, "no rows"),
        ({"rows": [{"work": "M = 1"}]}, "needs a work and a figure or ratios"),
        ({"command": []}, "neither a command nor a note"),
        ({"command": [], "note": "By hand."}, None),
    ],
)
def test_faults_of_a_run(change: dict[str, Any], message: str | None) -> None:
    faults = results_index.mistakes("a.json", _RUN | change)
    assert (message is None) == (faults == [])
    assert message is None or message in faults[0]


def test_a_missing_key_is_named() -> None:
    run = {key: value for key, value in _RUN.items() if key != "unit"}
    assert results_index.mistakes("a.json", run) == ["a.json: missing ['unit']"]
