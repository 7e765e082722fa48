"""Names and parameters of the functions of a kernel source."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import CompileError
from aotc.package.manifest.parameters import Parameter, parse_functions

_SOURCE = """\
import os, triton
raise SystemExit("an import with an effect")

@triton.jit
def add(x_ptr, n: tl.int32, BLOCK: tl.constexpr, MODE: "tl.constexpr" = 0, *, K: constexpr = 1):
    pass

if os.environ.get("X"):
    def picked(a): pass
else:
    try:
        def picked(a, b=None): pass
    except ImportError:
        pass
"""


def _parameter(name: str, *, constexpr: bool = False, default: bool = False) -> Parameter:
    return Parameter(name, is_constexpr=constexpr, has_default=default)


def test_parameters_in_order() -> None:
    add = parse_functions(_SOURCE, "k.py")["add"]
    assert add.parameters == (
        _parameter("x_ptr"),
        _parameter("n"),
        _parameter("BLOCK", constexpr=True),
        _parameter("MODE", constexpr=True, default=True),
        _parameter("K", constexpr=True, default=True),
    )
    assert [p.name for p in add.arguments] == ["x_ptr", "n"]
    assert [p.name for p in add.constexprs] == ["BLOCK", "MODE", "K"]
    assert str(add.loc) == "k.py:5:5"


@pytest.mark.parametrize(
    ("heuristics", "expected"),
    [
        ("{'EVEN': lambda args: args['BLOCK'] % 2 == 0}", [False, True]),
        ("values={'EVEN': f, 'BLOCK': g}", [True, True]),
        ("{'num_warps': f}", [False, False]),
        ("TABLE", [True, True]),
        ("{**TABLE}", [True, True]),
    ],
)
def test_what_heuristics_give_may_be_left_out(heuristics: str, expected: list[bool]) -> None:
    source = f"@triton.heuristics({heuristics})\n@triton.jit\ndef f(n, BLOCK: tl.constexpr, EVEN: tl.constexpr): pass"
    function = parse_functions(source, "k.py")["f"]
    assert [parameter.has_default for parameter in function.constexprs] == expected
    assert not any(parameter.has_default for parameter in function.arguments)


def test_kernels_in_functions_and_classes_have_dotted_names() -> None:
    source = (
        "def make(n):\n    if n:\n        @triton.jit\n        def k(p): pass\n    def plain(): pass\n"
        "class Ops:\n    @staticmethod\n    @jit(debug=True)\n    def k(p, q): pass\n"
        "def k(x): pass\n"
    )
    functions = parse_functions(source, "k.py")
    assert {name: len(function.parameters) for name, function in functions.items()} == {
        "make": 1,
        "k": 1,
        "make.k": 1,
        "Ops.k": 2,
    }
    assert functions["Ops.k"].name == "Ops.k"


def test_last_definition_holds() -> None:
    picked = parse_functions(_SOURCE, "k.py")["picked"]
    assert picked.parameters == (_parameter("a"), _parameter("b", default=True))


@pytest.mark.parametrize(
    ("source", "location"),
    [
        ("def f(:\n", "k.py:1:7"),
        ("x = 1\n  y\n", "k.py:2"),
        ("x = 1\ny = '\0'", "k.py:2:6"),
        ("x = " + "(" * 5000 + ")" * 5000, "k.py:1"),
        ("x = " + "-" * 100_000 + "1", "error: expected Python source, k.py is nested too deeply"),
    ],
)
def test_bad_source_is_a_compile_error(source: str, location: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_functions(source, "k.py")
    assert str(caught.value).startswith(location)
    assert "expected Python source" in caught.value.message
