"""Error messages: place, caret, expectation, and remedy."""

from __future__ import annotations

import pytest

from tests.frontend.conftest import Sources


def carets(rendered: str) -> str:
    """Return the text underlined by the first caret line."""
    lines = rendered.splitlines()
    index = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
    start = lines[index].index("^")
    return lines[index - 1][start : start + lines[index].count("^")]


@pytest.mark.parametrize(
    ("body", "message", "caret", "remedy"),
    [
        ("x = tl.lod(p)", "unknown name tl.lod", "tl.lod", "'load'"),
        ("x = offsts", "offsts is not defined", "offsts", ""),
        ("x = tl.arange(0, 100)", "power of two, got 100 - 0 = 100", "tl.arange(0, 100)", "128"),
        ("x = tl.arange(0, n)", "known at compile time", "tl.arange(0, n)", "tl.constexpr"),
        (
            "x = tl.arange(0, 16) + tl.arange(0, 32)",
            "shapes (16,) and (32,) do not broadcast",
            "tl.arange(0, 16) + tl.arange(0, 32)",
            "[:, None]",
        ),
        ("x = tl.exp(n)", "tl.exp takes float32 or float64, got int32", "tl.exp(n)", ".to("),
        ("x = tl.load(n)", "takes a pointer", "tl.load(n)", "pointer argument"),
        ("x = tl.load(p, msk=n > 0)", "no parameter 'msk'", "tl.load(p, msk=n > 0)", "'mask'"),
        ("x = tl.load()", "missing the argument 'pointer'", "tl.load()", "tl.load(pointer"),
        ("x = tl.sum(p, 0, False, tl.int32, 4)", "at most 4 arguments, got 5", None, ""),
        ("x = tl.load(p, p, mask=n > 0)", "'mask' twice", None, ""),
        (
            "x = tl.extern_elementwise(n)",
            "aotc does not have tl.extern_elementwise yet",
            "tl.extern_elementwise(n)",
            "language.md",
        ),
        ("x = n.to(tl.float8e4b8)", "aotc does not have tl.float8e4b8 yet", None, "language.md"),
        (
            "x = n + tl.extern_elementwise",
            "aotc does not have tl.extern_elementwise yet",
            None,
            "language.md",
        ),
        ("tl.extern_elementwise(p, 1)", "aotc does not have tl.extern_elementwise yet", None, ""),
        ("while True:\n    pass", "always true", None, ""),
        ("x = 0 in 'ab'", "`in` looks for a constant in a tuple", None, ""),
        ("x = n in (1, 2)", "`in` looks for a constant in a tuple", None, ""),
        ("for i in range(n):\n    break", "`break` is not part", "break", "mask"),
        ("for i in range(n):\n    return", "cannot leave a run-time loop", None, "flag"),
        ("for i in n:\n    pass", "a `for` goes over range", None, ""),
        ("for i in range(0, n, 0):\n    pass", "step of a range cannot be zero", None, ""),
        ("with n:\n    pass", "`with` is not part of the kernel language", None, ""),
        ("try:\n    pass\nexcept E:\n    pass", "`try` is not part", None, ""),
        ("def f():\n    pass", "a nested function is not part", None, "module level"),
        (
            "x = {n}",
            "a set is not part of the kernel language",
            "{n}",
            "use a tuple",
        ),
        ("x = {1: 2}", "a dictionary is not part of the kernel language", "{1: 2}", "tuple"),
        ("raise ValueError('no')", "this `raise` is reached", None, ""),
        ("return n", "a kernel returns nothing", None, "tl.store"),
        ("if tl.arange(0, 4) > n:\n    pass", "has 4 elements", None, "tl.where"),
        ("x = tl.arange(0, 4)\nx[0] = 1", "cannot be assigned", None, "tl.where"),
        ("x = tl.arange(0, 4)[0]", "indexed by `None` and `:` only", None, ""),
        ("a, b = n", "only a tuple can be unpacked, got int32", None, ""),
        ("a, b = n, n, n", "expected 2 values to unpack, got 3", None, ""),
        ("x = n.foo", "int32 has no attribute 'foo'", "n.foo", ""),
        (
            "x: tl.constexpr = 10\ny = x.sumn()",
            "the constant 10 has no attribute 'sumn'",
            None,
            "'sum'",
        ),
        ("x = None\ny = x.dtype", "None has no attribute 'dtype'", None, "is not None"),
        (
            "x = None\ny = x + 1",
            "cannot compute `+` of the constants None and 1",
            None,
            "is not None",
        ),
        ("x = n.flots()", "no attribute 'flots'", "n.flots", "'floor'"),
        ("n()", "int32 cannot be called", "n()", ""),
        ("x = tl.zeros((3,), tl.float32)", "power of two, got 3", None, ""),
        ("x = tl.zeros((2**21,), tl.float32)", "at most 1048576 elements", None, ""),
        ("x = tl.zeros((4,), 4)", "must be a dtype", None, ""),
        ("x = float(n)", "float() is for constants", "float(n)", ".to(tl.float32)"),
        ("tl.static_assert(1 > 2, 'too small')", "static assertion failed: too small", None, ""),
        ("x = tl.load(p, other=0)", "`other` without a mask", None, ""),
        ("x = tl.load(p, mask=n)", "must be of truth values, got int32", None, "!= 0"),
        ("tl.store(p, tl.arange(0, 4))", "pointer is a scalar", None, "tile of pointers"),
        ("x = tl.program_id(3)", "must be 0, 1 or 2, got 3", None, ""),
        ("x = tl.where(n > 0, n, p)", "does not take a pointer", None, ""),
        ("x: tl.constexpr = 1\nx: tl.constexpr = 2", "cannot be reassigned", None, ""),
        ("x = n[None, 0]", "a tile is indexed by `None` and `:` only, got 0", None, ""),
        ("x = tl.reshape(tl.arange(0, 8), (4, 4))", "cannot reshape (8,)", None, ""),
        ("x = tl.trans(tl.arange(0, 8), 1)", "must name the axes 0 to 0", None, ""),
        ("x = tl.sum(n)", "takes a tile, got the scalar int32", None, ""),
        ("x = tl.sum(tl.arange(0, 8), 1)", "from -1 to 0, got 1", None, ""),
    ],
)
def test_kernel_mistakes(
    sources: Sources, body: str, message: str, caret: str | None, remedy: str
) -> None:
    error = sources.body_error(body, {"p": "*fp32", "n": "i32"}, params="p, n")
    assert message in error.message
    assert remedy in error.remedy
    rendered = str(error)
    assert "kernel.py:" in rendered
    if caret is not None:
        assert carets(rendered) == caret


