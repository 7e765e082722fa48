"""The table of Triton's own tests: outcomes counted as failures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.triton_tests.report import kind_of, message_of, report


def outcome(
    error: str = "",
    *,
    test: str = "f.py::test[1]",
    refusals: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "test": test,
        "outcome": "failed" if error else "passed",
        "error": error,
        "refusals": list(refusals),
        "reads_triton": list(reads),
    }


@pytest.mark.parametrize(
    ("attempt", "kind"),
    [
        (outcome(), "passed"),
        (outcome("AssertionError: 3 of 4 differ"), "failed"),
        (outcome("AssertionError: assert 'ld.global' in '.version 9.3"), "spelling"),
        (outcome("AssertionError: assert 0", reads=("ptx",)), "spelling"),
        (outcome("RuntimeError: lost", reads=("ptx",)), "failed"),
        (
            outcome(
                "AssertionError: Regex pattern did not match.", refusals=("k.py:1:1: error: no",)
            ),
            "refused too",
        ),
        (outcome("AssertionError: Regex pattern did not match."), "failed"),
        (outcome("CompilationError: no", refusals=("k.py:1:1: error: no",)), "failed"),
    ],
)
def test_kinds(attempt: dict[str, Any], kind: str) -> None:
    assert kind_of(attempt) == kind


def test_a_refusal_is_told_by_its_error_line() -> None:
    refusal = outcome(
        "CompilationError: x", refusals=("the source\nk.py:12:3: error: no dot of i64\n  x",)
    )
    assert message_of(refusal) == "no dot of iN"


def test_failures_are_counted_by_message() -> None:
    failures = [outcome(f"ValueError: got {n}", test=f"f.py::test[{n}]") for n in (3, 2)]
    text = report([outcome(), *failures])
    assert "applicable tests that pass: 33.3 %" in text
    assert text.endswith("    2  ValueError: got N  (test[2])")
