"""Programs of heuristics give their functions' answers, type included, or none."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.runtime import _native
from aotc.triton.heuristic import program_of
from tests.support.extent import examples

NAMES = ("M", "N", "K", "x_ptr", "FLAG", "LATE")
limit = 64
PROGRAMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "EVEN": lambda args: args["N"] % args["K"] == 0,
    "BOTH": lambda args: args["M"] % 16 == 0 and args["N"] % 16 == 0,
    "EITHER": lambda args: args["M"] or args["N"],
    "HAS": lambda args: args["x_ptr"] is not None,
    "HAS_NOT": lambda nargs: nargs["x_ptr"] is None or not nargs["FLAG"],
    "BLOCK": lambda args: min(128, max(args["N"], 16, args["M"])),
    "SIZE": lambda args: 32 if args["N"] < 64 else (64 if args["N"] < 256 else 128),
    "POWER": lambda a: (a["N"] & (a["N"] - 1)) == 0 and a["N"] > 0,
    "SHIFT": lambda a: (1 << a["K"] % 8) >> 1 | a["FLAG"],
    "FLAGS": lambda a: a["FLAG"] & (a["N"] > 3) ^ True,
    "ONE_OF": lambda a: a["K"] in (16, 32, 64),
    "CAST": lambda a: int(bool(a["N"])) + -a["M"],
    "RATIO": lambda a: (a["M"] + a["K"] - 1) // a["K"] * 2 - 7 % (a["N"] + 1),
    "SAME": lambda a: a["FLAG"],
    "NOTHING": lambda a: None,
}  # fmt: skip


def _named(args: dict[str, Any]) -> Any:
    """Return whether the rows are even."""
    return args["M"] % 2 == 0


def _closed(limit: int) -> Callable[[dict[str, Any]], Any]:
    return lambda args: args["N"] < limit


def _with_default(args: dict[str, Any], least: int = 3) -> bool:
    return args["N"] > least


OTHERS: dict[str, Callable[..., Any]] = {
    "global": lambda args: args["N"] < limit,
    "closure": _closed(3),
    "attribute": lambda args: args["x_ptr"].shape[0] > 3,
    "call": lambda args: args["x_ptr"].numel() > 3,
    "division": lambda args: args["N"] / 2,
    "float": lambda args: args["N"] > 1.5,
    "chained": lambda args: 1 < args["N"] < 3,
    "get": lambda args: args.get("N"),
    "unknown": lambda args: args["other"],
    "whole": lambda args: len(args) > 3,
    "default": _with_default,
    "keyword": lambda args: max(args["N"], 3, key=abs),
    "identity": lambda args: args["N"] is True,
    "large": lambda args: args["N"] + (1 << 40) + 1099511627776,
    "builtin": builtins.bool,
}


class _Launcher(_native.Launcher):
    """Record the arguments of a launch."""

    seen: list[dict[str, Any]]

    def _find(self, bound: dict[str, Any], options: dict[str, Any]) -> Any:
        self.seen.append(bound)
        raise StopIteration


_MISSING = object()


def _answer(function: Callable[..., Any], args: dict[str, Any]) -> tuple[Any, int]:
    """Return a chain's value of a constant, and its number of calls of the function."""
    calls = 0

    def counted(passed: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return function(passed)

    launcher = _Launcher(
        NAMES, (_MISSING,) * len(NAMES), frozenset(NAMES), {}, (), [], (ValueError,)
    )
    launcher.seen = []
    program = program_of(function, NAMES)
    steps = ((("LATE", counted, program),),)
    chain = _native.Chain(launcher, steps, None, frozenset(), counted, counted)
    with pytest.raises(StopIteration):
        chain[(1,)](**args)
    return launcher.seen[0]["LATE"], calls


_numbers = st.one_of(
    st.integers(-70, 300), st.sampled_from([0, 1, 16, 64, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1])
)


@pytest.mark.parametrize("name", PROGRAMS)
@given(
    m=_numbers,
    n=_numbers,
    k=_numbers,
    flag=st.booleans(),
    pointer=st.sampled_from([None, object()]),
)
@settings(max_examples=examples(60))
def test_a_program_answers_what_its_function_does(
    name: str, m: int, n: int, k: int, flag: bool, pointer: object
) -> None:
    function = PROGRAMS[name]
    args = {"M": m, "N": n, "K": k, "x_ptr": pointer, "FLAG": flag}
    assert program_of(function, NAMES) is not None
    try:
        expected = function(args)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            _answer(function, args)
        return
    answer, calls = _answer(function, args)
    assert (type(answer), answer) == (type(expected), expected)
    is_small = all(-(1 << 31) < size < 1 << 31 for size in (m, n, k))
    assert calls == 0 or not is_small


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_expression_has_none(name: str) -> None:
    assert program_of(OTHERS[name], NAMES) is None


def test_a_named_function_has_a_program() -> None:
    assert program_of(_named, NAMES) is not None
    assert _answer(_named, {"M": 4, "N": 1, "K": 1, "x_ptr": None, "FLAG": False}) == (True, 0)


@pytest.mark.parametrize("value", [4.0, "4", 1 << 70])
def test_values_that_programs_do_not_know_are_the_functions(value: Any) -> None:
    args = {"M": 16, "N": value, "K": 4, "x_ptr": None, "FLAG": False}
    function = PROGRAMS["EITHER"]
    assert _answer(function, {**args, "M": 0}) == (value, 1)


def test_an_answer_is_kept_by_values_and_their_types() -> None:
    launcher = _Launcher(
        NAMES, (_MISSING,) * len(NAMES), frozenset(NAMES), {}, (), [], (ValueError,)
    )
    launcher.seen = []
    program = program_of(lambda args: args["N"], NAMES)
    chain = _native.Chain(
        launcher, ((("LATE", len, program),),), None, frozenset(), len, lambda *_: None
    )
    values: list[object] = [1, 1, True, 2, None, 1 << 62, 1, 0, False, None]
    for value in values:
        with pytest.raises(StopIteration):
            chain[(1,)](N=value)
    seen_values = [arguments["LATE"] for arguments in launcher.seen]
    assert [(type(value), value) for value in seen_values] == [
        (type(value), value) for value in values
    ]


def test_an_argument_that_is_not_passed_is_the_functions_matter() -> None:
    with pytest.raises(KeyError):
        _answer(PROGRAMS["EVEN"], {"N": 16})


@pytest.mark.parametrize(
    "program",
    [
        (), ((0, 6),), ((0, -1),), ((4, 0),), ((1, 1), (1, 2)), ((30, 0),), ((30, 2), (1, 1)),
        ((1, 1), (32, 9)), ((99, 0),), ((-1, 0),), ((1, 1),) * 17 + ((4, 0),) * 16,
        ((1, 1), (31, 3), (1, 1), (1, 2)), ((1, 1),) * 300, ("ab",), ((1, 1, 1),),
    ],
)  # fmt: skip
def test_what_is_no_program_is_refused(program: Any) -> None:
    launcher = _Launcher(NAMES, (None,) * 6, frozenset(), {}, (), [], ())
    with pytest.raises((ValueError, TypeError)):
        _native.Chain(launcher, ((("LATE", len, program),),), None, frozenset(), len, len)
