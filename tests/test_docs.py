"""The documents hang together: links, anchors and paths lead somewhere, lines fit."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "index.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "runtime_c" / "python" / "README.md",
]
MAX_COLUMNS = 120
_FENCE = re.compile(r"(?ms)^ *```.*?^ *```$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")

# Base folders of paths in documents, and folders made by commands.
_BASES = (ROOT, ROOT / "aotc", ROOT / "runtime_c", ROOT / "runtime_c" / "src")
_FOLDERS = {
    path.name
    for base in _BASES[:2]
    for path in base.iterdir()
    if path.is_dir() and path.name[0] != "."
} - {"build", "dist"}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _prose(text: str) -> str:
    """Return a page with the lines of its code blocks emptied."""
    return _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)


def anchors(text: str) -> set[str]:
    """Return a forge's anchors for a page's headings."""
    slugs: set[str] = set()
    for heading in re.findall(r"(?m)^#+ +(.*?) *$", _prose(text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in slugs:
            number += 1
        slugs.add(anchor)
    return slugs


def links(page: Path) -> list[tuple[str, Path, str]]:
    """Return each relative link of a page as written, as a file, and its anchor."""
    targets: list[tuple[str, Path, str]] = []
    text = re.sub(
        r"`[^`\n]*`", "", _prose(page.read_text())
    )  # calls after a subscript are no links
    for target in _LINK.findall(text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            targets.append((target, (page.parent / path).resolve() if path else page, anchor))
    return targets


def paths_named(text: str) -> list[str]:
    """Return the repository paths in a page: code spans, and words of commands."""
    spans = re.findall(r"`([^`\n]+)`", _prose(text))
    words = [
        word for block in re.findall(r"(?ms)^ *```sh\n(.*?)^ *```$", text) for word in block.split()
    ]
    named: list[str] = []
    for text_of in [*spans, *words]:
        path = text_of.split(":")[0].removeprefix("aotc/") if "/" in text_of else ""
        if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", path) and path.split("/")[0] in _FOLDERS:
            named.append(text_of.split(":")[0])  # words in capitals stand for something
    return [path for path in named if not re.search(r"/[A-Z]+\.[A-Z]+\.", path)]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_anchors_resolve(page: Path) -> None:
    broken = [
        target
        for target, file, anchor in links(page)
        if not file.exists() or (anchor and anchor not in anchors(file.read_text()))
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_paths_that_are_named_exist(page: Path) -> None:
    missing = [
        path
        for path in paths_named(page.read_text())
        if not any(any(base.glob(path.rstrip("/"))) for base in _BASES)
    ]
    assert missing == []


def test_pages_that_code_names_exist() -> None:
    sources = [
        path
        for folder in ("aotc", "benchmarks", "examples", "runtime_c", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".h", ".hpp", ".py", ".toml")
    ]
    named = {
        (_name(source), page)
        for source in [*sources, ROOT / "pyproject.toml"]
        for page in re.findall(r"\bdocs/[a-z0-9/-]+\.md", source.read_text())
    }
    assert len(named) > 10
    assert sorted((source, page) for source, page in named if not (ROOT / page).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_lines_fit(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > MAX_COLUMNS] == []


def test_every_page_is_reached_from_the_map() -> None:
    seen, todo = {MAP}, [MAP]
    while todo:
        for _, file, _ in links(todo.pop()):
            if file.suffix == ".md" and file not in seen and file.exists():
                seen.add(file)
                todo.append(file)
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert sorted(map(_name, pages - seen)) == []
    assert [_name(file) for _, file, _ in links(ROOT / "README.md") if file == MAP] != []


def test_the_drawings_are_those_of_their_script() -> None:
    script = ROOT / "docs" / "internals" / "drawings.py"
    drawings = runpy.run_path(str(script))["DRAWINGS"]
    assert {path.name for path in script.parent.glob("*.svg")} == set(drawings)
    for name, draw in drawings.items():
        assert (script.parent / name).read_text() == draw(), f"run python {script}"


def test_what_a_page_may_get_wrong_is_told() -> None:
    """A broken anchor and a missing path are reported."""
    assert anchors("# A `b`: c\n\n```\n# no heading\n```\n## A b c\n") == {"a-b-c", "a-b-c-1"}
    text = "`schedule/no_such_pass.py`, `aotc build`\n\n```sh\npython benchmarks/none.py a/b\n```\n"
    assert paths_named(text) == ["schedule/no_such_pass.py", "benchmarks/none.py"]
