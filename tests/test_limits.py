"""Names and values of limits."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import CompileError
from aotc.limits import (
    COMPILE_LIMITS,
    DEFAULT_LIMITS,
    LIMITS,
    CompileLimits,
    compile_limits,
    limit_problem,
    split_limits,
)


@pytest.mark.parametrize("name", LIMITS)
def test_what_fits(name: str) -> None:
    assert [limit_problem(name, value) for value in (256, 1 << 40)] == ["", ""]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_what_does_not(name: str, value: object) -> None:
    assert limit_problem(name, value).startswith("expected an integer from ")


def test_only_nothing_may_be_spilled_and_nothing_else_is_none() -> None:
    assert [name for name in LIMITS if not limit_problem(name, 0)] == ["spill_bytes"]


@pytest.mark.parametrize(("value", "is_wrong"), [(True, False), (False, False), (1, True)])
def test_strict_is_true_or_false(value: object, *, is_wrong: bool) -> None:
    assert bool(limit_problem("strict", value)) == is_wrong


def test_limits_by_name() -> None:
    assert compile_limits({}) == DEFAULT_LIMITS
    assert compile_limits({"ptxas_seconds": 5}) == CompileLimits(ptxas_seconds=5)
    assert compile_limits(dict.fromkeys(COMPILE_LIMITS, 300)) == CompileLimits(*[300] * 5)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"ptxas_second": 5}, "got 'ptxas_second'\n  help: did you mean 'ptxas_seconds'"),
        ({"spill_bytes": 5}, "got 'spill_bytes'"),
        ({"instructions": 0}, "expected an integer from 1 on for instructions, got 0"),
    ],
)
def test_mistakes(limits: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_limits(limits)
    assert message in str(caught.value)


def test_what_may_be_spilled_is_apart() -> None:
    assert split_limits({}) == (None, {})
    assert split_limits({"strict": True}) == (256, {})
    assert split_limits({"spill_bytes": 0, "operations": 5}) == (None, {"operations": 5})
    assert split_limits({"spill_bytes": 0, "strict": True}) == (0, {})
    with pytest.raises(CompileError, match="for spill_bytes, got True"):
        split_limits({"spill_bytes": True})
