"""Names of enclosing functions in nested kernels."""

from __future__ import annotations

import pytest

from tests.frontend.conftest import Sources

NESTED = """
def make(dtype, BLOCK, act=None):
    import math
    SCALE = 2.0
    HALF = BLOCK // 2
    KINDS = (tl.float16, dtype)
    both = 1
    both = 2

    @triton.jit
    def helper(x):
        return x * SCALE

    class Inner:
        pass

    @triton.jit
    def k(p):
        tl.static_print({})

    return k
"""


def shown(sources: Sources, expression: str, **captured: object) -> str:
    translation = sources.translate(
        NESTED.format(expression), {"p": "*fp32"}, kernel="make.k", captured=captured
    )
    return translation.prints[0]


@pytest.mark.parametrize(
    ("expression", "captured", "expected"),
    [
        ("SCALE", {}, "2.0"),
        ("BLOCK", {"BLOCK": 64}, "64"),
        ("HALF", {"BLOCK": 64}, "32"),
        ("HALF", {"HALF": 7, "BLOCK": 64}, "7"),
        ("KINDS[1]", {"dtype": "bf16"}, "bf16"),
        ("math.ceil(1.5)", {}, "2"),
        ("both", {"both": 3}, "3"),
    ],
)
def test_variables_of_the_function_around_a_kernel(
    sources: Sources, expression: str, captured: dict[str, object], expected: str
) -> None:
    assert shown(sources, expression, **captured) == expected


@pytest.mark.parametrize("name", ["BLOCK", "HALF", "both", "KINDS"])
def test_a_variable_that_only_a_call_tells_is_refused_with_a_remedy(
    sources: Sources, name: str
) -> None:
    error = sources.error(NESTED.format(name), {"p": "*fp32"}, kernel="make.k")
    assert f"{name} has no value here: it is a variable of make, whose value" in error.message
    assert (
        error.remedy == f"give it in the manifest, as `{name} = …` in [kernel.captures], or pass it"
    )


def test_a_function_beside_a_kernel_sees_the_same_variables(sources: Sources) -> None:
    text = NESTED.replace("x * SCALE", "x * BLOCK").format("helper(3)")
    translation = sources.translate(text, {"p": "*fp32"}, kernel="make.k", captured={"BLOCK": 5})
    assert translation.prints[0] == "15"


def test_the_innermost_function_counts(sources: Sources) -> None:
    text = """
    X = tl.constexpr(1)
    def outer():
        X = 2
        Y = 3
        class Middle:
            X = 4
            def inner(self):
                Y = X + 10
                @triton.jit
                def k(p):
                    tl.static_print(X + 100 * Y)
    """
    translation = sources.translate(text, {"p": "*fp32"}, kernel="outer.Middle.inner.k")
    assert translation.prints[0] == "1202"


def test_captures_are_those_of_functions_around_the_kernel_only(sources: Sources) -> None:
    text = """
    def other():
        N = 2
        @triton.jit
        def helper():
            return N
        return helper
    def make(N):
        @triton.jit
        def k(p, f: tl.constexpr):
            tl.static_print(f() + 10 * N)
    """
    translation = sources.translate(
        text,
        {"p": "*fp32"},
        {"f": "other.<locals>.helper"},
        kernel="make.k",
        captured={"N": 5},
    )
    assert translation.prints[0] == "52"
