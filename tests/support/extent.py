"""How much of the tests is run: a part by default, everything in the gate, more before a release.

`pytest` alone runs each test function on two of its cases, the first and the last, Hypothesis on
fewer examples, of files that emulate PTX four functions, and leaves out those marked `slow`, so that
every module has its say in minutes.
`--everything` runs all cases; `--exhaustive` adds those marked `exhaustive`, for hours. Whoever
names files, folders or tests has all their cases run.

Invariant: which cases are run depends on their names and their order in the file alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

CASES_OF_A_FUNCTION = 2
CASES_EMULATED = 1  # of a function; each takes seconds
FUNCTIONS_EMULATED = 4  # of a file
KERNELS = 8  # of an end-to-end test
EXAMPLES = 20  # of a Hypothesis test that does not say how many; else as many as Hypothesis likes
_T = TypeVar("_T")
_EMULATED_FILE = re.compile(r"_(emulated|verified)$|^test_(descriptor|function)_kernels$")


def mark_emulated(items: Sequence[pytest.Item]) -> None:
    """Mark tests of files that say by their name that they emulate PTX."""
    for item in items:
        if _EMULATED_FILE.search(item.path.stem):
            item.add_marker(pytest.mark.emulated)


def is_few(config: pytest.Config) -> bool:
    """Whether nothing is named, and no option asks for more than a few cases of each test."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not (named or config.getoption("--everything") or config.getoption("--exhaustive"))


def is_run(config: pytest.Config, items: Sequence[pytest.Item]) -> Callable[[pytest.Item], bool]:
    """Return which of the collected tests are run under the options given."""
    if config.getoption("--exhaustive"):
        return lambda _: True
    if not is_few(config):
        return lambda item: item.get_closest_marker("exhaustive") is None
    chosen = {id(item) for item in choose(items)}
    return lambda item: id(item) in chosen


def choose(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return a few cases of each function, and of those in `e2e` one for each of some kernels."""
    groups: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive") is None and not item.get_closest_marker("slow"):
            groups[_group(item)].append(item)
    cases = [item for group in groups.values() for item in spread(group, _limit(group[0]))]
    wholes: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in cases:
        if item.get_closest_marker("emulated"):
            wholes[item.path].append(item)
        elif _is_of_kernels(item):
            wholes[_function(item)].append(item)
    limits = {
        whole: KERNELS if isinstance(whole, tuple) else FUNCTIONS_EMULATED for whole in wholes
    }
    left_out = {
        id(item)
        for whole, items in wholes.items()
        for item in set(items) - set(spread(items, limits[whole]))
    }
    return [item for item in cases if id(item) not in left_out]


def _function(item: pytest.Item) -> tuple[Hashable, ...]:
    return (item.path, getattr(item, "originalname", item.name), getattr(item, "cls", None))


def _group(item: pytest.Item) -> Hashable:
    function = _function(item)
    if _is_of_kernels(item):
        _, _, case = item.name.partition("[")
        kernel = re.split(r"[- \]]", case)[0]
        # A name such as `block6` is pytest's own, of an argument: no kernel is called so.
        return (*function, re.sub(r"^([a-z]+)\d+$", r"\1", kernel))
    return function


def _limit(item: pytest.Item) -> int:
    if item.get_closest_marker("emulated"):
        return CASES_EMULATED
    return 1 if _is_of_kernels(item) else CASES_OF_A_FUNCTION


def _is_of_kernels(item: pytest.Item) -> bool:
    """Whether a test's cases are named for a kernel, and then for its variants."""
    end_to_end = Path(item.path).parent.name == "e2e"
    return end_to_end and item.get_closest_marker("emulated") is None


def examples(count: int) -> int:
    """Return how many examples a Hypothesis test tries that needs `count` where everything is run."""
    return max(1, count * settings.default.max_examples // 100)  # 100 is what Hypothesis likes


def spread(cases: Sequence[_T], limit: int) -> list[_T]:
    """Return at most `limit` cases, as far apart as can be: the first and the last among them."""
    if len(cases) <= limit:
        return list(cases)
    if limit == 1:
        return [cases[0]]
    last = len(cases) - 1
    return [cases[round(number * last / (limit - 1))] for number in range(limit)]
