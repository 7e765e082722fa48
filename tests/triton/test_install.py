"""Installing archives: with Triton, without it, from the command line, and errors."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

import aotc.triton
from aotc import cli
from tests.support.fake_gpu import ROOT

pytestmark = pytest.mark.usefixtures("one_worker")

TRITON = str(ROOT / "tests" / "support" / "triton_stand_in")


TAKEN_OVER = """
import os
install({words})
import triton
assert "triton_stand_in" in triton.__file__
import simple
launched(lambda: simple.copy[(4,)](x, y, 1024, BLOCK=64, num_warps=2))
launched(lambda: simple.tuned[lambda meta: (meta["BLOCK"],)](x, y, 1024))
launched(lambda: simple.copy[(4,)]("*fp32", "*fp32", 1024, BLOCK=32))
"""
# The fake Triton's form: no heuristics, and compiles take types, not tensors.
SIMPLE = """
import triton
import triton.language as tl

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)

tuned = triton.autotune([triton.Config({"BLOCK": b}, num_warps=2) for b in (32, 64, 128)], key=["n"])(copy)
"""
MANIFEST = """
[package]
name = "ops"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "simple.py:copy"
signature = { x = "*fp32", y = "*fp32", n = "i32" }
config = [{ BLOCK = 64, num_warps = 2 }]
"""


@pytest.fixture(scope="session")
def simple(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like `project`, with a kernel the fake Triton can launch."""
    folder = tmp_path_factory.mktemp("simple")
    (folder / "simple.py").write_text(SIMPLE)
    (folder / "kernels.toml").write_text(MANIFEST)
    arguments = ["build", str(folder / "kernels.toml"), "-o", str(folder / "dist"), "-j", "1"]
    assert cli.run([*arguments, "--no-cache"]) == 0
    shutil.copy(project / "libcuda.so.1", folder)
    return folder


def test_launches_of_triton_are_taken_over(launches: Any, simple: Path) -> None:
    body = TAKEN_OVER.format(words="")
    plain, tuned, missing = launches(body, path=(TRITON, str(simple)), folder=simple)
    assert plain == [[4, 1, 1], 64]
    assert tuned == [[64, 1, 1], 64]
    assert missing[0] == "NotInArchiveError"


