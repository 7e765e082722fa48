"""The supervisor without a GPU: lost processes, and stored results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import supervise
from benchmarks.harness.manifest import ROOT

# A process measuring three workloads. The second has a hanging candidate, a crashing one, and a
# good one.
CHILD = """
import json, os, sys, time
task = json.load(sys.stdin)
def tell(**line): print(json.dumps(line), flush=True)
tell(card="A card")
for work in ("one", "two", "three"):
    if work in task["done"]:
        continue
    for name in ("hangs", "dies", "works"):
        candidate = f"{work} {name}"
        if candidate in task["bad"]:
            continue
        tell(trying=candidate)
        if candidate == "two hangs":
            time.sleep(60)
        if candidate == "two dies":
            os._exit(7)
    print("not for the parent", flush=True)
    tell(row=dict(work=work, unit="TB/s", figure=4.0, figures=dict(aotc=4.0, copy=3.2),
                  ratios=dict(copy=1.25), failed=dict(aotc=2)))
"""


def _results(folder: Path, **options: Any) -> supervise.Results:
    archive = folder / "x.aotc"
    if not archive.exists():
        archive.write_bytes(b"archive")
    return supervise.Results(archive, folder / "results.json", {"area": "matmul"}, **options)


def _command(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_lost_processes_cost_one_candidate_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = _results(tmp_path)
    supervise.measure({}, results, _command(CHILD), quiet_seconds=1.0)
    assert list(results.rows) == ["one", "two", "three"]
    assert results.bad == ["two hangs", "two dies"]
    printed = capsys.readouterr().out
    assert "TB/s: aotc 4.0  copy 3.2   over copy 1.250" in printed
    assert "2 OF AOTC'S CANDIDATES FAILED" in printed
    again = _results(tmp_path)
    assert again.rows == results.rows
    assert again.bad == results.bad
    stored = json.loads((tmp_path / "results.json").read_text())
    assert (stored["area"], stored["card"]) == ("matmul", "A card")


def test_rows_of_another_archive_do_not_count(tmp_path: Path) -> None:
    results = _results(tmp_path)
    results.rows["one"] = {"work": "one"}
    results.bad.append("one hangs")
    results.write()
    assert _results(tmp_path).rows
    asked_again = _results(tmp_path, again=True)
    assert (asked_again.rows, asked_again.bad) == ({}, ["one hangs"])
    (tmp_path / "x.aotc").write_bytes(b"another")
    other = _results(tmp_path)
    assert (other.rows, other.bad) == ({}, [])


@pytest.mark.parametrize("text", ["raise SystemExit(1)", "import os; os._exit(9)"])
def test_a_process_that_fails_at_nothing_in_particular_ends_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit, match="ended with exit code"):
        supervise.measure({}, _results(tmp_path), _command(text))


def test_processes_that_are_always_lost_are_given_up(tmp_path: Path) -> None:
    text = 'import os; print(\'{"trying": "x"}\', flush=True); os._exit(5)'
    with pytest.raises(SystemExit, match="gave up"):
        supervise.measure({}, _results(tmp_path), _command(text))


def test_a_terminated_supervisor_ends_its_measuring_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    (tmp_path / "x.aotc").write_bytes(b"archive")
    code = (
        "import sys; from pathlib import Path; from benchmarks.harness import supervise\n"
        "supervise.exit_when_terminated()\n"
        f"results = supervise.Results(Path({str(tmp_path / 'x.aotc')!r}), None, {{}})\n"
        f"supervise.measure({{}}, results, [sys.executable, '-c', {child!r}])"
    )
    with subprocess.Popen(_command(code), cwd=ROOT) as supervisor:
        _wait_for(lambda: pid.exists() and pid.read_text())
        supervisor.terminate()
    assert supervisor.returncode == 128 + signal.SIGTERM
    _wait_for(lambda: not _runs(int(pid.read_text())))


def _wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Return whether a process runs; one that ended and is not waited for does not."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()
