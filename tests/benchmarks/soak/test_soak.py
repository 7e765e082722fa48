"""Jobs: every case gets its outcome, risky ones come last, a hang ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aotc.package.builder.workers import Job
from benchmarks.soak.journal import Journal, Outcome
from benchmarks.soak.launcher import Batch
from benchmarks.soak.launchers import Launchers
from benchmarks.soak.soak import Limits, Task, Work, run_held, run_jobs
from tests.benchmarks.soak.fake_cases import FakeCase, FakeDevice, prepare


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def launchers(journal: Journal) -> Iterator[Launchers]:
    processes = Launchers(FakeDevice, journal, limit_seconds=30.0)
    yield processes
    processes.close()


def _deadline(seconds: float = 600.0) -> float:
    return time.monotonic() + seconds


def _jobs(
    launchers: Launchers,
    journal: Journal,
    *tasks: tuple[FakeCase, ...],
    seconds: float = 600.0,
    reserve: Callable[[int], float] = lambda _count: 0.0,
    held_phases: tuple[str, ...] = (),
) -> tuple[list[Outcome], list[Batch]]:
    outcomes: list[Outcome] = []
    work = Work({"fake": prepare, "last": prepare}, journal.path.parent, held_phases)
    # The first case of a tuple names its phase.
    jobs = [
        Job(f"job {number}", Task("last" if task[0].name.startswith("last") else "fake", task))
        for number, task in enumerate(tasks)
    ]
    limits = Limits(2, _deadline(seconds), reserve)
    return outcomes, run_jobs(jobs, work, launchers, journal, limits, outcomes.append)


def test_every_case_has_one_outcome(launchers: Launchers, journal: Journal) -> None:
    tasks = [(FakeCase(f"{number}a"), FakeCase(f"{number}b", ("wrong",))) for number in range(5)]
    outcomes, batches = _jobs(launchers, journal, *tasks, (FakeCase("dropped"),))
    expected = {f"{number}a": "right" for number in range(5)} | {
        f"{number}b": "wrong" for number in range(5)
    }
    assert {outcome.case: outcome.status for outcome in outcomes} == expected | {
        "dropped": "dropped"
    }
    assert len(outcomes) == 11
    assert batches == []
    assert journal.read().known("fake") == set(expected) | {"dropped"}


@pytest.mark.slow
def test_what_is_risky_is_held_back_in_order(launchers: Launchers, journal: Journal) -> None:
    risky = [
        (FakeCase(f"{number}", is_risky=number % 2 == 0), FakeCase(f"{number}s"))
        for number in range(6)
    ]
    tasks = [(FakeCase("last 0"),), *risky, (FakeCase("last 1"),)]
    outcomes, batches = _jobs(launchers, journal, *tasks, held_phases=("last",))
    assert {outcome.case for outcome in outcomes} == {"1", "3", "5"} | {
        f"{number}s" for number in range(6)
    }
    last: list[Outcome] = []
    run_held(batches, launchers, _deadline(), last.append)
    assert [outcome.case for outcome in last] == ["0", "2", "4", "last 0", "last 1"]
    assert {outcome.phase for outcome in last[3:]} == {"last"}


def test_nothing_is_launched_after_a_hang(launchers: Launchers, journal: Journal) -> None:
    cases = (FakeCase("0"), FakeCase("1", ("hang",)), FakeCase("2"))
    outcomes, batches = _jobs(
        launchers, journal, *((case,) for case in cases), held_phases=("fake",)
    )
    assert outcomes == []
    last: list[Outcome] = []
    run_held(batches[:1], launchers, _deadline(), last.append)
    launchers.each[0].limit_seconds = 1.0
    run_held(batches[1:], launchers, _deadline(), last.append)
    assert [(outcome.case, outcome.status) for outcome in last] == [("0", "right"), ("1", "hang")]
    more, _ = _jobs(launchers, journal, *((FakeCase(f"{number}"),) for number in range(3, 40)))
    assert more == []


@pytest.mark.slow
def test_a_worker_that_ends_is_named(launchers: Launchers, journal: Journal) -> None:
    outcomes, _ = _jobs(launchers, journal, (FakeCase("killed"),), (FakeCase("a"),))
    assert {outcome.case: outcome.status for outcome in outcomes} == {
        "job 0": "error",
        "a": "right",
    }
    lost = next(outcome for outcome in outcomes if outcome.case == "job 0")
    assert "code 7" in lost.detail
    assert lost.phase == "fake"


@pytest.mark.slow
def test_nothing_is_begun_after_the_deadline(launchers: Launchers, journal: Journal) -> None:
    tasks = [(FakeCase(f"{number}"),) for number in range(50)]
    outcomes, _ = _jobs(launchers, journal, *tasks, seconds=0.0)
    assert outcomes == []


@pytest.mark.slow
def test_time_is_left_for_what_is_held_back(launchers: Launchers, journal: Journal) -> None:
    risky = [(FakeCase(f"{number}", is_risky=True),) for number in range(4)]
    safe_tasks = [(FakeCase(f"{number}"),) for number in range(4, 100)]
    # Three of them are thought to take longer than there is.
    outcomes, batches = _jobs(
        launchers, journal, *risky, *safe_tasks, reserve=lambda count: 250.0 * count
    )
    assert sum(batch.count for batch in batches) in (3, 4)
    assert len(outcomes) < 90
    last: list[Outcome] = []
    run_held(batches, launchers, _deadline(), last.append)
    assert [outcome.status for outcome in last] == ["right"] * len(batches)
