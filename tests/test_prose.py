"""Plain prose and names: no file exceeds its budget of `tests/support/prose_budgets.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import prose


@pytest.fixture(name="today", scope="module")
def _today() -> dict[str, prose.Counts]:
    return prose.all_excess()


def test_no_file_exceeds_its_budget(today: dict[str, prose.Counts]) -> None:
    """Say it in other words, or name the thing; python -m tests.support.prose lowers budgets, and raises none."""
    budgets = prose.read_budgets()
    over = {
        f"{name}: {key}": f"{number + prose.FREE if name.endswith('.py') else number}, budget {budget}"
        for name, counts in today.items()
        for key, number in counts.items()
        if number > (budget := budgets.get(name, {}).get(key, 0))
    }
    assert over == {}


def test_the_table_is_as_its_script_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = prose.BUDGETS.read_text()
    budgets = prose.read_budgets()
    monkeypatch.setattr(prose, "BUDGETS", tmp_path / "budgets.txt")
    prose.write_budgets(budgets)
    assert prose.BUDGETS.read_text() == written


def test_budgets_only_fall() -> None:
    budgets = {"a.py": {"what": 3, "bare": 1}, "gone.py": {"what": 1}}
    today = {"a.py": {"what": 2, "bare": 5}, "new.py": {"what": 4}}
    assert prose.lowered(budgets, today) == {"a.py": {"what": 2, "bare": 1}, "gone.py": {"what": 0}}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("found = load(path)", 1),
        ("found: Manifest = load(path)", 1),
        ("first, each = pair", 1),
        ("if each == 1:", 0),
        ("for each in rows:", 1),
        ("total = sum(one for one, row in rows)", 1),
        ("while (found := read()):", 1),
        ("def walk(each: Op, *, given: int = 1, block: Block) -> None:", 2),
        ("call(each=1)", 0),
        ("manifest = load(path)", 0),
    ],
)
def test_bare_names_are_counted_where_they_are_bound(source: str, count: int) -> None:
    assert prose.bare_names(source) == count


def test_sentences_leave_out_code_and_tables() -> None:
    page = "# A title\n\nOne two three. Four five\nsix:\n\n```sh\na b c d\n```\n\n|a|b c d e|\n|-|-|\n- x y z\n- u v w\n"
    assert prose.sentences(page) == ["One two three.", "Four five six:", "x y z", "u v w"]


def test_a_page_may_have_two_in_a_thousand_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Say what. " + "word " * 1000 + "What " * 4)
    assert prose.excess(page) == {"what": 3, "long": 0}
