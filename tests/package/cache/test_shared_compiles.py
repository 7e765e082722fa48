"""Builds with other options share the compiles of a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import compile_variant
from aotc.package.archive import file as archives
from aotc.stages import disassemble

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)
"""
MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_80"]
[[kernel]]
source = "k.py:scale"
[kernel.signature]
x_ptr = "*fp32:16"
n = "i32"
[kernel.constants]
BLOCK = 256
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Build with options, and return the number of compiles and the archive's only variant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)

    def build(*options: str) -> Any:
        command = ["build", "--cache-dir", "cache", "-j", "1", "--json", *options]
        assert cli.run(command, compile_variant) == 0
        compiled = json.loads(capsys.readouterr().out)["compiled"]
        (kernel,) = archives.read(Path("dist/demo.aotc")).kernels
        return compiled, kernel.variants[0]

    return build


def test_a_build_without_lines_shares_compiles_with_one_with_them(build: Any) -> None:
    compiled, plain = build()
    assert compiled == 1
    compiled, bare = build("--no-lineinfo")
    assert compiled == 0
    assert "//## File" in disassemble(plain.cubin, "lines")
    assert "//## File" not in disassemble(bare.cubin, "lines")
    assert disassemble(bare.cubin) == disassemble(plain.cubin)
    assert b"k.py" not in bare.cubin
    assert build() == (0, plain)


def test_a_plain_build_takes_compiles_of_one_with_ptx(build: Any, capsys: Any) -> None:
    compiled, kept = build("--with-ptx")
    assert (compiled, bool(kept.ptx)) == (1, True)
    assert cli.run(["build", "--cache-dir", "cache", "--plan", "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["cached"] == 1
    compiled, plain = build()
    assert (compiled, plain.ptx, plain.cubin) == (0, None, kept.cubin)
    assert build("--no-lineinfo")[0] == 0
