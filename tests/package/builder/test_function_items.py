"""Functions and empty tuples among the items of a tuple, in a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, EXIT_WRONG, run

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def mul(x, a):
    return x * a


@triton.jit
def k(o, f):
    tl.store(o, f.fn(tl.load(o), f.a))
"""
MANIFEST = """
[package]
name = "functions"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "k.py:k"
signature = { o = "*T", f = "(fn: NAME, a: T)" }
types = { T = ["fp32", "i32"] }
"""


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mul", ""),
        ("missing", "the type of f_fn must be like"),
        ("k.py:mul", ""),
        ("float", "expected a dtype or a type variable, got 'float'"),
        ("mul, b: ()", "expected no empty tuple in another, got '(fn: mul, b: (), a: T)'"),
    ],
)
def test_manifest(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.py").write_text(SOURCE)
    Path("kernels.toml").write_text(MANIFEST.replace("NAME", name))
    code = run(["build", "-j", "1", "--no-cache"])
    assert code == (EXIT_WRONG if message else EXIT_DONE)
    assert message in capsys.readouterr().err
    if not message:
        header = Path("dist/functions.h").read_text()
        assert "f_a" in header
        assert "f_fn" not in header
