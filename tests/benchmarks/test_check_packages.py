"""The table of packages' kernels supported by `aotc check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.check_packages import main, version_of

KERNELS = """\
import triton
import triton.language as tl
import elsewhere

@triton.autotune(configs=[triton.Config({"B": 64})], key=[])
@triton.jit
def good(x, B: tl.constexpr): tl.store(x, 1)

@triton.autotune(configs=elsewhere.configs(), key=[])
@triton.jit
def sometimes(x, B: tl.constexpr):
    if B > 64:
        tl.expect_zero(x)

@triton.jit
def bad(x): tl.async_task(x)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name / name).mkdir(parents=True)
    (tmp_path / "one" / "one" / "ops.py").write_text(KERNELS)
    (tmp_path / "one" / "one-1.5.dist-info").mkdir()
    (tmp_path / "one" / "one-1.5.dist-info" / "METADATA").write_text("Name: one\nVersion: 1.5\n\n")
    (tmp_path / "two" / "two" / "_version.py").write_text("__version__ = version = '0.2.dev1'\n")
    return tmp_path


def test_a_table(
    packages: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report_path = packages / "found.json"
    monkeypatch.setattr(
        "sys.argv", ["check_packages.py", str(packages), "--json", str(report_path)]
    )
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| one | 1.5 | 1 | 3 | 2 (66.7 %) | 1 (33.3 %) | 1 of 2 | ")
    assert lines[3].startswith("| two | 0.2.dev1 | 1 | 0 | – | – | 0 of 0 | ")
    assert lines[4].startswith("| all |  | 2 | 3 | 2 (66.7 %) | 1 (33.3 %) | 1 of 2 | ")
    assert {"| 1 | tl.async_task |", "| 1 | tl.expect_zero |"} < set(lines)
    document = json.loads(report_path.read_text())
    assert [package["strict"] for package in document["packages"]] == [1, 0]
    assert document["features"] == {"tl.async_task": 1, "tl.expect_zero": 1}


def test_only_some(
    packages: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["check_packages.py", str(packages), "--packages", "two"])
    assert main() == 0
    assert "| one |" not in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["check_packages.py", str(packages), "--packages", "three"])
    assert main() == 1


def test_no_version_is_a_dash(tmp_path: Path) -> None:
    assert version_of(tmp_path) == "–"
