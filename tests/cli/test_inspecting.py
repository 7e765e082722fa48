"""`aotc dump` and `aotc explain`: stages written, edited and read; guesses for a source."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import compile_variant
from tests.support.command_line import ROOT

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)

@triton.jit
def open_ended(x_ptr, *rest):
    pass
"""
SETTINGS = ["--set", "x_ptr=*fp32:16", "--set", "y_ptr=*fp32:16", "--set", "n=i32"]
SETTINGS += ["--set", "factor=fp32", "--set", "BLOCK=256"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(SOURCE)
    return tmp_path


def dump(run: Any, subject: str, stage: str, *args: str) -> str:
    code, out, err = run("dump", subject, "--stage", stage, *args)
    assert code == 0, err
    return out


@pytest.mark.parametrize("stage", ["tile", "gpu", "llvm", "ptx"])
def test_an_edited_stage_is_gone_on_from(folder: Path, run: Any, stage: str) -> None:
    assert dump(run, "k.py:scale", stage, "-o", f"out/k.{stage}", *SETTINGS) == ""
    path = folder / "out" / f"k.{stage}"
    ptx = dump(run, "k.py:scale", "ptx", *SETTINGS)
    if stage != "ptx":
        assert dump(run, str(path), "ptx", "--target", "sm_90a") == ptx
    before = dump(run, str(path), "sass")
    for right, wrong in (("arith.mul", "arith.add"), ("fmul", "fadd"), ("mul.f32", "add.f32")):
        path.write_text(path.read_text().replace(right, wrong))
    after = dump(run, str(path), "sass")
    assert "FMUL" in before
    assert "FMUL" not in after
    assert "FADD" in after


def test_a_cubin_is_bytes(folder: Path, run: Any) -> None:
    dump(run, "k.py:scale", "cubin", "-o", "k.cubin", *SETTINGS)
    assert (folder / "k.cubin").read_bytes()[:4] == b"\x7fELF"
    command = [sys.executable, "-m", "aotc", "dump", "k.py:scale", "--stage", "cubin", *SETTINGS]
    piped = subprocess.run(
        command, env={"PATH": "", "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    assert piped.stdout == (folder / "k.cubin").read_bytes()
    assert ".nv.info" in dump(run, "k.py:scale", "sections", *SETTINGS)


@pytest.mark.parametrize(
    ("stage", "right", "wrong", "report"),
    [
        ("ptx", "st.global", "st.globe", "k.ptx:"),
        ("llvm", "fmul", "fmull", "expected llvm of a kernel"),
        ("gpu", "arith.mul", "arith.mull", "k.gpu:"),
        ("tile", "tile.load", "tile.lode", "k.tile:"),
    ],
)
def test_a_mistake_in_a_stage_is_the_users(
    folder: Path, run: Any, stage: str, right: str, wrong: str, report: str
) -> None:
    dump(run, "k.py:scale", stage, "-o", f"k.{stage}", *SETTINGS)
    path = folder / f"k.{stage}"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    code, out, err = run("dump", str(path.name), "--stage", "sass")
    assert (code, out) == (1, "")
    assert report in err
    assert "internal error" not in err


def test_only_later_stages_follow(folder: Path, run: Any) -> None:
    (folder / "k.ptx").write_text(".version 8.8\n.target sm_80\n")
    code, _, err = run("dump", "k.ptx", "--stage", "gpu")
    assert (code, err) == (
        1, "error: expected a stage after ptx, got gpu\n  help: after it come sass, sections, cubin\n"
    )  # fmt: skip
    assert "cannot read none.llvm" in run("dump", "none.llvm", "--stage", "ptx")[2]
    (folder / "k.gpu").write_bytes(b"\xff")
    assert "k.gpu is not UTF-8" in run("dump", "k.gpu", "--stage", "ptx")[2]
    code, _, err = run("dump", "k.ptx", "--stage", "sass", "--set", "BLOCK=1")
    assert code == 1
    assert "expected a config key, got 'BLOCK'" in err


def test_a_source_alone_is_explained_with_guesses(folder: Path, run: Any) -> None:
    code, out, err = run("explain", "k.py:scale")
    assert code == 0
    assert "note: guessed: n = " in err
    assert "help: set others with --set, or write a manifest: aotc init" in err
    assert out.startswith("scale for sm_90a: num_warps=4")
    code, out, err = run("explain", "k.py:scale", "--set", "BLOCK=512", "--target", "sm_80")
    assert (code, out.splitlines()[0]) == (0, "scale for sm_80: num_warps=4 num_stages=3 BLOCK=512")
    assert "guessed: BLOCK" not in err
    assert run("explain", "k.py:scale", *SETTINGS)[2] == ""
    assert run("explain", "k.py:scale", "-q")[2] == ""


def test_a_function_that_is_no_kernel_is_not_guessed(folder: Path, run: Any) -> None:
    text = "\n@triton.jit\ndef twice(x, N: tl.constexpr):\n    return x * N\n"
    (folder / "k.py").write_text(SOURCE + text)
    code, out, err = run("dump", "k.py:twice", "--stage", "ptx")
    assert (code, out) == (1, "")
    assert "expected a type for argument 'x' of twice" in err
    assert "help: add --set 'x=*fp32:16'" in err
    err = run("dump", "k.py:twice", "--stage", "ptx", "--set", "x=fp32")[2]
    assert "expected a value for the tl.constexpr parameter 'N'" in err


def test_a_variadic_parameter_is_named(folder: Path, run: Any) -> None:
    code, _, err = run("explain", "k.py:open_ended", "--set", "x_ptr=*fp32")
    assert code == 1
    assert "a kernel cannot have `*` or `**` parameters, got `*rest`" in err
    assert err.startswith("k.py:10:24: ")


def test_a_file_without_a_kernel_lists_its_kernels(folder: Path, run: Any) -> None:
    code, _, err = run("explain", "k.py")
    assert code == 1
    assert "  help: its kernels: k.py:scale, k.py:open_ended\n" in err


MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:scale"
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
n = "i32"
factor = "fp32"
[kernel.constants]
BLOCK = 256
[kernel.configs]
num_warps = [2, 4]
"""


@pytest.fixture
def build(capsys: pytest.CaptureFixture[str]) -> Any:
    """Build with the real compiler, and return exit code and standard error."""

    def build(*args: str) -> tuple[int, str]:
        code = cli.run(["build", "--cache-dir", "cache", "-j", "1", *args], compile_variant)
        return code, capsys.readouterr().err

    return build


@pytest.mark.parametrize("stage", ["tile", "gpu", "llvm", "ptx"])
def test_a_build_takes_an_edited_stage_for_one_variant(
    folder: Path, run: Any, build: Any, stage: str
) -> None:
    (folder / "kernels.toml").write_text(MANIFEST)
    assert build()[0] == 0
    args = ("--variant", "num_warps=4")
    before = [dump(run, "dist/demo.aotc", "sass", "--variant", f"num_warps={w}") for w in (2, 4)]
    dump(run, "kernels.toml:scale", stage, "--set", "num_warps=4", "-o", f"k.{stage}")
    path = folder / f"k.{stage}"
    path.write_text(_edited(path.read_text(), stage))
    code, err = build("--from", path.name, *args)
    assert code == 0, err
    assert (
        f"warning: scale sm_90a num_warps=4 is compiled from k.{stage}, not from its source" in err
    )
    assert "(1 compiled, 1 cached, " in err
    after = [dump(run, "dist/demo.aotc", "sass", "--variant", f"num_warps={w}") for w in (2, 4)]
    assert after[0] == before[0]
    assert "FMUL" in before[1]
    assert "FMUL" not in after[1]
    remarks = run("explain", "dist/demo.aotc", *args)[1]
    assert f"k.{stage}: compiled from this {stage}, edited by hand" in remarks
    assert "(0 compiled, 2 cached, " in build()[1]


def _edited(text: str, stage: str) -> str:
    """Return a stage that adds where it multiplied floats."""
    if stage in ("tile", "gpu"):
        lines = text.split("\n")
        changed = [
            line.replace("arith.mul", "arith.add") if "fp32" in line and "tile<" in line else line
            for line in lines
        ]
        assert changed != lines
        return "\n".join(changed)
    word = {"llvm": ("fmul", "fadd"), "ptx": ("mul.f32", "add.f32")}[stage]
    assert word[0] in text
    return text.replace(*word)


def test_a_mistake_in_an_edited_stage_of_a_build(folder: Path, run: Any, build: Any) -> None:
    (folder / "kernels.toml").write_text(MANIFEST)
    dump(run, "kernels.toml:scale", "tile", "-o", "k.tile")
    text = (folder / "k.tile").read_text()
    (folder / "k.tile").write_text(re.sub(r"%n\b", "%m", text))
    code, err = build("--from", "k.tile", "--variant", "num_warps=2")
    assert code == 1
    assert (
        "k.tile:1:1: error: expected @scale(x_ptr: *fp32, y_ptr: *fp32, n: i32, factor: fp32), got"
        in err
    )
    code, err = build("--from", "k.tile")
    assert code == 1
    assert "expected one variant of kernels.toml, got 2" in err
    dump(run, "kernels.toml:scale", "ptx", "--set", "num_warps=2", "-o", "k.ptx")
    text = (folder / "k.ptx").read_text()
    (folder / "k.ptx").write_text(
        text.replace(".param .f32 scale_param_3", ".param .f64 scale_param_3")
    )
    code, err = build("--from", "k.ptx", "--variant", "num_warps=2")
    assert (code, "internal error" in err) == (1, False)
    (folder / "k.ptx").write_text(text.replace("ld.global", "ld.globe"))
    code, err = build("--from", "k.ptx", "--variant", "num_warps=2")
    assert code == 1
    assert "k.ptx:" in err
    assert "error: expected ptx of a kernel: " in err
    assert build("--from", "k.py")[1].startswith("error: expected a stage (FILE.tile, FILE.gpu, ")
    assert build("--variant", "a")[0] == cli.EXIT_USAGE
