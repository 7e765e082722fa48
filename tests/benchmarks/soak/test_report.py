"""The figures of a soak, and when it is green."""

from __future__ import annotations

import json

from benchmarks.soak import report
from benchmarks.soak.journal import Attempt, Outcome, Record, Run


def _record(*outcomes: Outcome, planned: int | None = None) -> Record:
    record = Record()
    for outcome in outcomes:
        record.take(outcome)
    count = len(outcomes) if planned is None else planned
    record.runs.append(Run({"variants": count}, "a GPU", "2026-01-31", 12.0, 3.0, 16))
    return record


def test_counts_of_a_phase() -> None:
    record = _record(
        Outcome("a", "variants", "right", num_launches=6, passed_over=("far: no room",)),
        Outcome("b", "variants", "wrong", "1 is not 2", "run b", num_launches=2),
        Outcome("c", "variants", "dropped"),
        Outcome("d", "programs", "right", num_launches=1),
        planned=5,
    )
    figures = report.figures(record)
    counts = figures["phases"]["variants"]
    assert (counts["planned"], counts["run"], counts["launches"]) == (5, 2, 8)
    assert (counts["right"], counts["wrong"], counts["dropped"]) == (1, 1, 1)
    assert counts["not_reached"] == 2
    assert figures["phases"]["programs"]["right"] == 1
    assert counts["passed_over"] == 1
    assert figures["passed_over"] == [{"case": "a", "phase": "variants", "launch": "far: no room"}]
    assert [failure["case"] for failure in figures["failures"]] == ["b"]
    assert json.loads(json.dumps(figures)) == figures
    text = report.table(figures)
    assert "1 failed:\n  wrong: b\n    1 is not 2\n    run b" in text
    assert "a GPU; 2026-01-31" in text


def test_it_is_green_if_all_was_reached_and_nothing_failed() -> None:
    right, dropped = Outcome("a", "variants", "right"), Outcome("b", "variants", "dropped")
    assert report.is_green(report.figures(_record(right, dropped)))
    assert not report.is_green(report.figures(_record(right, planned=2)))
    for status in ("wrong", "fault", "hang", "lost", "error"):
        assert not report.is_green(report.figures(_record(right, Outcome("b", "variants", status))))


def test_what_was_tried_and_never_done_is_lost() -> None:
    record = _record(Outcome("a", "variants", "right"))
    record.open["variants", "b"] = Attempt("b", "over", "variants")
    outcome = report.with_lost(record).outcomes["variants", "b"]
    assert (outcome.status, outcome.is_failure) == ("lost", True)
    assert outcome.detail.startswith("over: ")
    assert not report.is_green(report.figures(record))


def test_kernels_without_a_launch_are_named() -> None:
    record = Record()
    kernels = ("few.toml: a", "few.toml: b", "few.toml: c")
    planned = {"variants": 4, "programs": 1}
    record.runs.append(Run(planned, "a GPU", "2026-01-31", 12.0, 30.0, 16, 4, kernels))
    record.take(Outcome("few.toml: a sm_90a X=1", "variants", "right", num_launches=3))
    for name in ("few.toml: a sm_90a X=2", "few.toml: c sm_90a"):
        record.take(Outcome(name, "variants", "dropped"))
    record.take(Outcome("program 1", "programs", "right", num_launches=2))
    figures = report.figures(record)
    assert figures["kernels"] == {"planned": 3, "launched": 1, "never": [*kernels[1:]]}
    text = report.table(figures)
    assert "variants of 1 of 3 kernels launched\n  no variant of few.toml: b\n" in text
    assert "4 launchers, busy for 30 s in all; 16 workers" in text


def test_totals_come_last() -> None:
    record = Record()
    names = ("program 7", "program 1000000049", "program 1000000099")
    for name in names:
        record.take(Outcome(name, "programs", "right", num_launches=2))
    record.take(Outcome("k", "variants", "wrong", "1 is not 2", num_launches=2))
    record.take(Outcome("program 1000000149", "programs", "refused"))
    for seconds in (10.4, 20.2):
        spent = {"variants": seconds, "programs": 1.0}
        record.runs.append(
            Run({"variants": 1, "programs": 4}, "a GPU", "2026-01-31", 12, 3, 16, 4, (), spent)
        )
    figures = report.figures(record)
    assert (figures["long_programs"], figures["phases"]["variants"]["worker_seconds"]) == (2, 30.6)
    assert report.table(figures).splitlines()[-1] == (
        "in all: launched 1 variants, 3 programs (2 programs long); 1 failed; "
        "33 core-seconds of workers (31 of variants, 2 of programs)"
    )
