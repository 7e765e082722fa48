"""The options for more than one machine: plans, a cache at a URL, workers of Dask."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


def test_a_plan_builds_nothing(folder: Path, run: Run) -> None:
    code, out, _ = run("build", "--plan", "--cache-dir", "cache", "-j", "3")
    assert code == 0
    assert out.splitlines()[0].split() == [
        *("kernel", "variants", "cached", "compile", "seconds", "factors")
    ]
    assert "guessed, since nothing was measured yet" in out
    assert not (folder / "dist").exists()
    assert run("build", "--cache-dir", "cache")[0] == 0
    code, out, _ = run("build", "--plan", "--cache-dir", "cache", "--json", "-j", "3")
    build_plan = json.loads(out)
    assert (code, build_plan["compiles"]) == (0, 0)
    assert build_plan["cached"] == build_plan["variants"] > 0
    assert "3" in build_plan["seconds"]


def test_a_plan_of_a_wrong_manifest_says_what_is_wrong(folder: Path, run: Run) -> None:
    (folder / "kernels.toml").write_text("[package]\n")
    code, out, err = run("build", "--plan")
    assert (code, out) == (1, "")
    assert err.startswith("kernels.toml:1:2: error: ")


def test_a_cache_at_a_url_serves_another_folder(folder: Path, run: Run) -> None:
    pytest.importorskip("fsspec")
    url = f"file://{folder}/far"
    shared = ("build", "--json", "--cache-url", url)
    first = json.loads(run(*shared, "--cache-dir", "a")[1])
    files = {path: path.read_bytes() for path in (folder / "dist").iterdir()}
    second = json.loads(run(*shared, "--cache-dir", "b", "--cache-read-only")[1])
    assert (first["cached"], second["compiled"]) == (0, 0)
    assert first["compiled"] == second["cached"] > 0
    assert first["warnings"] == second["warnings"] == []
    assert {path: path.read_bytes() for path in (folder / "dist").iterdir()} == files


def test_the_folder_in_front_is_bounded(folder: Path, run: Run) -> None:
    assert run("build", "--cache-dir", "cache", "--cache-max-mib", "0")[0] == 0
    assert not [path for path in (folder / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("build", "--cache-read-only"), "--cache-read-only is about a --cache-url"),
        (("build", "--no-cache", "--cache-url", "file:///x"), "contradict each other"),
        (("verify", "--device", "--dask", "local"), "--device is this machine's GPU"),
    ],
)
def test_contradictions_are_usage_errors(
    folder: Path, run: Run, options: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert message in err


def test_a_missing_extra_is_said(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, out, err = run("build", "--dask", "tcp://x:1")
    assert (code, out) == (1, "")
    assert "help: pip install 'aotc[dask]'" in err
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    code, _, err = run("build", "--cache-url", "s3://x/y")
    assert code == 1
    assert "help: pip install 'aotc[cache]'" in err


def test_a_build_on_dask_is_the_build_here(folder: Path, run: Run) -> None:
    pytest.importorskip("distributed")
    code, out, err = run("build", "--no-cache", "--json", "--dask", "local", "-j", "1")
    report = json.loads(out)
    assert (code, err, report["errors"]) == (0, "", [])
    assert {ran["worker"].partition(":")[0] for ran in report["ran"]} == {"tcp"}
    assert len(report["ran"]) == report["compiled"] > 0
    files = {path: path.read_bytes() for path in (folder / "dist").iterdir()}
    assert run("build", "--no-cache", "-j", "1")[0] == 0
    assert {path: path.read_bytes() for path in (folder / "dist").iterdir()} == files
