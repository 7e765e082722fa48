"""The driver without a GPU: candidates that are wrong, the fastest of a peer, and its row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import bench as bench_file
from benchmarks.harness import measure
from benchmarks.harness.bench import Bench, Candidate, Choice
from benchmarks.harness.operands import Arguments, Arrays, HostArrays, Part, Tolerance
from benchmarks.harness.task import Task
from benchmarks.harness.workload import Peer, Step, Workload


def _reference(_: Arrays, args: Arguments) -> Iterator[Part]:
    yield Part("out", slice(None), args["x"].astype(np.float64) * 2)


def _workload(**changes: Any) -> Workload:
    entries = {
        "name": "doubles",
        "manifest": "kernels.toml",
        "work": 2e9,
        "unit": "TB/s",
        "operands": lambda arrays: {
            "x": arrays.normal(40, dtype="fp32"),
            "out": arrays.empty(40, dtype="fp32"),
        },
        "reference": _reference,
        "tolerance": Tolerance(value=1e-6),
        "outputs": ("out",),
        "triton": None,
        "sets": 2,
    }
    return Workload(**{**entries, **changes})


class _Library(dict[str, Any]):
    """An archive whose kernels double, in configs with their milliseconds and their factor."""


class _FakeBench(Bench):
    """A bench on arrays of the host, with times that candidates have."""

    def __init__(self, workload: Workload, task: Task) -> None:
        self.workload, self.task, self.library = workload, task, _Library()
        self.arrays = HostArrays()
        self.sets = [workload.operands(self.arrays) for _ in range(workload.sets)]
        self.expected = list(workload.reference(self.arrays, self.sets[0]))
        self.turns = itertools.count()
        self.yardstick = None


def _task(**changes: Any) -> Task:
    entries: dict[str, Any] = {
        "family": "rows", "items": [], "only": [], "archive": "x.aotc", "seconds": 60.0,
        "peers": None, "host": False, "triton_cache": "", "done": [], "bad": [],
    }  # fmt: skip
    return Task(**{**entries, **changes})


def _candidate(label: str, factor: float, *, writes: int = 40) -> Candidate:
    def bind(args: Arguments) -> Any:
        def launch() -> None:
            args["out"][:writes] = (args["x"] * np.float32(factor))[:writes]

        launch.label = label  # type: ignore[attr-defined]
        return launch

    return Candidate(label, bind)


@pytest.fixture(name="times")
def _times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return the milliseconds of candidates by label, in place of a GPU's."""
    times = {"slow": 3.0, "fast": 1.0, "wrong": 0.1, "partial": 0.1}

    def of_turn(calls: Any, _: Any) -> Any:
        return calls[0]

    def in_turn(launches: Any, rounds: int, *_: Any, **__: Any) -> Any:
        return {name: [times[launch.label]] * rounds for name, launch in launches.items()}

    def ranked(launches: Any, *_: Any, **__: Any) -> Any:
        return sorted((times[launch.label], name) for name, launch in launches.items())

    for function in (of_turn, in_turn, ranked):
        monkeypatch.setattr(bench_file, function.__name__, function)
    monkeypatch.setattr(bench_file, "survive", lambda: None)
    return times


