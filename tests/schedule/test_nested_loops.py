"""The work of passes on nested loops is bounded by a power of their depth, not exponential."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aotc.compiler import check_request, translate_request
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.shared_memory import insert_barriers
from tests.support.repeated_kernels import NESTS, repeated

DEPTHS = (6, 12, 18)


class _Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)

    def __get__(self, instance: object, _: type) -> Callable[..., Any]:
        return lambda *args: self(instance, *args)


def _schedule(name: str, depth: int) -> None:
    request = repeated(name, depth)
    schedule = Schedule(check_request(request), request.config, map_pointers=True)
    schedule_kernel(translate_request(request).kernel, schedule)


@pytest.mark.parametrize("name", [name for name in NESTS if name != "nested loops"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_barriers_visit_few_blocks(name: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two visits at each level are 64, 4,096 and 262,144 of the innermost block."""
    visit = _Counted(insert_barriers._visit)
    monkeypatch.setattr(insert_barriers, "_visit", visit)
    _schedule(name, depth)
    assert depth < visit.calls <= depth**3 // 4 + 8 * depth


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_affine_analysis_visits_few_ops(
    name: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each analysis of a kernel visits an op at most twice."""
    visit = _Counted(AffineAnalysis._visit_op)
    whole = _Counted(AffineAnalysis.__init__)
    monkeypatch.setattr(AffineAnalysis, "_visit_op", visit)
    monkeypatch.setattr(AffineAnalysis, "__init__", whole)
    _schedule(name, depth)
    assert depth < visit.calls <= whole.calls * (100 + 30 * depth)
