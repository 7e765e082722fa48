"""Sessions without GPUs: launches are shared, tuned again without rejected configs, never lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aotc.package.tuning.shapes import Launch
from aotc.tuning.journal import Journal
from aotc.tuning.launch_tuner import Options, UntunableError
from aotc.tuning.launcher import NoWorkerError
from aotc.tuning.results import table_of, times_of
from aotc.tuning.run_state import RunState, Task
from aotc.tuning.session import Schedule, Session
from tests.support.tuned_archive import TARGET, scale_kernel


@dataclass
class Records:
    """Records in memory."""

    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)


@dataclass
class Listening:
    """Keeps all reports."""

    started_with: tuple[int, int] = (0, 0)
    outcomes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    warnings: list[str] = field(default_factory=list[str])

    def started(self, num_variants: int, num_cached: int) -> None:
        self.started_with = num_variants, num_cached

    def advanced(self, label: str, state: str, seconds: float) -> None:
        assert seconds >= 0
        self.outcomes.append((label, state))

    def warned(self, message: str) -> None:
        self.warnings.append(message)


@dataclass
class Scripted:
    """A GPU where config I takes I + 1 microseconds, with scripted failures."""

    gpu: str = "A"
    script: Callable[[Task, RunState], None] = lambda _task, _known: None
    tuned: list[int] = field(default_factory=list[int])
    is_closed: bool = False

    def tune(self, task: Task, state: RunState, options: Options) -> None:
        assert options.confidence > 0
        self.tuned.append(task.launch.key["n"])
        time.sleep(0.001)
        self.script(task, state)
        left = [config for config in range(4) if config not in state.rejected(task)]
        state.finish(task, {config: (config + 1) * 1e-6 for config in left}, 9)

    def close(self) -> None:
        self.is_closed = True


def tasks(count: int, gpu: str = "A") -> list[Task]:
    kernel = replace(scale_kernel(4), variants=())
    launches = [Launch("scale", {}, {}, {"n": n}) for n in range(count)]
    return [Task(launch, kernel, (), TARGET, gpu, (0, 1, 2, 3)) for launch in launches]


def run(
    listed: Sequence[Task], tuners: Sequence[Scripted], state: RunState
) -> tuple[Schedule, Listening]:
    schedule, listening = Schedule(listed, state), Listening()
    Session(schedule, Options(), listening, threading.Event()).run(tuners)
    assert all(tuner.is_closed for tuner in tuners)
    return schedule, listening


def test_gpus_of_a_kind_share_the_launches_and_each_kind_tunes_all() -> None:
    listed = [*tasks(40), *tasks(40, "B")]
    tuners = [Scripted("A"), Scripted("A"), Scripted("B")]
    state = RunState(Records())
    run(listed, tuners, state)
    assert sorted(tuners[0].tuned + tuners[1].tuned) == list(range(40))
    assert tuners[0].tuned
    assert tuners[1].tuned
    assert sorted(tuners[2].tuned) == list(range(40))
    table = table_of(listed, state, Options(), {"A": "12.8"}, "2026-11-28")
    assert [(t.gpu, t.driver, len(t.measurements)) for t in table.kernels] == [
        ("A", "12.8", 40),
        ("B", "", 40),
    ]


def test_launches_that_a_wrong_config_won_are_tuned_again_without_it() -> None:
    def script(task: Task, state: RunState) -> None:
        if task.launch.key["n"] == 5 and not state.rejected(task):
            state.reject(task, 0, "is wrong", ": so")

    listed, state, tuner = tasks(8), RunState(Records()), Scripted(script=script)
    _, listening = run(listed, [tuner], state)
    assert sorted(tuner.tuned) == sorted([*range(5), *range(8)])
    for task in listed:
        assert list(times_of(task, state)) == [1, 2, 3]
    assert listening.warnings == ["scale BLOCK=64: is wrong: so, at scale n=5"]
    (tuning,) = table_of(listed, state, Options(), {}, "").kernels
    assert tuning.rejected == {0: "is wrong"}
    assert all(launch.seconds[0] is None for launch in tuning.measurements)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    listed = tasks(6)
    with Journal(tmp_path / "j", {"run": 1}) as journal:
        run(listed[:4], [Scripted()], RunState(journal))
    with Journal(tmp_path / "j", {"run": 1}) as journal:
        tuner = Scripted()
        _, listening = run(listed, [tuner], RunState(journal))
    assert sorted(tuner.tuned) == [4, 5]
    assert listening.started_with == (6, 4)


def test_a_gpu_that_is_lost_leaves_its_launch_to_the_others() -> None:
    def lost(_task: Task, _known: RunState) -> None:
        raise NoWorkerError("gone")

    listed, state = tasks(10), RunState(Records())
    _, listening = run(listed, [Scripted(script=lost), Scripted()], state)
    assert all(state.is_done(task) for task in listed)
    assert listening.warnings == ["A is of no use any more: gone"]


def test_a_launch_that_cannot_be_tuned_is_named_and_the_rest_goes_on() -> None:
    def script(task: Task, _known: RunState) -> None:
        if task.launch.key["n"] == 2:
            raise UntunableError("no config fits")

    listed, state = tasks(4), RunState(Records())
    schedule, listening = run(listed, [Scripted(script=script)], state)
    assert schedule.failures == {listed[2].number: "no config fits"}
    assert ("scale n=2", "FAILED: no config fits") in listening.outcomes
    assert [state.is_done(task) for task in listed] == [True, True, False, True]


def test_a_bug_in_a_thread_is_raised() -> None:
    def bug(_task: Task, _known: RunState) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tasks(3), [Scripted(script=bug), Scripted()], RunState(Records()))