def test_what_is_recorded_runs_from_its_archive(
    launches: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a program with Triton to the same launches without it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recorded.py").write_text(RECORDED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([TRITON, str(tmp_path)]))
    program = "import recorded; recorded.run('*fp32', 1000); recorded.run('*fp32', 64, '*fp32')"
    assert cli.run(["record", "-o", "ops", "--", sys.executable, "-c", program]) == 0
    assert cli.run(["build", "ops/kernels.toml", "--no-cache", "-j", "1"]) == 0
    shutil.copy(project / "libcuda.so.1", tmp_path)
    body = """
install(stand_in=True)
import recorded
launched(lambda: recorded.run(x, 1000))
launched(lambda: recorded.run(x, 64, y))
launched(lambda: recorded.run(x, 64))
launched(lambda: recorded.run(half, 64))
"""
    *fits, aligned, other = launches(body, path=(str(tmp_path),), folder=tmp_path)
    assert fits == [[[1, 1, 1], 256], [[1, 1, 1], 256]]
    # Aligned to more than recorded: the kernel with fewer promises takes it.
    assert aligned == [[1, 1, 1], 256]
    assert other[0] == "NotInArchiveError"


RECORDED = """
import triton
import triton.language as tl

@triton.autotune(
    [triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)],
    key=["n"],
)
@triton.jit
def add(x, bias, n, stride, BLOCK: tl.constexpr, ACT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at * stride, mask=at < n)
    if bias is not None:
        v += tl.load(bias)
    tl.store(x + at, v, mask=at < n)

def run(x, n, bias=None):
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    add[grid](x, bias, n, 1, ACT="silu")
"""


def test_what_is_missing_is_compiled_and_recorded(
    launches: Any, simple: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton runs launches missing from the archives, and `aotc record` makes a manifest of them."""
    body = TAKEN_OVER.format(words=f"strict=False, record={str(tmp_path / 'misses')!r}")
    outcomes = launches(body, path=(TRITON, str(simple)), folder=simple)
    assert outcomes == [[[4, 1, 1], 64], [[64, 1, 1], 64], None]
    monkeypatch.chdir(tmp_path)
    assert cli.run(["record", "-o", "misses", "--", sys.executable, "-c", ""]) == 0
    (kernel,) = tomli.loads((tmp_path / "misses" / "kernels.toml").read_text())["kernel"]
    assert kernel["source"].endswith("simple.py:copy")
    assert kernel["constants"] == {"BLOCK": 32}


def test_the_command_line_runs_a_program_as_python_does(
    run_program: Any, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    (tmp_path / "app.py").write_text(
        "import sys, beside, ops\n"
        "print([__name__, sys.argv, sys.path[0] == sys.argv[1], beside.name, type(ops.add).__name__])\n"
    )
    archive = ("--archive", str(project / "dist" / "ops.aotc"), "--stand-in")
    program = (str(tmp_path / "app.py"), str(tmp_path), "--flag")
    ran = run_program("-m", "aotc.triton", *archive, "--", *program)
    assert ran.returncode == 0, ran.stderr
    output = ran.stdout.replace("'", '"').replace("True", "true")
    assert json.loads(output) == ["__main__", [*program], True, "beside", "JITFunction"]


def test_a_module_is_run_too(run_program: Any, project: Path, tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import sys, ops\nprint(sys.argv[1:], __name__)\n")
    archive = ("--archive", str(project / "dist" / "ops.aotc"), "--stand-in")
    words = ("-m", "aotc.triton", *archive, "--", "-m", "tool", "a")
    ran = run_program(*words, path=(str(tmp_path),))
    assert (ran.returncode, ran.stdout) == (0, "['a'] __main__\n"), ran.stderr


def test_mistakes_on_the_command_line_show_no_traceback(
    run_program: Any, project: Path, tmp_path: Path
) -> None:
    archive, program = str(project / "dist" / "ops.aotc"), tmp_path / "app.py"
    program.write_text("")
    shutil.copy(archive, tmp_path / "alone.aotc")
    for words, code, expected in [
        (("nothing.aotc", "--", str(program)), 1, "error: nothing.aotc: open: expected a file"),
        ((str(program), "--", str(program)), 1, "expected an archive, got"),
        ((str(tmp_path / "alone.aotc"), "--", str(program)), 1, "alone.sources.json is missing"),
        ((archive, "--", "no.py"), 2, "expected a program, there is no no.py"),
        ((archive,), 2, "expected a program, as in: -- app.py"),
    ]:
        ran = run_program("-m", "aotc.triton", "--stand-in", "--archive", *words)
        assert ran.returncode == code, ran.stderr
        assert expected in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (None, "ops.sources.json is missing"),
        ({"archive_sha256": "0"}, "was written for another archive"),
        ({"version": 99}, "expected version 1, got 99"),
    ],
)
def test_an_archive_whose_sources_are_not_known_is_refused(
    sources: dict[str, Any] | None,
    expected: str,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [module for module in sys.modules if module.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)  # another test may have imported it
    shutil.copy(project / "dist" / "ops.aotc", tmp_path)
    if sources is not None:
        right = json.loads((project / "dist" / "ops.sources.json").read_text())
        (tmp_path / "ops.sources.json").write_text(json.dumps({**right, **sources}))
    with pytest.raises(ValueError, match=expected):
        aotc.triton.install(tmp_path / "ops.aotc", stand_in=True)
    assert "triton" not in sys.modules


def test_without_triton_nothing_can_be_compiled(project: Path) -> None:
    with pytest.raises(ValueError, match="Triton is not installed"):
        aotc.triton.install(project / "dist" / "ops.aotc", strict=False, stand_in=True)
