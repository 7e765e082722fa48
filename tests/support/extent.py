"""Selection of tests: a part by default, everything in the gate, more before a release.

`pytest` alone covers every module in minutes. It runs the first and the last case of each test
function, Hypothesis on fewer examples, and four functions of each file of emulated PTX. It leaves
out tests marked `slow`.
`--everything` runs all cases; `--exhaustive` adds tests marked `exhaustive`, for hours. Files,
folders or tests given by name run with all their cases.

Invariant: the selection depends on the names and the order of cases in the file alone.
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
EXAMPLES = 20  # of a Hypothesis test without a count of its own; else Hypothesis' default
_T = TypeVar("_T")
_EMULATED_FILE = re.compile(r"_(emulated|verified)$")


def mark_emulated(items: Sequence[pytest.Item]) -> None:
    """Mark tests of files named for emulating PTX."""
    for item in items:
        if _EMULATED_FILE.search(item.path.stem):
            item.add_marker(pytest.mark.emulated)


def is_few(config: pytest.Config) -> bool:
    """Return whether to run a few cases per test: no test named, no option for more."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not (named or config.getoption("--everything") or config.getoption("--exhaustive"))


def is_run(config: pytest.Config, items: Sequence[pytest.Item]) -> Callable[[pytest.Item], bool]:
    """Select the collected tests to run under the options."""
    if config.getoption("--exhaustive"):
        return lambda _: True
    if not is_few(config):
        return lambda item: item.get_closest_marker("exhaustive") is None
    chosen = {id(item) for item in choose(items)}
    return lambda item: id(item) in chosen


def choose(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return a few cases of each function; in `e2e`, one case for each of some kernels."""
    groups: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive") is None and not item.get_closest_marker("slow"):
            groups[_group(item)].append(item)
    cases = [item for group in groups.values() for item in spread(group, _limit(group[0]))]
    wholes: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in cases:
        if item.get_closest_marker("emulated"):
            wholes[item.path if _manifest(item) is None else _function(item)].append(item)
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
    name = getattr(item, "originalname", item.name)
    return (item.path, name, getattr(item, "cls", None), _manifest(item))


def _manifest(item: pytest.Item) -> str | None:
    """Return the argument `manifest` of an emulated test: a test for each is run."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or not item.get_closest_marker("emulated"):
        return None
    return callspec.params.get("manifest")


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
    """Return whether a test's cases are named for a kernel, and then for its variants."""
    end_to_end = Path(item.path).parent.name == "e2e"
    return end_to_end and item.get_closest_marker("emulated") is None


def examples(count: int) -> int:
    """Return the number of Hypothesis examples, given the `count` of a full run."""
    return max(1, count * settings.default.max_examples // 100)  # 100 is Hypothesis' default


def spread(cases: Sequence[_T], limit: int) -> list[_T]:
    """Return at most `limit` cases, as far apart as can be: the first and the last among them."""
    if len(cases) <= limit:
        return list(cases)
    if limit == 1:
        return [cases[0]]
    last = len(cases) - 1
    return [cases[round(number * last / (limit - 1))] for number in range(limit)]
