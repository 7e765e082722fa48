"""Locations, carets, call chains and the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import (
    UNKNOWN_LOC,
    CompileError,
    DiagnosticError,
    IRError,
    Loc,
    ManifestError,
    at,
    current_loc,
    did_you_mean,
    nearest,
    render_caret,
    source_line,
)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "kernel.py"
    path.write_text("def k(x):\n\ty = tl.laod(x)\n    return helper(y)\n")
    return str(path)


def test_a_location_counts_columns_from_one_in_text() -> None:
    assert str(Loc("k.py", 3, 0)) == "k.py:3:1"


def test_the_chain_runs_from_the_inside_out() -> None:
    outer = Loc("a.py", 1)
    inner = Loc("b.py", 2, call_site=outer)
    assert list(inner.chain()) == [inner, outer]


def test_the_current_location_nests_and_is_restored() -> None:
    assert current_loc() is UNKNOWN_LOC
    with at(Loc("a.py", 1)):
        with pytest.raises(ValueError, match="stop"), at(Loc("b.py", 2)):
            assert current_loc() == Loc("b.py", 2)
            raise ValueError("stop")
        assert current_loc() == Loc("a.py", 1)
    assert current_loc() is UNKNOWN_LOC


def test_source_lines(source: str) -> None:
    assert source_line(Loc(source, 1)) == "def k(x):"
    assert source_line(Loc(source, 99)) is None
    assert source_line(Loc("/no/such/file.py", 1)) is None


def test_carets_stand_under_the_span_also_after_a_tab(source: str) -> None:
    assert render_caret(Loc(source, 2, 5, 12)) == "   y = tl.laod(x)\n       ^^^^^^^"
    assert render_caret(Loc(source, 1, 4, 5)) == "  def k(x):\n      ^"


@pytest.mark.parametrize(("end", "width"), [(0, 1), (4, 1), (99, 5)])
def test_a_span_has_a_caret_and_ends_with_its_line(source: str, end: int, width: int) -> None:
    assert render_caret(Loc(source, 1, 4, end)).count("^") == width


def test_without_a_source_there_is_no_caret() -> None:
    assert render_caret(Loc("/no/such/file.py", 3, 2, 5)) == ""


def test_a_report_has_place_source_calls_remedy_and_notes(source: str) -> None:
    loc = Loc(source, 2, 5, 12, call_site=Loc(source, 3, 11, 20))
    error = CompileError("expected a name of tl, got 'laod'", loc, remedy="did you mean 'load'?")
    error.add_context("building k for sm_90a")
    assert str(error) == error.render()
    assert error.render().splitlines() == [
        f"{source}:2:6: error: expected a name of tl, got 'laod'",
        "   y = tl.laod(x)",
        "       ^^^^^^^",
        f"  called from {source}:3:12",
        "        return helper(y)",
        "               ^^^^^^^^^",
        "  help: did you mean 'load'?",
        "  note: building k for sm_90a",
    ]


def test_a_report_without_a_place() -> None:
    assert DiagnosticError("no").render() == "error: no"
    assert DiagnosticError("no", UNKNOWN_LOC).render() == "error: no"


def test_long_chains_are_cut() -> None:
    loc = Loc("/no/file.py", 0)
    for line in range(1, 20):
        loc = Loc("/no/file.py", line, call_site=loc)
    lines = CompileError("deep", loc).render().splitlines()
    assert sum("called from" in line for line in lines) == 8
    assert lines[-1] == "  … 11 more calls"


def test_the_two_families() -> None:
    assert issubclass(CompileError, DiagnosticError)
    assert issubclass(ManifestError, DiagnosticError)
    assert not issubclass(IRError, DiagnosticError)
    assert str(IRError("broken", Loc("k.py", 3))) == "k.py:3:1: broken"
    assert str(IRError("broken", UNKNOWN_LOC)) == "broken"


def test_the_nearest_name() -> None:
    names = ["load", "store", "arange"]
    assert nearest("laod", names) == "load"
    assert nearest("zzz", names) is None
    assert did_you_mean("stroe", names) == "did you mean 'store'?"
    assert did_you_mean("zzz", names) == ""


def _shown(tmp_path: Path, line: str, col: int, end_col: int) -> tuple[str, str]:
    path = tmp_path / "k.py"
    path.write_text(line + "\n")
    shown, carets = render_caret(Loc(str(path), 1, col, end_col), "").splitlines()
    return shown, carets


def test_a_long_line_is_cut_around_the_span(tmp_path: Path) -> None:
    line = "x" * 500 + "here" + "y" * 500
    shown, carets = _shown(tmp_path, line, 500, 504)
    assert len(shown) < 170
    assert (shown[0], shown[-1]) == ("…", "…")
    assert shown[carets.index("^") : len(carets)] == "here"
    shown, carets = _shown(tmp_path, line, 0, 4)
    assert (shown[:4], shown[-1], carets) == ("xxxx", "…", "^^^^")
    shown, carets = _shown(tmp_path, line, 1000, 1004)
    assert (shown[0], shown[-4:], len(carets)) == ("…", "yyyy", len(shown))
    shown, carets = _shown(tmp_path, line, 100, 1000)
    assert len(carets) <= len(shown)


def test_wide_and_combining_characters_do_not_move_the_caret(tmp_path: Path) -> None:
    assert _shown(tmp_path, "日本 = nope", 5, 9) == ("日本 = nope", "       ^^^^")
    assert _shown(tmp_path, "e\u0301 = nope", 5, 9) == ("e\u0301 = nope", "    ^^^^")
    assert _shown(tmp_path, "日本 = nope", 0, 2)[1] == "^^^^"


def test_control_characters_are_not_printed(tmp_path: Path) -> None:
    assert _shown(tmp_path, "a\x1b[2J\x07b", 6, 7) == ("a [2J b", "      ^")


def test_a_span_beyond_the_line_is_marked_at_its_end(tmp_path: Path) -> None:
    assert _shown(tmp_path, "abc", 9, 12) == ("abc", "   ^")


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    assert _shown(tmp_path, "first", 0, 1)[0] == "first"
    assert _shown(tmp_path, "the second", 0, 1)[0] == "the second"
