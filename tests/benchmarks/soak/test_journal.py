"""The journal: lines of every writer are read, even after a cut-off line."""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak.journal import Attempt, Journal, Outcome, Run


def test_what_is_finished_is_known_and_not_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "made" / "journal.jsonl")
    journal.tell(Attempt("a", "over", "variants"))
    journal.tell(Attempt("b", "over", "variants"))
    journal.tell(Attempt("b", "under", "variants"))
    outcome = Outcome("a", "variants", "wrong", "1 is not 2", "run a", 1, 0.5, ("a remark",))
    journal.finish(outcome)
    record = journal.read()
    assert list(record.outcomes.values()) == [outcome]
    assert list(record.open.values()) == [Attempt("b", "under", "variants")]
    assert record.known("variants") == {"a", "b"}


def test_phases_are_told_apart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.finish(Outcome("a", "build", "built"))
    journal.tell(Attempt("a", "over", "variants"))
    record = journal.read()
    assert record.known("build") == {"a"}
    assert record.known("variants") == {"a"}
    assert record.known("programs") == set()
    assert [attempt.phase for attempt in record.open.values()] == ["variants"]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.finish(Outcome("a", "programs", "right"))
    text = journal.path.read_bytes()
    journal.path.write_bytes(text + text[: len(text) // 2])
    assert journal.read().known("programs") == {"a"}
    # The next writer appends behind it.
    journal.path.write_bytes(text + text[: len(text) // 2] + b"\n" + text.replace(b'"a"', b'"b"'))
    assert journal.read().known("programs") == {"a", "b"}


def test_runs_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    run = Run("programs", "a GPU", "2026-01-31", 12, 3.5, 1.25, 2)
    journal.end(run)
    assert journal.read().runs == [run]


def test_there_may_be_no_journal_yet(tmp_path: Path) -> None:
    record = Journal(tmp_path / "journal.jsonl").read()
    assert (record.outcomes, record.open, record.runs) == ({}, {}, [])
