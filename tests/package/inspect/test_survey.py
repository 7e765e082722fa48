"""Kernels of files and folders, with the features of all functions they call."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import CompileError
from aotc.package.inspect.survey import Checked, check, describe, summary, text

KERNELS = """\
import triton
import triton.language as tl
from .helpers import helper

@triton.jit
def good(x): tl.store(x, 1)

@triton.jit
def bad(x):
    helper(x)
    tl.async_task(x)

@triton.jit
def choosing(x, WIDE: tl.constexpr):
    if WIDE:
        tl.expect_zero(x)
"""
HELPERS = """\
import triton
import triton.language as tl

@triton.jit
def helper(x): return inner(x)

@triton.jit
def inner(x): return tl.extern_elementwise(x)

@triton.jit
def recursive(x): recursive(x)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pkg"
    (folder / ".hidden").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "notes.txt").write_text("import triton; @triton.jit")
    (folder / ".hidden" / "more.py").write_text(KERNELS)
    return folder


def found(checked: Checked) -> dict[str, list[tuple[str, str, int]]]:
    return {
        kernel.name: [(refusal.feature, refusal.file, refusal.line) for refusal in kernel.missing]
        for kernel in checked.kernels
    }


def test_helpers_count_for_the_kernels_that_reach_them(package: Path) -> None:
    checked = check(["pkg"], "sm_90a", 1)
    assert found(checked) == {
        "recursive": [],
        "good": [],
        "bad": [
            ("tl.extern_elementwise", "pkg/helpers.py", 8),
            ("tl.async_task", "pkg/kernels.py", 11),
        ],
        "choosing": [("tl.expect_zero", "pkg/kernels.py", 16)],
    }
    assert [kernel.name for kernel in checked.kernels if not kernel.is_supported] == ["bad"]
    assert checked.features == {"tl.async_task": 1, "tl.expect_zero": 1, "tl.extern_elementwise": 1}
    assert checked.num_files == 3
    assert not checked.is_right


def test_one_file_brings_its_imports_but_not_their_kernels(package: Path) -> None:
    assert list(found(check(["pkg/kernels.py"], "sm_90a", 1))) == ["good", "bad", "choosing"]
    absolute = check([str(package / "kernels.py"), "pkg/kernels.py"], "sm_90a", 1)
    assert len(absolute.kernels) == 3


def test_a_launched_function_is_a_kernel_although_another_calls_it(package: Path) -> None:
    (package / "helpers.py").write_text(HELPERS + "\ndef run(x): inner[(1,)](x)\n")
    assert "inner" in found(check(["pkg"], "sm_90a", 1))


def test_the_number_of_processes_does_not_matter(package: Path) -> None:
    for number in range(40):
        (package / f"k{number:02}.py").write_text(KERNELS)
    (package / "k07.py").write_text("import triton\n@triton.jit\ndef k(:")
    sequential, parallel = (describe(check(["pkg"], "sm_90a", jobs)) for jobs in (1, 2))
    assert sequential == parallel
    assert len(sequential["kernels"]) == 1 + 3 * 40
    assert sequential["features"]["tl.extern_elementwise"] == 40


def test_what_is_not_python_is_said(package: Path) -> None:
    (package / "broken.py").write_text("import triton\n@triton.jit\ndef k(:")
    checked = check(["pkg"], "sm_90a", 1)
    assert len(checked.unread) == 1
    assert "pkg/broken.py:3:7: error: invalid Python syntax" in checked.unread[0]
    assert len(checked.kernels) == 4


def test_a_path_that_is_not_there(package: Path) -> None:
    with pytest.raises(CompileError, match="cannot read nowhere: there is no such file or folder"):
        check(["pkg", "nowhere"], "sm_90a", 1)


def test_nothing_is_executed(package: Path) -> None:
    (package / "kernels.py").write_text("open('ran', 'w')\n" + KERNELS)
    check(["pkg"], "sm_90a", 1)
    assert not Path("ran").exists()


