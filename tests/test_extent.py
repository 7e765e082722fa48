"""The default selection of tests: a few cases of each function, in source order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.extent import is_few, is_run, mark_emulated, spread


@dataclass(eq=False)
class _Item:
    path: Path
    originalname: str
    name: str
    markers: set[str] = field(default_factory=set)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers.add(marker.name)


@dataclass
class _Config:
    option: str | None
    args_source: pytest.Config.ArgsSource = pytest.Config.ArgsSource.TESTPATHS

    def getoption(self, name: str) -> bool:
        return name == self.option


def _items() -> Iterator[_Item]:
    for file in ("ir/test_cases.py", "e2e/test_some_emulated.py", "e2e/test_some_verified.py"):
        for number in range(9):
            yield _Item(Path("tests") / file, "test_cases", f"test_cases[{number}]")
    for number in range(9):
        yield _Item(Path("tests/e2e/test_many_emulated.py"), f"test_{number}", f"test_{number}")
    for case in ("matmul-0", "matmul-1", "softmax sm_80", "softmax sm_90a"):
        yield _Item(Path("tests/e2e/test_kernels.py"), "test_kernels", f"test_kernels[{case}]")
    for number in range(9):
        yield _Item(
            Path("tests/e2e/test_kernels.py"), "test_many", f"test_many[{'abcdefghi'[number]}]"
        )
    for case in ("block0-4", "block1-8", "block2-8"):  # pytest's names of arguments, not kernels
        yield _Item(Path("tests/e2e/test_kernels.py"), "test_blocks", f"test_blocks[{case}]")
    yield _Item(Path("tests/ir/test_cases.py"), "test_alone", "test_alone")
    yield _Item(Path("tests/ir/test_cases.py"), "test_long", "test_long", {"exhaustive"})
    yield _Item(Path("tests/ir/test_cases.py"), "test_builds", "test_builds", {"slow"})


@pytest.mark.parametrize(
    ("count", "limit", "chosen"),
    [
        (0, 4, []),
        (1, 4, [0]),
        (4, 4, [0, 1, 2, 3]),
        (5, 4, [0, 1, 3, 4]),
        (17, 4, [0, 5, 11, 16]),
        (17, 1, [0]),
    ],
)
def test_cases_are_far_apart(count: int, limit: int, chosen: list[int]) -> None:
    assert spread(range(count), limit) == chosen


def _num_run(config: _Config) -> int:
    items = list(_items())
    mark_emulated(items)  # type: ignore[arg-type]
    runs = is_run(config, items)  # type: ignore[arg-type]
    return sum(runs(item) for item in items)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "count"),
    [
        (None, 2 + 1 + 1 + 4 + 2 + 8 + 1 + 1),
        ("--everything", 9 + 9 + 9 + 9 + 9 + 4 + 3 + 2),
        ("--exhaustive", 9 + 9 + 9 + 9 + 9 + 4 + 3 + 2 + 1),
    ],
)
def test_options_say_how_much_is_run(option: str | None, count: int) -> None:
    assert _num_run(_Config(option)) == count
    assert is_few(_Config(option)) == (option is None)  # type: ignore[arg-type]


def test_what_is_named_is_run_whole() -> None:
    assert _num_run(_Config(None, pytest.Config.ArgsSource.ARGS)) == 9 + 9 + 9 + 9 + 9 + 4 + 3 + 2
