"""The launching process and its watchdog: hangs are named, and end the launching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.soak.journal import Attempt, Journal, Outcome
from benchmarks.soak.launcher import Batch, Launcher, NoLauncherError, OpenDevice, write_batch
from tests.benchmarks.soak.fake_cases import FakeCase, FakeDevice, NoDevice, no_device


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    process = Launcher(FakeDevice, Journal(tmp_path / "journal.jsonl"), limit_seconds=30.0)
    yield process
    process.close()


def _batch(folder: Path, cases: Sequence[FakeCase], name: str = "cases") -> Batch:
    return write_batch("fake", folder / name, cases)


def _run(launcher: Launcher, folder: Path, *cases: FakeCase) -> list[Outcome]:
    return list(launcher.run(_batch(folder, cases)))


def test_what_comes_of_cases(launcher: Launcher, tmp_path: Path) -> None:
    cases = (
        FakeCase("a", ("right", "right"), remarks=("a remark",)),
        FakeCase("b", ("right", "wrong", "right")),
        FakeCase("c", ("bug",)),
    )
    outcomes = _run(launcher, tmp_path, *cases)
    assert [(outcome.case, outcome.status, outcome.num_launches) for outcome in outcomes] == [
        ("a", "right", 2),
        ("b", "wrong", 2),
        ("c", "error", 1),
    ]
    assert outcomes[0].remarks == ("a remark",)
    assert (outcomes[1].detail, outcomes[1].command) == ("wrong: 1 is not 2", "run b")
    assert launcher.device == "a fake device"
    assert launcher.journal.read().known("fake") == {"a", "b", "c"}


def test_a_launch_without_room_is_passed_over_and_counted(
    launcher: Launcher, tmp_path: Path
) -> None:
    cases = FakeCase("a", ("right", "large", "large", "right")), FakeCase("b", ("large",))
    outcomes = _run(launcher, tmp_path, *cases)
    assert [
        (outcome.status, outcome.num_launches, outcome.passed_over) for outcome in outcomes
    ] == [
        ("right", 2, ("large: no room",)),
        ("dropped", 0, ("large: no room",)),
    ]
    assert outcomes[1].detail == "large: no room"
    assert list(launcher.journal.read().outcomes.values()) == outcomes


def test_a_hang_is_named_and_nothing_is_launched_after_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    list(launcher.run(_batch(tmp_path, [FakeCase("first")], "first")))  # it takes its time to start
    launcher.limit_seconds = 1.0
    outcomes = _run(
        launcher, tmp_path, FakeCase("a"), FakeCase("b", ("right", "hang")), FakeCase("c")
    )
    assert [(outcome.case, outcome.status) for outcome in outcomes] == [
        ("a", "right"),
        ("b", "hang"),
    ]
    assert outcomes[1].detail == "hang: no end after 1 s"
    assert outcomes[1].command == "run b"
    assert launcher.gpu.hung == outcomes[1]
    assert list(launcher.run(_batch(tmp_path, [FakeCase("d")], "more"))) == []
    record = launcher.journal.read()
    assert record.known("fake") == {"first", "a", "b"}
    assert record.open == {}


def test_a_busy_host_is_no_hang_but_a_device_that_does_not_end_is(
    launcher: Launcher, tmp_path: Path
) -> None:
    list(launcher.run(_batch(tmp_path, [FakeCase("first")], "first")))
    launcher.limit_seconds = 1.0
    outcomes = _run(
        launcher, tmp_path, FakeCase("a", ("busy host",)), FakeCase("b", ("hang after it",))
    )
    assert [(outcome.case, outcome.status) for outcome in outcomes] == [
        ("a", "right"),
        ("b", "hang"),
    ]
    assert outcomes[1].detail == "hang after it: no end after 1 s"


def test_a_launch_is_told_before_it_is_tried(launcher: Launcher, tmp_path: Path) -> None:
    def tried() -> list[str]:
        return [line for line in launcher.journal.path.read_text().splitlines() if '"try"' in line]

    _run(launcher, tmp_path, FakeCase("a", ("right", "end")))
    assert [
        attempt in line for attempt, line in zip(("loading", "right", "end"), tried(), strict=True)
    ] == [True] * 3


@pytest.mark.parametrize(
    ("launch", "status", "detail"),
    [
        ("fault", "fault", "fault: an address"),
        ("end", "lost", "end: its process ended with code 9"),
    ],
)
def test_a_process_of_no_more_use_is_replaced(
    launcher: Launcher, tmp_path: Path, launch: str, status: str, detail: str
) -> None:
    outcomes = _run(launcher, tmp_path, FakeCase("a"), FakeCase("b", (launch,)), FakeCase("c"))
    assert [(outcome.case, outcome.status) for outcome in outcomes] == [
        ("a", "right"),
        ("b", status),
        ("c", "right"),
    ]
    assert outcomes[1].detail == detail
    assert launcher.gpu.hung is None


@pytest.mark.parametrize(
    ("opened", "message"), [(no_device, "^no GPU here$"), (NoDevice, "ended with 3")]
)
def test_a_device_that_is_not_there(tmp_path: Path, opened: OpenDevice, message: str) -> None:
    launcher = Launcher(opened, Journal(tmp_path / "journal.jsonl"), limit_seconds=30.0)
    with pytest.raises(NoLauncherError, match=message):
        _run(launcher, tmp_path, FakeCase("a"))


def test_a_journal_of_a_killed_soak_names_what_was_tried(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.tell(Attempt("a", "several (n = 3)", "risky"))
    assert list(journal.read().open.values()) == [Attempt("a", "several (n = 3)", "risky")]