def test_the_fastest_of_the_right_candidates_is_chosen(
    times: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    bench = _FakeBench(_workload(), _task())
    candidates = [
        _candidate("slow", 2),
        _candidate("wrong", 3),
        _candidate("fast", 2),
        _candidate("partial", 2, writes=39),
    ]
    choice = bench.choose("aotc", candidates)
    assert choice is not None
    assert (choice.label, choice.failed) == ("fast", 2)
    printed = capsys.readouterr().out
    assert '"trying": "doubles: aotc: wrong"' in printed
    assert "wrong by inf of what is tolerated" in printed, "a result that is left out is NaN"
    times["slow"] = 0.5
    assert bench.choose("aotc", candidates).label == "slow"


def test_bad_candidates_are_not_tried_again(times: dict[str, float]) -> None:
    bench = _FakeBench(_workload(), _task(bad=["doubles: aotc: fast"]))
    choice = bench.choose("aotc", [_candidate("fast", 2), _candidate("slow", 2)])
    assert choice is not None
    assert choice.label == "slow"


def test_no_right_candidate_is_no_choice(times: dict[str, float]) -> None:
    assert _FakeBench(_workload(), _task()).choose("aotc", [_candidate("wrong", 3)]) is None


def test_a_row_has_the_figure_and_ratios_by_the_share_of_the_work() -> None:
    def nothing(_: Arguments) -> Any:
        return lambda: None

    workload = _workload(peers={"copy": Peer(nothing, share=0.5)})
    choices = {
        name: Choice(f"{name} config", lambda: None, failed)
        for name, failed in (("aotc", 0), ("copy", 2))
    }
    row = measure.row_of(workload, {"aotc": [1.0, 1.0, 2.0], "copy": [2.0, 2.0, 4.0]}, choices)
    assert (row["work"], row["unit"], row["figure"]) == ("doubles", "TB/s", 2.0)
    assert row["figures"] == {"aotc": 2.0, "copy": 0.5}
    assert row["ratios"] == {"copy": 4.0}
    assert row["failed"] == {"copy": 2}
    in_time = measure.row_of(_workload(unit="µs"), {"aotc": [0.0321]}, {})
    assert in_time["figure"] == 32.1


def test_alternatives_are_ranked_alone_and_the_fastest_combined(times: dict[str, float]) -> None:
    times |= {f"k BLOCK={block}": float(block) for block in (8, 1, 4, 2)}
    bench = _FakeBench(_workload(), _task())
    steps = [Step("k", {"BLOCK": block}) for block in (8, 1, 4, 2)]

    def bind(plan: Any, _: Arguments) -> Any:
        def launch() -> None:
            if plan[0].config == {"BLOCK": 1}:
                raise MemoryError("shared memory")

        launch.label = plan[0].label  # type: ignore[attr-defined]
        return launch

    candidates = list(bench.combined("aotc", (Step("first"), steps), bind))
    assert [candidate.label for candidate in candidates] == [
        "first, k BLOCK=2",
        "first, k BLOCK=4",
    ]


@pytest.mark.parametrize(
    ("tolerance", "actual", "error"),
    [
        (Tolerance(value=0.1), [1.1, 2.0], 1.0),
        (Tolerance(largest=0.1), [1.0, 2.1], 0.5),
        (Tolerance(typical=1.0), [1.0, 2.0 + 2.5**0.5], 1.0),
        (Tolerance(), [1.0, 2.0], 0.0),
        (Tolerance(), [1.0, 2.001], np.inf),
        (Tolerance(largest=0.1), [np.nan, 2.0], np.inf),
    ],
)
def test_the_error_is_a_multiple_of_what_is_tolerated(
    tolerance: Tolerance, actual: list[float], error: float
) -> None:
    expected = np.array([1.0, 2.0])
    assert tolerance.error(np.array(actual), expected) == pytest.approx(error)


def test_a_library_that_binds_its_results_anew_does_not_stand_in_for_a_plan(
    times: dict[str, float],
) -> None:
    def library(args: Arguments) -> Any:
        def launch() -> None:
            args["out"] = args["x"] * 2

        launch.label = "fast"  # type: ignore[attr-defined]
        return launch

    def plan(args: Arguments) -> Any:
        def launch() -> None:
            args["out"][:] = args["x"] * 3

        launch.label = "wrong"  # type: ignore[attr-defined]
        return launch

    bench = _FakeBench(_workload(), _task())
    choice = bench.choose("torch", [Candidate("fast", library)])
    assert choice is not None
    choice.launch()
    assert bench.choose("aotc", [Candidate("wrong", plan, (Step("k"),))]) is None


def test_the_time_for_tuning_begins_with_the_first_candidate(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(100, 10)
    monkeypatch.setattr(bench_file.time, "monotonic", lambda: float(next(clock)))

    def compiled_first() -> Iterator[Candidate]:
        next(clock)  # as long as all of tuning may take
        yield _candidate("slow", 2)
        yield _candidate("fast", 2)

    choice = _FakeBench(_workload(), _task(seconds=15.0)).choose("Triton", compiled_first())
    assert choice is not None
    assert choice.label == "slow", "the second is beyond the time"
