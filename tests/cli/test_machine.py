"""`aotc doctor`, `aotc cache` and `aotc completion`: their output and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aotc.package.cache.store import FORMAT
from tests.support.command_line import ROOT

pytestmark = pytest.mark.usefixtures("one_worker")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with an entry of each kind, 1 MiB each, and a file of somebody else's."""
    folder = tmp_path / "cache"
    for name in (
        *(f"{FORMAT}/{kind}/ab/{'ab' * 32}" for kind in ("kernels", "requests", "times")),
        f"v1/kernels/cd/{'cd' * 32}",
    ):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1 << 20))
    (folder / "README").write_text("mine")
    return folder


def test_cache_info(cache: Path, run: Any) -> None:
    code, out, _ = run("cache", "info", "--cache-dir", str(cache))
    assert code == 0
    assert out.splitlines()[0] == str(cache)
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["1", "1.0", "MiB", "kernels"],
        ["1", "1.0", "MiB", "requests"],
        ["1", "1.0", "MiB", "times"],
        ["0", "0.0", "MiB", "frames"],
        ["0", "0.0", "MiB", "bundles"],
        ["1", "1.0", "MiB", "old"],
        ["0", "0.0", "MiB", "temporary"],
    ]
    _, out, _ = run("cache", "info", "--cache-dir", str(cache), "--json")
    assert json.loads(out)["bytes"] == 4 << 20


def test_cache_prune(cache: Path, run: Any) -> None:
    code, out, _ = run("cache", "prune", "--cache-dir", str(cache))
    assert (code, out) == (0, "removed 1 files, 1.0 MiB\n")
    assert not (cache / "v1").exists()
    _, out, _ = run("cache", "prune", "--cache-dir", str(cache), "--max-mib", "1", "--json")
    assert json.loads(out) == {"files": 2, "bytes": 2 << 20}


def test_cache_clear_leaves_what_is_not_its_own(cache: Path, run: Any) -> None:
    code, out, _ = run("cache", "clear", "--cache-dir", str(cache))
    assert (code, out) == (0, "removed 4 files, 4.0 MiB\n")
    assert [path.name for path in cache.iterdir()] == ["README"]


def test_a_cleared_cache_is_built_again(folder: Path, run: Any) -> None:
    run("build", "--cache-dir", "cache")
    code, out, _ = run("cache", "info", "--cache-dir", "cache", "--json")
    assert json.loads(out)["kinds"]["kernels"][0] == 2
    run("cache", "clear", "--cache-dir", "cache")
    code, _, err = run("build", "--cache-dir", "cache")
    assert code == 0
    assert "(2 compiled, 0 cached, " in err
    assert (folder / "cache").is_dir()


def test_doctor_without_a_driver(tmp_path: Path, run: Any) -> None:
    code, out, _ = run("doctor", "--driver", str(tmp_path / "none.so"), "--cache-dir", "cache")
    assert code == 0
    assert out.startswith("note     driver")
    assert "→ install the NVIDIA driver" in out


def test_doctor_with_a_bad_archive(tmp_path: Path, run: Any) -> None:
    bad = tmp_path / "bad.aotc"
    bad.write_bytes(b"no archive")
    code, out, _ = run("doctor", str(bad), "--driver", str(tmp_path / "none.so"), "--json")
    assert code == 1
    report = json.loads(out)
    assert report["ok"] is False
    problems = [
        finding["subject"] for finding in report["findings"] if finding["state"] == "problem"
    ]
    assert problems == ["driver", str(bad)]
    assert all(finding["remedy"] for finding in report["findings"] if finding["state"] == "problem")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, run: Any) -> None:
    code, out, _ = run("completion", shell)
    assert code == 0
    assert "_AOTC_COMPLETE" in out
    if (executable := shutil.which(shell)) is not None:  # the shell accepts the script
        subprocess.run([executable, "-n"], input=out, text=True, check=True)


def test_what_is_completed() -> None:
    words = {"COMP_WORDS": "aotc cache p", "COMP_CWORD": "2", "_AOTC_COMPLETE": "bash_complete"}
    process = subprocess.run(
        [sys.executable, "-m", "aotc"],
        env={**os.environ, **words, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout == "plain,prune\n"
