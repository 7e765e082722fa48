"""aotc agrees with Triton's interpreter: recorded, and live if Triton is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from tests.oracle import recorded
from tests.oracle.agree import cases, disagreement
from tests.oracle.cases import Case
from tests.oracle.compiled import answer
from tests.oracle.differences import DIFFERENCES, reason

_ROOT = Path(__file__).parents[2]


@cache
def _groups() -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases():
        groups[case.group].append(case)
    return groups


def _differs(case: Case, folder: Path) -> str | None:
    expected = recorded.read()[case.name][1]
    return disagreement(case, expected, answer(case, expected, folder))


def test_every_case_is_recorded() -> None:
    """Record changed cases again with `python -m tests.oracle.record`."""
    digests = {case.name: recorded.digest(case) for case in cases()}
    assert len(digests) == len(cases())
    assert {name: answered for name, (answered, _) in recorded.read().items()} == digests


@pytest.mark.parametrize("group", sorted({case.group for case in cases()}))
def test_a_case_agrees_with_triton(group: str, tmp_path: Path) -> None:
    differences = [
        _differs(case, tmp_path) for case in _groups()[group] if reason(case.name) is None
    ]
    wrong = [difference for difference in differences if difference is not None]
    assert not wrong, f"{len(wrong)} of {len(differences)}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize(("pattern", "why"), DIFFERENCES)
def test_a_listed_difference_is_there(pattern: str, why: str, tmp_path: Path) -> None:
    matched = [case for case in cases() if fnmatchcase(case.name, pattern)]
    assert matched
    assert why
    for case in matched:
        assert _differs(case, tmp_path) is not None, f"{case.name} does not differ"


_needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton: pip install -e '.[oracle]'"
)


def _record(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.oracle.record", *options]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


@_needs_triton
@pytest.mark.parametrize("every", [pytest.param("1", marks=pytest.mark.exhaustive), "5"])
def test_the_recording_is_of_triton(every: str) -> None:
    process = _record("--check", "--every", every)
    assert process.returncode == 0, process.stdout + process.stderr


@_needs_triton
def test_random_programs_agree_with_triton() -> None:
    process = _record("--programs", "60")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "'agree'" in process.stdout
