"""Heuristics decided by a launcher: their expression agrees with the function."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.frontend import launch_heuristics
from aotc.ir import expression
from tests.frontend.conftest import Sources

_TAKEN = {
    "even": lambda args: args["n"] % args["BLOCK"] == 0,
    "both": lambda args: args["n"] % args["BLOCK"] == 0 and not args["m"] > 1000,
    "either": lambda args: args["n"] < 0 or -args["m"] <= 3 < args["n"] * 2,
    "count": lambda args: max(args["n"], 7) // args["BLOCK"] != min(args["m"] - 1, 5) + 2,
    "truth": lambda args: bool(args["n"] % 2),
    "negated": lambda args: not args["n"] % 3,
    "helped": lambda args: args["m"] + 1 == args["n"] or args["n"] * 2 == -args["m"],
}
_TEXTS = {
    "even": 'lambda args: args["n"] % args["BLOCK"] == 0',
    "both": 'lambda args: args["n"] % args["BLOCK"] == 0 and not args["m"] > LIMIT * 10',
    "either": 'lambda args: args["n"] < 0 or -args["m"] <= 3 < args["n"] * 2',
    "count": 'lambda args: max(args["n"], 7) // args["BLOCK"] != min(args["m"] - 1, 5) + 2',
    "truth": "truth",
    "negated": 'lambda args: not args["n"] % 3',
    "helped": 'lambda args: same(args["m"] + 1, b=args["n"]) or same(twice(args["n"]), -args["m"])',
}
_LEFT = {
    "number": 'lambda args: args["n"] // 2',
    "next": 'lambda args: triton.next_power_of_2(args["n"]) > 5',
    "none": 'lambda args: args["x"] is not None and args["n"] > 1',
    "float": 'lambda args: args["eps"] > 0.5',
    "divisor": 'lambda args: args["n"] % args["m"] == 0',
    "product": 'lambda args: args["n"] % (args["m"] * 2) == 0',
    "constant": 'lambda args: args["BLOCK"] > 64',
    "unknown": 'lambda args: args["n"] > UNKNOWN',
    "divided": 'lambda args: same(args["n"] // halved(args["m"]), 2)',
    "twisted": 'lambda args: same(args["n"], c=2)',
    "endless": 'lambda args: endless(args["n"])',
    "choice": 'lambda args: 1 if args["n"] > 1 else 0',
}
_SOURCE = """
LIMIT = 100
def truth(args):
    \"\"\"Say whether n is odd.\"\"\"
    return bool(args["n"] % 2)
def same(a, b):
    return a == b
def twice(n):
    return 2 * n
def halved(n):
    return n // 2
def endless(n):
    return endless(n + 1)
@triton.heuristics({VALUES})
@triton.jit
def k(x, n, m, eps, BLOCK: tl.constexpr, PARAMETERS):
    pass
"""


def _expressions(sources: Sources, texts: dict[str, str]) -> dict[str, str]:
    values = ", ".join(f"'{name}': {text}" for name, text in texts.items())
    parameters = ", ".join(f"{name}: tl.constexpr" for name in texts)
    path = sources.write(_SOURCE.replace("VALUES", values).replace("PARAMETERS", parameters))
    return launch_heuristics(path, "k", ["n", "m"], ["BLOCK"], target="sm_90a")


@pytest.fixture(scope="module")
def launch_texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _expressions(Sources(tmp_path_factory.mktemp("launch")), _TEXTS)


@given(n=st.integers(-3000, 3000), m=st.integers(-3000, 3000), block=st.sampled_from([1, 16, 128]))
def test_what_a_launcher_computes_is_what_the_function_returns(
    launch_texts: dict[str, str], n: int, m: int, block: int
) -> None:
    assert launch_texts.keys() == _TAKEN.keys()
    values = {"n": n, "m": m, "BLOCK": block}
    for name, text in launch_texts.items():
        function: Any = _TAKEN[name]
        assert expression.evaluate(expression.parse(text), values) == int(function(values)), name


@pytest.mark.parametrize("name", _LEFT)
def test_what_no_launcher_decides_has_no_text(sources: Sources, name: str) -> None:
    assert _expressions(sources, {name: _LEFT[name]}) == {}
