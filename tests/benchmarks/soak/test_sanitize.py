"""Kernels under compute-sanitizer: the selected launches, and a tool's parsed output."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak import sanitize
from benchmarks.soak.devices import Emulator
from benchmarks.soak.sanitize import TOOLS, launch_all, main, ready, run_tools, sanitized
from benchmarks.soak.variants import ROOT, Settings, Source, select

_ENDED = "launched 3 variants, 0 launches are wrong\n"
_CLEAN = f"========= COMPUTE-SANITIZER\n{_ENDED}========= ERROR SUMMARY: 0 errors\n"
_WARNINGS = f"{_ENDED}========= RACECHECK SUMMARY: 4 hazards displayed (0 errors, 4 warnings)\n"
_RACES = "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"


def _saying(text: str, status: int, seconds: float = 0.0) -> list[str]:
    program = f"import sys, time; time.sleep({seconds}); print({text!r}); sys.exit({status})"
    return [sys.executable, "-c", program]


def test_launches_are_made_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    groups = select([Source(ROOT / "kernels.toml", 1)], 0, kernels=["vector_add"])
    cases, num_failed = ready(groups, Settings(emulates=True, repeats=1), jobs=1)
    assert (len(cases), num_failed) == (1, 0)
    assert all(0 < len(member.references) <= 2 for member in cases[0].members)
    assert launch_all(cases, Emulator()) == 0
    assert "launched 1 variants, 0 launches are wrong" in capsys.readouterr().out
    for member in cases[0].members:
        for reference in member.references:
            for buffer in reference.buffers.values():
                buffer.expected[:] ^= 1
    assert launch_all(cases, Emulator()) > 0
    assert "wrong: " in capsys.readouterr().out


@pytest.mark.slow
def test_what_a_tool_says_is_kept(tmp_path: Path) -> None:
    commands = {
        "memcheck": _saying(_CLEAN, 0),
        "racecheck": _saying(_RACES, 9),
        "synccheck": _saying("Error: no device", 0),
        "initcheck": _saying(_CLEAN, 0, seconds=60.0),
    }
    reports = run_tools(TOOLS, commands.__getitem__, tmp_path, 10.0)
    assert [report.is_clean for report in reports] == [True, False, False, False]
    assert [report.status for report in reports] == [0, 9, 0, None]
    assert reports[0].summary == "0 errors"
    assert reports[1].summary.startswith("2 hazards displayed")
    assert "launched 3" in (tmp_path / "memcheck.txt").read_text()


@pytest.mark.parametrize(
    ("text", "status", "is_clean"),
    [
        (_WARNINGS, 9, True),
        (_WARNINGS.replace(", 0 launches", ", 1 launches"), 9, False),
        (_WARNINGS.replace("(0 errors", "(1 error"), 9, False),
        (_CLEAN.replace(_ENDED, ""), 0, False),
    ],
)
def test_warnings_are_no_failure_and_wrong_results_are(
    tmp_path: Path, text: str, status: int, is_clean: bool
) -> None:
    (report,) = run_tools(("racecheck",), lambda _tool: _saying(text, status), tmp_path, 10.0)
    assert report.is_clean == is_clean


@pytest.mark.parametrize(("num_unjudged", "is_clean"), [(0, False), (1, True), (2, False)])
def test_errors_that_racecheck_cannot_judge_are_no_failure(
    tmp_path: Path, num_unjudged: int, is_clean: bool
) -> None:
    text = _WARNINGS.replace("(0 errors", "(1 error")
    (report,) = run_tools(("racecheck",), lambda _tool: _saying(text, 9), tmp_path, 10.0)
    assert replace(report, num_unjudged=num_unjudged).is_clean == is_clean


@pytest.mark.slow
def test_what_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = f"import time; open({str(tmp_path / 'started')!r}, 'w'); time.sleep(3); open({str(tmp_path / 'left')!r}, 'w')"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    run_tools(("memcheck",), lambda _tool: [sys.executable, "-c", program], tmp_path, 1.5)
    time.sleep(3)
    assert not (tmp_path / "left").exists()


def test_errors_of_the_api_are_left_out() -> None:
    command = sanitized("compute-sanitizer", Path("cases"), "racecheck")
    assert " ".join(command).startswith(
        "compute-sanitizer --tool racecheck --report-api-errors no --error-exitcode 9 "
    )


def test_without_a_sanitizer_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize.shutil, "which", lambda _: None)
    assert main([]) == 2
    assert "not installed" in capsys.readouterr().err


@pytest.mark.gpu
def test_tools_find_nothing(tmp_path: Path) -> None:
    if sanitize.shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    assert main(["-o", str(tmp_path), "--kernels", "12"]) == 0
