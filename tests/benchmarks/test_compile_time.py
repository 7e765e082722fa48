"""benchmarks/compile_time.py without Triton: its stages, by CPU time."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from aotc.compiler import check_request

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="compile_time")
def _compile_time(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("compile_time")


def test_stages_and_passes_are_reported(
    compile_time: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compile_time.py", "--stages", "--passes", "2", "--runs", "1", "--kernel", "vector_add"]
    monkeypatch.setattr(sys, "argv", argv)
    assert compile_time.main() == 0
    head, row, passes = capsys.readouterr().out.splitlines()
    stages = ["frontend", "schedule", "lower", "llvm", "check", "ptxas"]
    assert [word for word in head.split() if word in stages] == [
        *stages,
        "llvm",
        "ptxas",
    ]  # and all but the last two
    name, *cells = row.split()
    *stage_ms, other_ms = map(float, cells)
    assert name == "vector_add"
    stages = ["import", *stages]
    ours = sum(
        ms for stage, ms in zip(stages, stage_ms, strict=True) if stage not in ("llvm", "ptxas")
    )
    assert other_ms == pytest.approx(ours, abs=0.1 * len(stage_ms))
    assert len(passes.split()) == 4


def test_the_time_of_a_child_counts(compile_time: ModuleType) -> None:
    stages, passes = compile_time.measure_stages("vector_add", 1)
    assert stages["ptxas"] > 1  # this process only waits for it
    assert "assign_layouts" in passes


def test_all_requests_make_sense(compile_time: ModuleType) -> None:
    for name in compile_time.WORK:
        request = compile_time.request(name)
        check_request(request)
        assert Path(request.source).is_file()
