"""The report of a verification: states, texts and data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from aotc.package.builder.workers import Done, Failure, Job
from aotc.package.manifest.read import parse
from aotc.package.verify.report import Report, shape_text, table
from aotc.package.verify.subjects import Subject, subjects_of_manifest
from aotc.package.verify.variants import VariantResult
from aotc.verify.checks.check import Finding, Status
from tests.support.verify_subjects import manifest_text

(SUBJECT,) = subjects_of_manifest(parse(manifest_text("sum_rows"), "kernels.toml"))


def _finding(status: Status, detail: str = "") -> Finding:
    return Finding("over", {"n": 17, "eps": 0.25}, (2,), status, detail, None, 1000, 68)


def _done(result: VariantResult | Failure, seconds: float = 0.5) -> Done[Subject, VariantResult]:
    return Done(Job(SUBJECT.label, SUBJECT), result, seconds)


def _result(*findings: Finding, dropped: str = "") -> VariantResult:
    return VariantResult(SUBJECT.label, SUBJECT.kernel, "sm_80", findings, dropped)


def _report(*results: VariantResult | Failure) -> Report:
    return Report(("aotc", "verify", "my kernels.toml"), [_done(result) for result in results])


RIGHT = _result(_finding("right"), _finding("right"))
PARTLY = _result(_finding("right"), _finding("passed over", "why"))
WRONG = _result(_finding("right"), _finding("wrong", "out[3] is 1\n2 of 9"))
NOTHING = _result(_finding("passed over", "programs overlap"))
NO_LAUNCH = _result()
DROPPED = _result(dropped="too much shared memory")
FAILED = Failure(SUBJECT.label, "error: no", is_bug=False)


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (RIGHT, "verified"),
        (PARTLY, "partly verified"),
        (WRONG, "wrong"),
        (NOTHING, "unverified"),
        (NO_LAUNCH, "unverified"),
        (DROPPED, "dropped"),
    ],
)
def test_states(result: VariantResult, state: str) -> None:
    assert result.status == state
    assert _report(result).is_right == (state in ("verified", "dropped"))


def test_a_launch_that_stores_nothing_verifies_nothing() -> None:
    empty = Finding("none", {}, (0, 3), "right")
    assert _result(empty).status == "unverified"
    assert _result(empty, _finding("right")).status == "verified"
    idle = Finding("over", {"n": 17}, (2,), "right")
    assert _result(idle, _finding("right")).status == "partly verified"
    (text,) = _report(_result(idle, _finding("right"))).wrong()
    assert "  not checked: over, with n = 17, grid (2,)\n    the kernel stores nothing" in text


def test_what_is_partly_verified_is_right_if_asked() -> None:
    strict = _report(PARTLY)
    assert not strict.is_right
    assert replace(strict, allow_partial=True).is_right
    assert not replace(_report(NOTHING), allow_partial=True).is_right
    (text,) = strict.wrong()
    assert text.splitlines()[:3] == [
        "partly verified: sum_rows sm_80",
        "  not checked: over, with n = 17, eps = 0.25, grid (2,)",
        "    why",
    ]


def test_a_failure_is_not_right_and_may_be_a_bug() -> None:
    report = _report(RIGHT, FAILED)
    assert not report.is_right
    assert not report.is_bug
    assert _report(Failure("x", "ours", is_bug=True)).is_bug


def test_texts_of_what_is_not_verified() -> None:
    again = "  to see it again: aotc verify 'my kernels.toml' --variant 'sum_rows sm_80'"
    assert _report(RIGHT, DROPPED).wrong() == []
    (text,) = _report(WRONG).wrong()
    assert text.splitlines() == [
        "wrong: sum_rows sm_80",
        "  with n = 17, eps = 0.25, grid (2,)",
        "    out[3] is 1",
        "    2 of 9",
        again,
    ]
    (text,) = _report(NOTHING).wrong()
    assert "    programs overlap" in text
    assert "help: say in [kernel.verify] what the arguments may be" in text
    (text,) = _report(NO_LAUNCH).wrong()
    assert "no arguments were found that satisfy the variant's guards" in text


def test_a_line_that_sums_it_up() -> None:
    report = _report(RIGHT, RIGHT, WRONG, FAILED, DROPPED)
    assert report.summary(1.25) == "1 wrong, 1 failed, 2 verified, 1 dropped (1.2 s)"
    assert _report().summary(0.0) == "nothing to verify (0.0 s)"


def _shown(report: Report, *, by_variant: bool) -> list[str]:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table(report.outcomes, by_variant=by_variant))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_a_row_shows_the_worst_of_its_variants() -> None:
    _, row = _shown(_report(RIGHT, WRONG, FAILED), by_variant=False)
    assert row == "sum_rows sm_80 3 4 0 4,000 1.50 wrong"
    _, row = _shown(_report(RIGHT), by_variant=True)
    assert row == "sum_rows sm_80 1 2 0 2,000 0.50 verified"


def test_data() -> None:
    data: dict[str, Any] = _report(WRONG, FAILED).describe()
    assert data["status"] == "failed"
    wrong, failed = data["variants"]
    assert wrong["launches"][1] == {
        "class": "over",
        "arguments": {"n": 17, "eps": 0.25},
        "grid": [2],
        "status": "wrong",
        "lane_instructions": 1000,
        "stored_bytes": 68,
        "fallback": False,
        "detail": "out[3] is 1\n2 of 9",
    }
    assert (failed["report"], failed["bug"]) == ("error: no", False)


def test_a_launch_without_scalars() -> None:
    assert shape_text(Finding("one", {}, (1,), "right")) == "no scalar arguments"
