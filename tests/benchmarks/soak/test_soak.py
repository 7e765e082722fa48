"""A phase: everything gets its outcome, what is risky comes last, a hang ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotc.package.workers import Job
from benchmarks.soak.journal import Journal, Outcome
from benchmarks.soak.launcher import Batch, Launcher
from benchmarks.soak.soak import Limits, Work, run_held, run_phase
from tests.benchmarks.soak.fake_cases import FakeCase, FakeDevice, prepare


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(FakeDevice, Journal(tmp_path / "journal.jsonl"), limit_seconds=30.0)
    yield made
    made.close()


def _limits(seconds: float = 600.0) -> Limits:
    return Limits(num_workers=2, deadline=time.monotonic() + seconds)


def _phase(
    launcher: Launcher,
    folder: Path,
    *tasks: tuple[FakeCase, ...],
    limits: Limits | None = None,
    holds_all: bool = False,
) -> tuple[list[Outcome], list[Batch]]:
    found: list[Outcome] = []
    work = Work("fake", prepare, folder, holds_all=holds_all)
    jobs = [Job(f"job {at}", task) for at, task in enumerate(tasks)]
    held = run_phase(jobs, work, launcher, limits or _limits(), found.append)
    return found, held


def test_every_case_has_one_outcome(launcher: Launcher, tmp_path: Path) -> None:
    tasks = [(FakeCase(f"{at}a"), FakeCase(f"{at}b", ("wrong",))) for at in range(5)]
    found, held = _phase(launcher, tmp_path, *tasks, (FakeCase("dropped"),))
    expected = {f"{at}a": "right" for at in range(5)} | {f"{at}b": "wrong" for at in range(5)}
    assert {each.case: each.status for each in found} == expected | {"dropped": "dropped"}
    assert len(found) == 11
    assert held == []
    assert launcher.journal.read().known("fake") == set(expected) | {"dropped"}


def test_what_is_risky_is_held_back_in_order(launcher: Launcher, tmp_path: Path) -> None:
    tasks = [(FakeCase(f"{at}", is_risky=at % 2 == 0), FakeCase(f"{at}s")) for at in range(6)]
    found, held = _phase(launcher, tmp_path, *tasks)
    assert {each.case for each in found} == {"1", "3", "5"} | {f"{at}s" for at in range(6)}
    last: list[Outcome] = []
    run_held(held, launcher, _limits(), last.append)
    assert [each.case for each in last] == ["0", "2", "4"]


def test_nothing_is_launched_after_a_hang(launcher: Launcher, tmp_path: Path) -> None:
    cases = (FakeCase("0"), FakeCase("1", ("hang",)), FakeCase("2"))
    found, held = _phase(launcher, tmp_path, *((case,) for case in cases), holds_all=True)
    assert found == []
    last: list[Outcome] = []
    run_held(held[:1], launcher, _limits(), last.append)
    launcher.limit_seconds = 1.0
    run_held(held[1:], launcher, _limits(), last.append)
    assert [(each.case, each.status) for each in last] == [("0", "right"), ("1", "hang")]
    more, _ = _phase(launcher, tmp_path, *((FakeCase(f"{at}"),) for at in range(3, 40)))
    assert more == []


def test_a_worker_that_ends_is_named(launcher: Launcher, tmp_path: Path) -> None:
    found, _ = _phase(launcher, tmp_path, (FakeCase("killed"),), (FakeCase("a"),))
    assert {each.case: each.status for each in found} == {"job 0": "error", "a": "right"}
    assert "code 7" in next(each.detail for each in found if each.case == "job 0")


def test_nothing_is_begun_after_the_deadline(launcher: Launcher, tmp_path: Path) -> None:
    tasks = [(FakeCase(f"{at}"),) for at in range(50)]
    found, _ = _phase(launcher, tmp_path, *tasks, limits=_limits(0.0))
    assert found == []
