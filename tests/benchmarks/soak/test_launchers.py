"""Several launchers: all take part, each sees its own GPU, a hang ends only its GPU's launches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.soak.journal import Journal, Outcome, Record
from benchmarks.soak.launcher import Batch, NoLauncherError, write_batch
from benchmarks.soak.launchers import Launchers
from tests.benchmarks.soak.fake_cases import FakeCase, FakeDevice, no_device


class NamedDevice(FakeDevice):
    """A device named after its process's visible GPU."""

    def __init__(self) -> None:
        super().__init__("GPU " + os.environ.get("CUDA_VISIBLE_DEVICES", "of this machine"))


class OneKind(FakeDevice):
    """A device with several instances."""


@contextmanager
def _opened(folder: Path, *gpus: str, per_gpu: int = 1) -> Iterator[Launchers]:
    journal = Journal(folder / "journal.jsonl")
    launchers = Launchers(FakeDevice, journal, 30.0, gpus or ("",), per_gpu)
    try:
        yield launchers
    finally:
        launchers.close()


def _launch(launchers: Launchers, folder: Path, *cases: FakeCase) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with launchers.launching(4, lambda: False, outcomes.append) as launching:
        for case in cases:
            launching.put(write_batch("fake", folder / case.name, [case]))
    return outcomes


def test_all_launch_at_a_time_and_each_case_once(tmp_path: Path) -> None:
    with _opened(tmp_path, "0", "1", per_gpu=2) as launchers:
        launchers.open()
        start = time.monotonic()
        cases = [FakeCase(f"{number}", ("slow", "slow")) for number in range(8)]
        outcomes = _launch(launchers, tmp_path, *cases)
        assert time.monotonic() - start < 8 * 0.4  # as long as it takes one after the other
    assert sorted(outcome.case for outcome in outcomes) == [f"{number}" for number in range(8)]
    assert {outcome.status for outcome in outcomes} == {"right"}
    assert all(launcher.busy_seconds > 0 for launcher in launchers.each)
    assert not list(tmp_path.glob("[0-9]"))


@pytest.mark.slow
def test_each_gpu_is_seen_by_its_launchers_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    launchers = Launchers(NamedDevice, journal, 30.0, ("3", "GPU-1"), 2)
    try:
        launchers.open()
        assert launchers.device == "GPU 3; GPU GPU-1"
        assert [launcher.device for launcher in launchers.each] == ["GPU 3", "GPU GPU-1"] * 2
    finally:
        launchers.close()
    launchers = Launchers(OneKind, journal, 30.0, ("0", "1"))
    try:
        launchers.open()
        assert launchers.device == "2 x a fake device"
    finally:
        launchers.close()


def test_a_hang_ends_what_is_on_its_gpu_and_the_other_goes_on(tmp_path: Path) -> None:
    with _opened(tmp_path, "0", "1") as launchers:
        launchers.open()
        for launcher in launchers.each:
            launcher.limit_seconds = 2.0
        path = tmp_path / "first"
        first = write_batch("fake", path, [FakeCase("a"), FakeCase("b", ("hang",)), FakeCase("c")])
        outcomes: list[Outcome] = []
        with launchers.launching(4, lambda: False, outcomes.append) as launching:
            launching.put(first)
            deadline = time.monotonic() + 20
            while not launchers.hung and time.monotonic() < deadline:
                time.sleep(0.05)
            for number in range(5):
                launching.put(write_batch("fake", tmp_path / f"{number}", [FakeCase(f"{number}")]))
    statuses = {outcome.case: outcome.status for outcome in outcomes}
    # The rest of the first one went to the other GPU.
    expected = dict.fromkeys(("a", "c", *map(str, range(5))), "right")
    assert statuses == expected | {"b": "hang"}
    assert [outcome.case for outcome in launchers.hung] == ["b"]
    assert not path.exists()


def test_what_comes_back_from_a_hang_when_all_else_has_ended_is_launched(tmp_path: Path) -> None:
    with _opened(tmp_path, "0", "1") as launchers:
        launchers.open()
        for launcher in launchers.each:
            launcher.limit_seconds = 1.0
        outcomes: list[Outcome] = []

        def say(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if outcome.status == "hang":
                time.sleep(0.5)  # the other one finds nothing more in the meantime

        with launchers.launching(4, lambda: False, say) as launching:
            cases = [FakeCase("b", ("hang",)), FakeCase("c")]
            launching.put(write_batch("fake", tmp_path / "first", cases))
    assert {ended.case: ended.status for ended in outcomes} == {"b": "hang", "c": "right"}


def test_what_is_under_way_beside_a_hang_has_its_time(tmp_path: Path) -> None:
    with _opened(tmp_path, per_gpu=2) as launchers:
        launchers.open()
        for launcher in launchers.each:
            launcher.limit_seconds = 1.0
        # Each of its launches is within the limit, all of them take longer than the hang.
        long = FakeCase("long", ("slow",) * 12)
        outcomes = _launch(launchers, tmp_path, long, FakeCase("b", ("hang",)), FakeCase("c"))
    assert {outcome.case: outcome.status for outcome in outcomes} == {
        "long": "right",
        "b": "hang",
    }
    assert _read(launchers).open == {}


def _read(launchers: Launchers) -> Record:
    return launchers.each[0].journal.read()


def test_nothing_is_begun_when_it_is_late(tmp_path: Path) -> None:
    late = threading.Event()
    with _opened(tmp_path) as launchers:
        outcomes: list[Outcome] = []

        def say(outcome: Outcome) -> None:
            outcomes.append(outcome)
            late.set()

        with launchers.launching(1, late.is_set, say) as launching:
            cases = [FakeCase("a"), FakeCase("b")]
            launching.put(write_batch("fake", tmp_path / "ab", cases))
            for number in range(9):
                launching.put(Batch("fake", tmp_path / f"{number}", 1))
            assert launching.is_over
    assert [late_outcome.case for late_outcome in outcomes] == ["a"]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    launchers = Launchers(no_device, Journal(tmp_path / "journal.jsonl"), 30.0, ("0", "7"))
    with pytest.raises(NoLauncherError, match="^no GPU here$"):
        launchers.open()
    # A launcher missed later ends all.
    with (
        pytest.raises(NoLauncherError, match="^no GPU here$"),
        launchers.launching(1, lambda: False, lambda _: None) as launching,
    ):
        for number in range(9):
            launching.put(Batch("fake", tmp_path / f"{number}", 1))
