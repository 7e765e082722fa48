"""The pages of `aotc explain` and `aotc inspect`: whole without a network, escaped, and folding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import compile_variant
from aotc.package.inspect.kernel_page import listing, text
from aotc.package.inspect.sass_lines import Instruction
from aotc.package.inspect.source_lines import SourceLine
from tests.support.browser import open_browser

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def square(x):  # <b>& called
    return x * x


@triton.jit
def norm(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + at, mask=at < n, other=0.0)

    scale = tl.rsqrt(tl.sum(square(x)))
    tl.store(y_ptr + tl.program_id(0) * n + at, x * scale, mask=at < n)
"""
MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:norm"
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
n = "i32:16?"
[kernel.constants]
BLOCK = 1024
[kernel.configs]
num_warps = [2, 4]
"""
_SQUARE, _LOAD, _SUM, _STORE = 7, 13, 15, 16  # lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def explained(folder: Path, capsys: Any) -> str:
    assert cli.run(["explain", "kernels.toml:norm", "--html", "page.html"]) == 0
    capsys.readouterr()
    return (folder / "page.html").read_text()


@pytest.fixture
def inspected(folder: Path, capsys: Any) -> str:
    assert cli.run(["build", "--no-cache", "-q", "-j", "1"], compile_variant) == 0
    assert cli.run(["inspect", "dist/demo.aotc", "--html", "page.html"]) == 0
    capsys.readouterr()
    return (folder / "page.html").read_text()


def fold(page: str, line: int) -> str:
    """Return the fold of a source line."""
    rows = re.findall(r"<details><summary class=.line.>.*?</details>", page, re.DOTALL)
    (found,) = (row for row in rows if f'<span class="number">{line}</span>' in row)
    return found


def test_a_line_has_its_layouts_remarks_and_instructions(explained: str) -> None:
    load = fold(explained, _LOAD)
    assert "x = tl.load(x_ptr" in load
    assert "<td>gpu.load</td><td>tile&lt;1024xfp32&gt;</td>" in load
    assert "register 8, lane 32, warp 4" in load or "register 16, lane 32, warp 2" in load
    assert "LDG.E" in load
    assert "STG.E" in fold(explained, _STORE)
    assert "FMUL" in fold(explained, _SQUARE) or "FFMA" in fold(explained, _SQUARE)
    assert "exchanged between threads" in fold(explained, _SUM)
    assert "1 remark</span>" in fold(explained, _SUM)
    assert "load of x_ptr: 16 bytes a thread" in explained


@pytest.mark.parametrize("page", ["explained", "inspected"])
def test_a_page_fetches_nothing_runs_nothing_and_escapes(
    page: str, request: pytest.FixtureRequest
) -> None:
    content = request.getfixturevalue(page)
    for word in ("<script", "http:", "https:", "@import", "url(", "<img", "<link", " on"):
        assert word not in re.sub(r"<code>.*?</code>|>[^<]*<", "", content), word
    assert "# &lt;b&gt;&amp; called" in content
    assert content.endswith("</body></html>\n")


def test_an_archive_has_its_variants_and_their_code(inspected: str) -> None:
    labels = re.findall(r"<details><summary>(norm sm_90a [^(]*) \(\d+ registers\)", inspected)
    assert labels == [
        f"norm sm_90a{promise} num_warps={warps}" for promise in (" n:16", "") for warps in (2, 4)
    ]
    assert inspected.count("tl.load(x_ptr") >= len(labels)
    assert "<li>n is a multiple of 16</li>" in inspected
    assert "LDG.E" in inspected


def test_one_variant_of_an_archive(folder: Path, inspected: str) -> None:
    command = ["inspect", "dist/demo.aotc", "--html", "one.html", "--variant"]
    assert cli.run([*command, "n:16 num_warps=4"]) == 0
    page = (folder / "one.html").read_text()
    assert page.count("Not disassembled: give --variant") == 3
    assert len(page) < len(inspected)
    assert cli.run([*command, "num_warps=8"]) == 1
    assert cli.run(["inspect", "dist/demo.aotc", "--variant", "n:16"]) == cli.EXIT_USAGE


def test_a_cubin_without_lines_says_so() -> None:
    assert "build without --no-lineinfo" in listing([])


def test_lines_between_are_counted_and_one_alone_is_blank() -> None:
    one = Instruction(16, "FADD R1, R2, R3", "k.py", 1, 200)
    lines = [SourceLine("k.py", number, f"x{number}") for number in (1, 3, 9)]
    lines[0].instructions.append(one)
    page = listing(lines)
    assert '<span class="number">2</span>' in page
    assert '<div class="gap">5 lines</div>' in page
    assert " 200  00010  FADD R1, R2, R3" in page
    assert text("a\x1b<") == "a\\x1b&lt;"


def test_a_browser_folds_the_lines(folder: Path, explained: str) -> None:
    """A click opens a line; nothing is fetched, and no text is wider than the page."""
    with open_browser(folder) as browser:
        browser.open(folder / "page.html")
        numbers = browser.run(
            "return [...document.querySelectorAll('details')].map("
            "d => +d.querySelector('.number').textContent)"
        )
        assert {_SQUARE, _LOAD, _SUM, _STORE} <= set(numbers)
        row = f"details:nth-of-type({1 + _details_before(browser, _LOAD)})"
        assert not browser.is_visible(f"{row} pre")
        browser.screenshot(folder / "closed.png")
        browser.click(f"{row} summary")
        assert browser.is_visible(f"{row} pre")
        shown = browser.run("return document.querySelector(arguments[0]).innerText", f"{row} pre")
        assert "LDG.E" in shown
        browser.screenshot(folder / "open.png")
        assert (folder / "open.png").read_bytes() != (folder / "closed.png").read_bytes()
        browser.click(f"{row} summary")
        assert not browser.is_visible(f"{row} pre")
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        bar = "return document.querySelector('.bar').getBoundingClientRect().width"
        assert browser.run(bar) > 0


def _details_before(browser: Any, line: int) -> int:
    return browser.run(
        "return [...document.querySelectorAll('details')].findIndex("
        "d => +d.querySelector('.number').textContent == arguments[0])",
        line,
    )
