"""`aotc replay`: a program and its child processes launch from archives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ASKS = (
    "import json, os, sys, ops\n"
    "print(json.dumps([sys.argv, type(ops.add).__module__, type(ops.add).__name__,"
    " any(one.endswith('hook') for one in sys.path)]))\n"
)
LAUNCHER = ["triton.runtime.jit", "JITFunction", False]


@pytest.fixture
def replay(run_program: Any, project: Path) -> Any:
    def replay(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        archive = ("--archive", str(project / "dist" / "ops.aotc"), "--stand-in")
        return run_program("-m", "aotc", "replay", *archive, "--", *words, **options)

    return replay


def told(ran: subprocess.CompletedProcess[str]) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_scripts_modules_and_programs_run(replay: Any, tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(ASKS)
    path = (str(tmp_path),)
    assert told(replay(str(script), "--flag")) == [[str(script), "--flag"], *LAUNCHER]
    assert told(replay("-m", "app", "a", path=path))[1:] == LAUNCHER
    assert told(replay(sys.executable, "-c", ASKS, "b"))[0] == ["-c", "b"]


def test_child_processes_launch_from_archives_too(replay: Any) -> None:
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ASKS!r}], check=True)"
    assert told(replay(sys.executable, "-c", child))[1:] == LAUNCHER


def test_the_exit_code_is_the_programs(replay: Any) -> None:
    assert replay(sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_the_environments_own_sitecustomize_runs(replay: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.own = True\n")
    ran = replay(sys.executable, "-c", "print(own)", path=(str(tmp_path),))
    assert ran.stdout == "True\n", ran.stderr


def test_archives_are_found_where_record_and_build_put_them(
    run_program: Any, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "dist").mkdir()
    for name in ("ops.aotc", "ops.sources.json"):
        target = tmp_path / "dist" / name.replace("ops", "record")
        shutil.copy(project / "dist" / name, target)
    ran = run_program(
        "-m", "aotc", "replay", "--stand-in", "--", sys.executable, "-c", ASKS, cwd=tmp_path
    )
    assert told(ran)[1:] == LAUNCHER


def test_mistakes_show_no_traceback(run_program: Any, project: Path, tmp_path: Path) -> None:
    archive = str(project / "dist" / "ops.aotc")
    shutil.copy(archive, tmp_path / "alone.aotc")
    (tmp_path / "other.aotc").write_text("an archive it is not")
    python = (sys.executable, "-c", "")
    for words, code, expected in [
        (("-a", "no.aotc", "--", *python), 1, "expected an archive, there is no no.aotc"),
        (("-a", str(tmp_path / "other.aotc"), "--", *python), 1, "error: "),
        (("-a", str(tmp_path / "alone.aotc"), "--", *python), 1, "alone.sources.json is missing"),
        (("-a", archive, "--no-strict", "--", *python), 1, "Triton is not installed"),
        (("-a", archive, "--", "no-such-command"), 1, "cannot run 'no-such-command'"),
        (("-a", archive), 2, "expected -- COMMAND…"),
    ]:
        ran = run_program("-m", "aotc", "replay", "--stand-in", *words, cwd=tmp_path)
        assert ran.returncode == code, ran.stderr
        assert expected in ran.stderr
        assert "Traceback" not in ran.stderr
        assert "Fatal" not in ran.stderr


def test_a_python_without_aotc_is_named(project: Path, tmp_path: Path) -> None:
    """Such as the program's own, in another environment than aotc's."""
    (tmp_path / "aotc.py").write_text("")
    hook = Path(__file__).parents[2] / "aotc" / "triton" / "hook"
    words = {"archives": [str(project / "dist" / "ops.aotc")]}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(hook), str(tmp_path)]),
        "AOTC_REPLAY": json.dumps(words),
    }
    ran = subprocess.run(
        [sys.executable, "-c", ""], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"error: {sys.executable} cannot import aotc: ")
    assert "install aotc-runtime there" in ran.stderr


def test_the_older_command_names_this_one(run_program: Any) -> None:
    ran = run_program("-m", "aotc.triton", "--help")
    assert "aotc replay --archive FILE -- python app.py" in " ".join(ran.stdout.split())