def test_call_chain(sources: Sources) -> None:
    error = sources.error(
        """
        @triton.jit
        def inner(x):
            return tl.exp(x)

        @triton.jit
        def outer(x):
            return inner(x) + 1

        @triton.jit
        def k(n):
            y = outer(n)
        """,
        {"n": "i32"},
    )
    rendered = str(error)
    assert carets(rendered) == "tl.exp(x)"
    assert [line.strip() for line in rendered.splitlines() if "called from" in line] == [
        f"called from {sources.folder}/kernel.py:10:12",
        f"called from {sources.folder}/kernel.py:14:9",
    ]
    assert "inner(x)" in rendered
    assert "y = outer(n)" in rendered


def test_columns_count_characters_not_bytes(sources: Sources) -> None:
    error = sources.body_error('s = "äöü→"; x = tl.nothing', {})
    assert carets(str(error)) == "tl.nothing"


def test_an_expression_over_several_lines_is_underlined_on_its_first(sources: Sources) -> None:
    error = sources.body_error("x = tl.load(\n    1,\n)", {})
    assert carets(str(error)) == "tl.load("


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("acc = 0\nfor i in range(n):\n    acc += 1.5", "acc is int32 before this loop"),
        ("acc = 0\nwhile acc < n:\n    acc = acc.to(tl.int64) + 1", "int64 after its body"),
        (
            "acc = 0.0\nfor i in range(n):\n    acc += tl.zeros((4,), tl.float32)",
            "float32 before this loop, but float32[4]",
        ),
        ("a: tl.constexpr = 1\nfor i in range(n):\n    a = n", "a is the constant 1 before"),
        ("a = 1\nif n > 0:\n    a = 1.5", "a is int32 before this `if`, but float32"),
        (
            "if n > 0:\n    a = 1\nelse:\n    a = 1.5",
            "a is int32 in one branch of this `if`, and float32 in the other",
        ),
        ("if n > 0:\n    a = 1\nb = a", "only if the condition in line 5 is true"),
        ("if n > 0:\n    pass\nelse:\n    a = 1\nb = a", "condition in line 5 is false"),
        ("for i in range(n):\n    a = 1\nb = a", "is set only inside the loop in line 5"),
        ("for i in range(n):\n    pass\nb = i", "counts the loop in line 5, which has ended"),
        ("x = 1 if n > 0 else 1.5", "must have one type, got int32 and float32"),
    ],
)
def test_types_that_change(sources: Sources, body: str, message: str) -> None:
    error = sources.body_error(body, {"n": "i32"}, params="n")
    assert message in error.message


def test_recursion(sources: Sources) -> None:
    error = sources.error(
        """
        @triton.jit
        def f(x):
            return g(x)

        @triton.jit
        def g(x):
            return f(x)

        @triton.jit
        def k(n):
            f(n)
        """,
        {"n": "i32"},
    )
    assert error.message == "g calls itself: k → f → g → f → g, more than 40 calls deep"


def test_wrong_arguments_of_a_function(sources: Sources) -> None:
    helper = "@triton.jit\ndef f(a, b=1):\n    return a\n\n"
    for call, message in (
        ("f()", "f is missing the argument 'a'"),
        ("f(1, 2, 3)", "f takes at most 2 arguments, got 3"),
        ("f(1, c=2)", "f has no parameter 'c'"),
        ("f(1, a=2)", "f got the argument 'a' twice"),
    ):
        error = sources.error(f"{helper}@triton.jit\ndef k():\n    x = {call}\n", {})
        assert error.message == message


@pytest.mark.parametrize(
    "text", ["def f(:\n", "x = (", "\x00", "def f():\n\treturn 1\n  return 2\n"]
)
def test_syntax_errors_have_a_place(sources: Sources, text: str) -> None:
    error = sources.error(text)
    assert "Python" in error.message
    assert error.loc is not None
    assert error.loc.file.endswith("kernel.py")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 150 + "n" + ")" * 150,
        "-" * 3000 + "n",
        "n if n else " * 400 + "n",
        "n" + ".to(tl.int64)" * 400,
        "tl.abs(" * 120 + "n" + ")" * 120,
        "-" * 100000 + "n",
        "n" + " + n" * 100000,
    ],
)
def test_deep_nesting_is_a_diagnostic_or_works(sources: Sources, expression: str) -> None:
    try:
        sources.body(f"x = {expression}", {"n": "i32"}, params="n")
    except Exception as error:  # noqa: BLE001 - any other kind fails the test below
        assert type(error).__name__ == "CompileError"
        assert "deep" in str(error)


def test_a_long_sum_is_not_deep(sources: Sources) -> None:
    text = sources.body("x = n" + " + n" * 500, {"n": "i32"}, params="n")
    assert text.count("arith.add") == 500
