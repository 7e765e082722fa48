"""Features of programs written for other releases of Triton."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

_SIGNATURE = {"x": "*i32", "n": "i32"}


def result(sources: Sources, text: str, n: int) -> int:
    """Return a kernel's output at `x`, given `n`."""
    translation = sources.translate(text, _SIGNATURE)
    x = np.zeros(8, np.int32)
    run(translation.kernel, (1,), [x, n])
    return int(x[0])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.store(x, tl.tuple((n, 2))[1] + len(tl.tuple([n])))", 3),
        ("t = (n, 2)\n    tl.store(x, 1 if isinstance(t, tl.tuple) else 2)", 1),
        (
            "i = 0\n    while tl.condition(i < n, disable_licm=True):\n        i += 2\n    tl.store(x, i)",
            6,
        ),
        ("m = 3\n    tl.store(x, 1 if m.type == tl.int32 else 2)", 1),
        ("tl.store(x, 1 if hasattr(tl.float32, 'is_fp16') and not hasattr(3, 'shape') else 2)", 1),
        ("tl.store(x, 1 if hasattr(tl, 'sqrt') and hasattr(n, 'dtype') else 2)", 1),
        (
            "s = 0\n    for i in tl.static_range(3):\n        s = s + f(n, i)\n    tl.store(x, s)",
            15,
        ),
    ],
)
def test_values(sources: Sources, body: str, expected: int) -> None:
    text = f"""
@triton.jit
def f(n, i):
    if n > 3:
        return n * i
@triton.jit
def k(x, n):
    {body}
"""
    assert result(sources, text, 5) == expected


def test_tl_random_is_a_module(sources: Sources) -> None:
    text = "@triton.jit\ndef k(x, n):\n    tl.store(x, tl.{}randint(n, n))\n"
    assert result(sources, text.format("random."), 7) == result(sources, text.format(""), 7)


def test_a_path_that_returns_nothing_of_a_kind_that_is_not_a_number(sources: Sources) -> None:
    text = "@triton.jit\ndef f(n, t):\n    if n > 3:\n        return 'a'\n"
    text += "@triton.jit\ndef k(x, n):\n    f(n, n)\n"
    with pytest.raises(CompileError, match="on one path and nothing on another"):
        sources.translate(text, _SIGNATURE)


@pytest.mark.parametrize("annotation", ["tl.const", '"tl.const"', ""])
def test_constants_are_read_and_not_written(sources: Sources, annotation: str) -> None:
    suffix = f": {annotation}" if annotation else ""
    signature = {"x": "*i32" if suffix else "*ki32", "y": "*i32"}
    text = f"@triton.jit\ndef k(x{suffix}, y):\n    tl.store({{}}, tl.load(x) + 1)\n"
    assert sources.translate(text.format("y"), signature)
    with pytest.raises(CompileError, match="x points at constants, and k writes there") as error:
        sources.translate(text.format("x"), signature)
    assert error.value.loc is not None
    assert error.value.loc.col == len("def k(")


def test_condition_takes_a_hint(sources: Sources) -> None:
    text = "@triton.jit\ndef k(x, n):\n    while tl.condition(n > 0, disable_licm=n):\n        n -= 1\n"
    with pytest.raises(CompileError, match="disable_licm of tl.condition must be True or False"):
        sources.translate(text, _SIGNATURE)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.store(x, 1) if n > 3 else tl.store(x, 2)", 1),
        ("tl.store(x, 1) if n > 9 else tl.store(x, 2)", 2),
        ("tl.store(x, 1) if n > 3 else None", 1),
        ("a, (b, c) = (n, (1, 7)) if n > 3 else (1, (n, 7))\n    tl.store(x, a * 10 + b + c)", 58),
        ("p = x if n > 3 else x + 1\n    tl.store(p, 4)", 4),
        ("a = 1 if n > 3 else 1\n    tl.store(x, a)", 1),
    ],
)
def test_both_sides_of_a_conditional_may_do_something(
    sources: Sources, body: str, expected: int
) -> None:
    assert result(sources, f"@triton.jit\ndef k(x, n):\n    {body}\n", 5) == expected


@pytest.mark.parametrize("arms", ["n if n > 3 else tl.store(x, n)", "(n, n) if n > 3 else n"])
def test_one_side_of_a_conditional_without_a_value(sources: Sources, arms: str) -> None:
    text = f"@triton.jit\ndef k(x, n):\n    a = {arms}\n"
    with pytest.raises(CompileError, match="both sides of a run-time `if … else` must have one"):
        sources.translate(text, _SIGNATURE)
