"""A kernel's use of unsupported features, reported without types."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend import translate
from aotc.frontend.python.expressions import EXPRESSIONS
from aotc.frontend.python.statements import STATEMENTS
from aotc.frontend.survey.support import FunctionSupport, Survey
from aotc.frontend.survey.untyped import Refusal
from aotc.ir.diagnostics import CompileError
from tests.frontend.conftest import Sources, kernel_of

ROOT = Path(__file__).parents[3]


def surveyed(sources: Sources, text: str) -> dict[str, FunctionSupport]:
    functions = Survey("sm_90a").functions(sources.write(text))
    return {function.name: function for function in functions}


def refusals(sources: Sources, body: str, params: str = "x_ptr, n") -> list[Refusal]:
    return list(surveyed(sources, kernel_of(body, params))["k"].refusals)


REFUSED = [
    ("break", "while n > 0:\n    break", "`break`", 1),
    ("set", "f = {n}", "a set", 0),
    ("operator", "y = n @ n", "the operator `@`", 0),
    ("missing", "tl.extern_elementwise(n)", "tl.extern_elementwise", 0),
    ("missing dtype", "y = n.to(tl.float8e4b8)", "tl.float8e4b8", 0),
    ("no such name", "y = tl.cidv(n, 2)", "tl.cidv", 0),
    ("no such parameter", "y = tl.dot(n, n, trans_x=True)", "tl.dot(trans_x=)", 0),
    ("of a method", "y = n.sum(axes=0)", "tl.sum(axes=)", 0),
    ("too many", "y = tl.program_id(0, 1)", "tl.program_id takes 1 argument, got 2", 0),
    ("attribute", "y = n.local_ptr", "the attribute 'local_ptr'", 0),
    ("undefined", "y = nowhere + 1", "a name that is not defined", 0),
    ("Python's", "y = sorted(n)", "sorted()", 0),
    ("item", "n[0] = 1", "an item of a value cannot be assigned", 0),
    ("starred", "a, *b = 1, 2, 3", "`*` in front of a name to assign", 0),
    (
        "return in a loop",
        "for i in range(n):\n    if i > 2:\n        return",
        "a `return` cannot leave a run-time loop",
        0,
    ),
    (
        "else of a loop",
        "for i in range(n):\n    pass\nelse:\n    pass",
        "`else` after a loop is not part of the kernel language",
        0,
    ),
    ("hint", "for i in tl.range(n, num_stage=2):\n    pass", "tl.range(num_stage=)", 0),
    ("range", "y = range(n)", "range can only stand in a `for` statement", 0),
    ("plain function", "y = plain(n)", "a call of a plain Python function", 0),
    ("plain global", "y = TEXT", "a global that is a plain str", 0),
    (
        "unknown module",
        "y = elsewhere.compute(n)",
        "elsewhere.compute, which only running the file would tell",
        0,
    ),
    (
        "nested in an expression",
        "y = (n + [tl.extern_elementwise(n)][0]) * 2",
        "tl.extern_elementwise",
        0,
    ),
]
GLOBALS = "import elsewhere\ndef plain(x): return x\nTEXT = 'a'\n"


@pytest.mark.parametrize(
    ("body", "feature", "line"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_is_refused_a_build_refuses_alike(
    sources: Sources, body: str, feature: str, line: int
) -> None:
    refusals = surveyed(sources, GLOBALS + kernel_of(body, "n"))["k"].refusals
    first_line = 2 + GLOBALS.count("\n") + 3  # after the imports, the decorator and the `def`
    assert [(refusal.feature, refusal.line - first_line) for refusal in refusals] == [
        (feature, line)
    ]
    with pytest.raises(CompileError) as caught:
        translate(str(sources.folder / "kernel.py"), "k", {"n": "i32"}, {})
    # A value with a type in a build is "a value" here.
    assert caught.value.feature.replace("int32", "a value") == refusals[0].feature
    assert caught.value.message.replace("int32", "a value") == refusals[0].message


def test_all_of_a_kernel_is_looked_at(sources: Sources) -> None:
    refused = refusals(
        sources, "a = tl.extern_elementwise(n)\nfor i in range(n):\n    b = tl.expect_zero(i)"
    )
    assert [(refusal.feature, refusal.line) for refusal in refused] == [
        ("tl.extern_elementwise", 5),
        ("tl.expect_zero", 7),
    ]


SUPPORTED = {
    "methods, attributes, items": "y = tl.load(x_ptr + n).to(tl.float32).sum(axis=0)[:, None].T",
    "a descriptor": "y = x_ptr.load([0, n])\nx_ptr.store([0, n], y)",
    "a dtype": "y = tl.zeros((4,), x_ptr.dtype.element_ty)\nif x_ptr.dtype.is_fp16():\n    pass",
    "loops": "for i in tl.range(0, n, num_stages=2):\n    pass\nfor j, k in ((1, 2), (3, 4)):\n    pass",
    "a comprehension": "y = sum([i for i in (1, 2) if i > 1]) if False else n",
    "f-strings": 'tl.static_print(f"{n:>4}")',
    "a dead arm": "if False:\n    tl.extern_elementwise(n)\ny = tl.extern_elementwise(n) if 0 else n",
    "a dead operand": "if False and tl.extern_elementwise(n):\n    pass",
    "after a return": "return\ntl.extern_elementwise(n)",
    "reflection": "if hasattr(tl, 'dot') and isinstance(n, tl.tensor):\n    y = getattr(tl, 'exp')(n)",
    "a fallback": "y = getattr(tl, 'nothing', tl.exp)(n)",
    "another dtype": "if x_ptr.dtype == tl.float8e4b8:\n    pass",
    "a local name of the language's": "tl_dot = n\ny = tl_dot.sum()",
    "unpacking": "a, (b, c) = n\n[d, e] = a",
}


@pytest.mark.parametrize("body", SUPPORTED.values(), ids=SUPPORTED.keys())
def test_supported(sources: Sources, body: str) -> None:
    assert refusals(sources, body) == []


def test_functions_that_a_kernel_uses(sources: Sources) -> None:
    sources.write("@triton.jit\ndef far(x):\n    return tl.extern_elementwise(x)\n", "other.py")
    functions = surveyed(
        sources,
        """
        from other import far
        @triton.jit
        def add(a, b):
            return a + b
        @triton.jit
        def near(x):
            return far(x)
        @triton.jit
        def k(x, n):
            y = tl.reduce(near(x), 0, add)
        def launch(x): k[(1,)](x, 1)
        """,
    )
    assert [name for name, function in functions.items() if function.is_launched] == ["k"]
    near, add, far = (functions[name].key for name in ("near", "add", "far"))
    assert set(functions["k"].uses) == {near, add}
    assert functions["near"].uses == (far,)
    assert [
        (function.feature, Path(function.file).name) for function in functions["far"].refusals
    ] == [("tl.extern_elementwise", "other.py")]


def test_what_constants_avoid_says_so(sources: Sources) -> None:
    refused = refusals(
        sources,
        """
        if n > 0:
            if FLAG:
                y = tl.extern_elementwise(n)
        z = n.to(tl.float8e4b8) if not FLAG else n
        if FLAG:
            tl.extern_elementwise(n)
        else:
            tl.extern_elementwise(n)
        if n:
            tl.extern_elementwise(n)
        """,
        "n, FLAG: tl.constexpr",
    )
    assert [(refusal.line, refusal.when) for refusal in refused] == [
        (7, "FLAG"),
        (8, "not FLAG"),
        (10, ""),
        (12, ""),
        (14, ""),
    ]


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("import triton", "triton.jit"),
        ("import triton", "triton.jit(debug=True)"),
        ("from triton import jit as my_jit", "my_jit"),
        ("from triton.runtime.jit import jit", "jit"),
        ("from some.package import triton", "wrap\n@triton.jit"),
        ("import aotc", "aotc.jit"),
    ],
)
def test_decorators_of_kernels(sources: Sources, imports: str, decorator: str) -> None:
    path = sources.write(f"{imports}\n@{decorator}\ndef k(): pass\n", prelude=False)
    assert [function.name for function in Survey("").functions(path)] == ["k"]


@pytest.mark.parametrize("module", ["numba", "triton.experimental.gluon", "jax", "cutlass.cute"])
def test_decorators_of_others(sources: Sources, module: str) -> None:
    text = f"import triton\nfrom {module} import jit\n@jit\ndef k(): pass\n"
    assert Survey("").functions(sources.write(text, prelude=False)) == []


def test_nested_rebound_and_ruled_out_kernels(sources: Sources) -> None:
    functions = surveyed(
        sources,
        """
        import elsewhere
        def make():
            @triton.jit
            def inner(): pass
        class C:
            @staticmethod
            @triton.jit
            def method(): pass
        def f(): pass
        f = triton.jit(f)
        if tl.target_info.is_hip():
            @triton.jit
            def g(): tl.extern_elementwise(1)
        else:
            @triton.jit
            def g(): pass
        """,
    )
    assert sorted(functions) == ["C.method", "f", "g", "make.inner"]
    assert functions["g"].refusals == ()


def test_records(sources: Sources) -> None:
    functions = surveyed(
        sources,
        """
        from typing import NamedTuple
        class Pair(NamedTuple):
            low: tl.tensor
            high: tl.tensor
            @triton.jit
            def total(self): return self.low + tl.extern_elementwise(self.high)
        class Plain: pass
        @triton.jit
        def k(x):
            p = Pair(x, x)
            y = p.total() + p.low
            q = Plain()
        """,
    )
    assert functions["k"].uses == (functions["Pair.total"].key,)
    assert [refusal.feature for refusal in functions["k"].refusals] == [
        "an object of a plain class"
    ]


def test_every_kernel_of_the_repository_is_supported() -> None:
    survey = Survey("sm_90a")
    files = [*(ROOT / "kernels").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    functions = [function for file in sorted(files) for function in survey.functions(str(file))]
    assert len(functions) > 50
    assert [function.refusals for function in functions if function.refusals] == []


def test_syntax_is_that_of_the_tables() -> None:
    syntax = Survey("").kernel_syntax
    assert set(syntax.expressions) == set(EXPRESSIONS)
    assert set(syntax.statements) == set(STATEMENTS)


def test_deep_source_is_refused(sources: Sources) -> None:
    refused = refusals(sources, f"y = {'-' * 600}n")
    assert ["deep" in refusal.message for refusal in refused] == [True]