def test_text_and_summary(package: Path) -> None:
    checked = check(["pkg"], "sm_90a", 1)
    assert text(checked).splitlines() == [
        "pkg/helpers.py:8: aotc does not have tl.extern_elementwise yet (in bad)",
        "pkg/kernels.py:11: aotc does not have tl.async_task yet (in bad)",
        "pkg/kernels.py:16: aotc does not have tl.expect_zero yet (in choosing; only if WIDE)",
        "",
        "kernels  feature",
        "      1  tl.async_task",
        "      1  tl.expect_zero",
        "      1  tl.extern_elementwise",
    ]
    assert summary(checked, 0.25) == (
        "3 of 4 kernels supported (75.0 %), 1 of them for some constants only, in 3 files (0.2 s)"
    )
    assert text(check(["pkg/__init__.py"], "sm_90a", 1)) == ""
    assert summary(check(["pkg/__init__.py"], "sm_90a", 1), 1) == "no kernels in 1 file (1.0 s)"


def test_the_target_decides_what_modules_ask_of_it(package: Path) -> None:
    (package / "kernels.py").write_text(
        "import torch, triton\nimport triton.language as tl\n"
        "HOPPER = tl.constexpr(torch.cuda.get_device_capability() >= (9, 0))\n"
        "@triton.jit\ndef k(x):\n    if HOPPER:\n        tl.async_task(x)\n"
    )
    supported = {
        target: check(["pkg/kernels.py"], target, 1).is_right for target in ("sm_80", "sm_90a")
    }
    assert supported == {"sm_80": True, "sm_90a": False}


MADE = """
import triton, triton.language as tl
from lib import pointwise
@pointwise(promotion=[(0, "DEFAULT")])
@triton.jit
def add(x, y): return x + y
@pointwise
@triton.jit
def neg(x): return -x
@triton.jit
def helper(x): return x + 1
"""


def test_kernels_that_decorators_make_are_counted(package: Path) -> None:
    (package / "made.py").write_text(MADE)
    checked = check(["pkg/made.py"], "sm_90a", 1)
    assert checked.kernels == []
    assert [(one.line, one.name, one.maker) for one in checked.unnamed] == [
        (6, "add", "@pointwise"),
        (9, "neg", "@pointwise"),
    ]
    assert text(checked) == (
        "pkg/made.py:6: @pointwise makes kernels of add, neg when a program runs; "
        "`aotc record -- COMMAND` sees them"
    )
    assert summary(checked, 1) == "no kernels, 2 not named in 1 file (1.0 s)"
    assert [one["function"] for one in describe(checked)["unnamed"]] == ["add", "neg"]
    assert checked.is_right
    assert not checked.is_whole


def test_a_decorated_kernel_that_returns_nothing_has_its_name(package: Path) -> None:
    (package / "made.py").write_text(
        MADE
        + "@pointwise\n@triton.jit\ndef k(p):\n    if p is None:\n        return\n    tl.store(p, 1)\n"
    )
    checked = check(["pkg/made.py"], "sm_90a", 1)
    assert [one.name for one in checked.kernels] == ["k"]
    assert summary(checked, 1).startswith("1 of 1 kernel supported (100.0 %), 2 not named, in 1 ")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def make(source):\n    return triton.jit(source['k'])\n", ["source['k']"]),
        ("K = triton.jit(lib.kernels[0])\n", ["lib.kernels[0]"]),
        ("def plain(p): tl.store(p, 1)\nK = triton.jit(plain)\n", []),
    ],
)
def test_what_is_jitted_when_a_program_runs_is_counted(
    package: Path, code: str, names: list[str]
) -> None:
    head = "import lib, triton, triton.language as tl\n"
    (package / "made.py").write_text(f"{head}{code}@triton.jit\ndef k(p): tl.store(p, 1)\n")
    checked = check(["pkg/made.py"], "sm_90a", 1)
    assert [one.name for one in checked.unnamed] == names
    assert checked.is_whole is not bool(names)
