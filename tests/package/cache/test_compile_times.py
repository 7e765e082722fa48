"""Times of compiles: measured ones are kept, others are estimated and marked as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import CompileRequest
from aotc.package.cache.compile_times import DEFAULT_SECONDS, FOLDER, CompileTimes


def _request(kernel: str = "k", target: str = "sm_80", value: int = 0) -> CompileRequest:
    return CompileRequest("k.py", kernel, (), (("I", value),), target)


def test_estimates_are_from_what_is_nearest(tmp_path: Path) -> None:
    times = CompileTimes(tmp_path)
    assert times.seconds(_request()) == (DEFAULT_SECONDS, "guessed")
    times.note(_request(value=1), 1.0)
    times.note(_request(value=2), 3.0)
    times.note(_request(target="sm_90a"), 8.0)
    times.save()
    reopened = CompileTimes(tmp_path)
    assert reopened.seconds(_request(value=1)) == (1.0, "measured")
    assert reopened.seconds(_request(value=9)) == (2.0, "estimated")
    assert reopened.seconds(_request(target="sm_89")) == (4.0, "estimated")
    assert reopened.seconds(_request("other")) == (4.0, "estimated")


def test_two_builds_add_up(tmp_path: Path) -> None:
    builds = [CompileTimes(tmp_path), CompileTimes(tmp_path)]
    for index, times in enumerate(builds):
        times.note(_request(value=index), 1.0 + index)
    for times in builds:
        times.save()
    reopened = CompileTimes(tmp_path)
    assert [reopened.seconds(_request(value=i)) for i in (0, 1)] == [
        (1.0, "measured"),
        (2.0, "measured"),
    ]


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_damaged_times_are_no_times(tmp_path: Path, damage: bytes) -> None:
    times = CompileTimes(tmp_path)
    times.note(_request(), 1.0)
    times.save()
    (path,) = (path for path in (tmp_path / FOLDER).rglob("*") if path.is_file())
    path.write_bytes(damage)
    assert CompileTimes(tmp_path).seconds(_request()) == (DEFAULT_SECONDS, "guessed")


def test_no_folder_keeps_nothing() -> None:
    times = CompileTimes(None)
    times.note(_request(), 1.0)
    times.save()
    assert times.seconds(_request()) == (1.0, "measured")
