"""A build reports once the globals and environment variables it read."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc import cli

SOURCE = """
import os
import triton
import triton.language as tl

BLOCK = 128
FAST = os.environ.get("FAST", "0") == "1"
NAMED = tl.constexpr(2)


@triton.jit
def k(x, W: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if FAST:
        i += NAMED
    tl.store(x + i, i + NAMED)
"""
MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]

[[kernel]]
source = "k.py:k"
signature = { x = "*i32" }
choices = { W = [1, 2] }
"""


@pytest.mark.usefixtures("one_worker")
def test_values_are_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.py").write_text(SOURCE)
    Path("kernels.toml").write_text(MANIFEST)
    for _ in range(2):  # compiled, then from the cache
        assert cli.run(["build", "--cache-dir", "cache", "-j", "1"]) == cli.EXIT_DONE
        lines = capsys.readouterr().err.splitlines()
        noted = [line for line in lines if line.startswith("note: ")]
        assert len(noted) == 1
        for value in ("os.environ['FAST'] = unset", "BLOCK = 128", "FAST = False"):
            assert value in noted[0]
        assert "NAMED" not in noted[0]
    Path("k.py").write_text(SOURCE.replace("BLOCK = 128", "BLOCK = tl.constexpr(128)"))
    assert cli.run(["build", "--cache-dir", "cache", "-j", "1", "-v"]) == cli.EXIT_DONE
    err = capsys.readouterr().err
    assert "note: fixed" not in err
    assert "k.py:14:5: FAST is read as False; Triton asks for tl.constexpr(False)" in err
    assert "BLOCK" not in err
