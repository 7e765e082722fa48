"""Argument binding agrees with Python for random parameters and calls."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.frontend.language.arguments import bind_arguments, parameters_of, signature_text
from aotc.frontend.values import Parameters
from aotc.ir.diagnostics import CompileError

SIGNATURES = [
    "",
    "x",
    "x, y=1",
    "x, /, y",
    "x, y=1, /, z=2",
    "*args",
    "x, *args, k",
    "x=0, *, k, j=3",
    "x, /, *args, k=1",
]
NAMES = ["x", "y", "z", "k", "j", "args", "w"]


def _function(signature: str) -> Callable[..., object]:
    scope: dict[str, Callable[..., object]] = {}
    exec(f"def f({signature}): pass", scope)
    return scope["f"]


def _parameters(signature: str) -> Parameters:
    function = ast.parse(f"def f({signature}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    return parameters_of("f", function.args)


@given(
    st.sampled_from(SIGNATURES),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=4),
)
def test_agrees_with_python(signature: str, args: list[int], kwargs: dict[str, int]) -> None:
    try:
        bound = inspect.signature(_function(signature)).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(CompileError):
            bind_arguments(_parameters(signature), args, kwargs)
        return
    values = bind_arguments(_parameters(signature), args, kwargs)
    assert {name: value for name, value in values.items() if value != ()} == {
        name: value for name, value in bound.arguments.items() if value != ()
    }


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, 2, 3), {}, "f takes at most 2 arguments, got 3"),
        ((1,), {"x": 2}, "f takes 'x' by position only"),
        ((1, 2), {"y": 2, "k": 1}, "f got the argument 'y' twice"),
        ((1,), {"k": 2, "yy": 2}, "f has no parameter 'yy'"),
        ((), {"k": 1}, "f is missing the argument 'x'"),
        ((1,), {}, "f is missing the argument 'k'"),
    ],
)
def test_mistakes(args: tuple[int, ...], kwargs: dict[str, int], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        bind_arguments(_parameters("x, /, y=1, *, k"), args, kwargs)
    assert caught.value.message == message
    assert caught.value.remedy


@pytest.mark.parametrize("signature", SIGNATURES)
def test_the_signature_reads_as_it_was_written(signature: str) -> None:
    text = signature_text(_parameters(signature))
    for number in "0123":
        signature = signature.replace(f"={number}", "=…")
    assert text == f"the signature is f({signature})"
