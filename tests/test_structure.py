"""The structure: arrows between the packages of the schedule, sizes of files, and the walk through the code."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_ARROWS = 40
MAX_LINES = 600
MAX_FILES = 4
_DRAWINGS = runpy.run_path(str(ROOT / "docs" / "internals" / "drawings.py"))


def test_packages_of_the_schedule_have_few_arrows_and_no_circle() -> None:
    arrows: set[tuple[str, str]] = _DRAWINGS["package_arrows"]()
    assert ("layout", "analysis") in arrows
    assert len(arrows) <= MAX_ARROWS
    packages = {
        package: {target for user, target in arrows if user == package} for package, _ in arrows
    }
    tuple(TopologicalSorter(packages).static_order())  # raises if there is a circle
    rows = [package for row in _DRAWINGS["PACKAGES"] for package in row]
    assert [(a, b) for a, b in arrows if rows.index(a) >= rows.index(b)] == []


def test_every_pass_has_a_test_of_what_it_makes_of_ir() -> None:
    text = (ROOT / "aotc" / "schedule" / "pipeline.py").read_text()
    passes = re.findall(r"from aotc\.schedule\.\w+\.(\w+) import (\w+)", text)
    files = {path.stem: path for path in (ROOT / "tests" / "schedule").rglob("test_*.py")}
    names = [file for file, name in passes if file == name]
    assert len(names) > 30
    texts = {name: files[f"test_{name}"].read_text() for name in names}
    looks = ("CHECK", "parse_kernel(", "lowered(", 'asm["gpu"]')  # at IR, by line or by op
    assert [
        name for name, source in texts.items() if not any(look in source for look in looks)
    ] == []


def test_no_file_is_too_long_to_read() -> None:
    suffixes = (".py", ".c", ".h", ".hpp", ".cpp", ".pyi")
    folders = ("aotc", "benchmarks", "docs", "examples", "kernels", "runtime_c", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    long = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if path.suffix in suffixes and path != ROOT / "aotc" / "language.py"  # stubs
        if (lines := path.read_text().count("\n")) > MAX_LINES
    }
    assert long == {}


def _section(title: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _names(path: Path) -> Iterator[str]:
    """Yield the definitions of a file: functions, classes, methods, variables and fields."""
    if path.suffix != ".py":
        yield from re.findall(r"\w+", path.read_text())
        return
    # A syntax tree of every file takes seconds.
    defined = r"(?m)^ *(?:def|class) (\w+)|^ {0,8}(\w+)(?:: [^=\n]+)?(?: =|$)"
    yield from (name for names in re.findall(defined, path.read_text()) for name in names if name)


def test_a_question_of_the_walk_takes_few_files() -> None:
    questions = re.split(r"(?m)^(?=\*\*)", _section("A walk through the code"))[1:]
    assert len(questions) >= 7
    for question in questions:
        files = set(re.findall(r"`((?:aotc|runtime_c)/[\w/.]+)`", question))
        assert 1 <= len(files) <= MAX_FILES, question


def test_the_walk_names_what_is_there() -> None:
    text = _section("A walk through the code") + _section("What to touch")
    placed = re.findall(r"`(aotc/[\w/]+\.py)`\s+\(((?:`\w+`(?:, )?)+)\)", text)
    assert len(placed) >= 3
    for path, names in placed:
        defined = set(_names(ROOT / path))
        assert set(re.findall(r"\w+", names)) <= defined, path
    everywhere: set[str] = set()
    for path in (ROOT / "aotc").rglob("*.py"):
        everywhere.update(_names(path), [path.stem])
    named = set(re.findall(r"`([A-Za-z_]\w{3,})(?:\(\))?`", text))
    assert len(named) >= 10
    assert named - everywhere - {"aotc", "convergent"} == set()
