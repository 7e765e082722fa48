"""Jobs: everything gets its outcome, what is risky comes last, a hang ends it."""

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
    made = Launchers(FakeDevice, journal, limit_seconds=30.0)
    yield made
    made.close()


def _deadline(seconds: float = 600.0) -> float:
    return time.monotonic() + seconds


def _jobs(
    launchers: Launchers,
    journal: Journal,
    *tasks: tuple[FakeCase, ...],
    seconds: float = 600.0,
    reserve: Callable[[int], float] = lambda _count: 0.0,
    held: tuple[str, ...] = (),
) -> tuple[list[Outcome], list[Batch]]:
    found: list[Outcome] = []
    work = Work({"fake": prepare, "last": prepare}, journal.path.parent, held)
    # The first of a tuple says which phase it is of.
    jobs = [
        Job(f"job {at}", Task("last" if task[0].name.startswith("last") else "fake", task))
        for at, task in enumerate(tasks)
    ]
    limits = Limits(2, _deadline(seconds), reserve)
    return found, run_jobs(jobs, work, launchers, journal, limits, found.append)


def test_every_case_has_one_outcome(launchers: Launchers, journal: Journal) -> None:
    tasks = [(FakeCase(f"{at}a"), FakeCase(f"{at}b", ("wrong",))) for at in range(5)]
    found, held = _jobs(launchers, journal, *tasks, (FakeCase("dropped"),))
    expected = {f"{at}a": "right" for at in range(5)} | {f"{at}b": "wrong" for at in range(5)}
    assert {each.case: each.status for each in found} == expected | {"dropped": "dropped"}
    assert len(found) == 11
    assert held == []
    assert journal.read().known("fake") == set(expected) | {"dropped"}


@pytest.mark.slow
def test_what_is_risky_is_held_back_in_order(launchers: Launchers, journal: Journal) -> None:
    risky = [(FakeCase(f"{at}", is_risky=at % 2 == 0), FakeCase(f"{at}s")) for at in range(6)]
    tasks = [(FakeCase("last 0"),), *risky, (FakeCase("last 1"),)]
    found, held = _jobs(launchers, journal, *tasks, held=("last",))
    assert {each.case for each in found} == {"1", "3", "5"} | {f"{at}s" for at in range(6)}
    last: list[Outcome] = []
    run_held(held, launchers, _deadline(), last.append)
    assert [each.case for each in last] == ["0", "2", "4", "last 0", "last 1"]
    assert {each.phase for each in last[3:]} == {"last"}


def test_nothing_is_launched_after_a_hang(launchers: Launchers, journal: Journal) -> None:
    cases = (FakeCase("0"), FakeCase("1", ("hang",)), FakeCase("2"))
    found, held = _jobs(launchers, journal, *((case,) for case in cases), held=("fake",))
    assert found == []
    last: list[Outcome] = []
    run_held(held[:1], launchers, _deadline(), last.append)
    launchers.each[0].limit_seconds = 1.0
    run_held(held[1:], launchers, _deadline(), last.append)
    assert [(each.case, each.status) for each in last] == [("0", "right"), ("1", "hang")]
    more, _ = _jobs(launchers, journal, *((FakeCase(f"{at}"),) for at in range(3, 40)))
    assert more == []


@pytest.mark.slow
def test_a_worker_that_ends_is_named(launchers: Launchers, journal: Journal) -> None:
    found, _ = _jobs(launchers, journal, (FakeCase("killed"),), (FakeCase("a"),))
    assert {each.case: each.status for each in found} == {"job 0": "error", "a": "right"}
    lost = next(each for each in found if each.case == "job 0")
    assert "code 7" in lost.detail
    assert lost.phase == "fake"


@pytest.mark.slow
def test_nothing_is_begun_after_the_deadline(launchers: Launchers, journal: Journal) -> None:
    tasks = [(FakeCase(f"{at}"),) for at in range(50)]
    found, _ = _jobs(launchers, journal, *tasks, seconds=0.0)
    assert found == []


@pytest.mark.slow
def test_time_is_left_for_what_is_held_back(launchers: Launchers, journal: Journal) -> None:
    risky = [(FakeCase(f"{at}", is_risky=True),) for at in range(4)]
    others = [(FakeCase(f"{at}"),) for at in range(4, 100)]
    # Three of them are thought to take longer than there is.
    found, held = _jobs(launchers, journal, *risky, *others, reserve=lambda count: 250.0 * count)
    assert sum(batch.count for batch in held) in (3, 4)
    assert len(found) < 90
    last: list[Outcome] = []
    run_held(held, launchers, _deadline(), last.append)
    assert [each.status for each in last] == ["right"] * len(held)
