"""`tl.map_elementwise` and lambdas: results, also of the PTX, and errors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources
from tests.support.verified import check_verified

_FUNCTIONS = """
@triton.jit
def selu(x, alpha: tl.constexpr):
    if x > 0:
        return x
    else:
        return alpha * (tl.exp(x) - 1)

@triton.jit
def collatz(n):
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps

@triton.jit
def triangle(n):
    total = 0
    for i in range(n):
        total += i
    return total

@triton.jit
def both(a, b):
    return a // b, a % b

@triton.jit
def both_of_two(a0, a1, b0, b1):
    return a0 // b0, a1 // b1, a0 % b0, a1 % b1

@triton.jit
def early(x):
    if x > 3:
        return x * 2
    return x
"""
_HEAD = """
@triton.jit
def k(x_ptr, y_ptr, z_ptr):
    at = tl.arange(0, 64)
    x = tl.load(x_ptr + at)
"""
_X = np.random.default_rng(11).integers(1, 60, 64).astype(np.int32)


def results(sources: Sources, body: str) -> tuple[np.ndarray, np.ndarray]:
    """Run a kernel ending with `body`; return its outputs `y` and `z`."""
    lines = [f"    {line}" for line in body.splitlines()]
    text = "\n".join([_FUNCTIONS + _HEAD, *lines])
    translation = sources.translate(text, {"x_ptr": "*i32", "y_ptr": "*i32", "z_ptr": "*i32"})
    y, z = np.zeros(64, np.int32), np.zeros(64, np.int32)
    run(translation.kernel, (1,), [_X.copy(), y, z])
    return y, z


def _collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def test_a_loop_runs_for_each_element_by_itself(sources: Sources) -> None:
    body = "tl.store(y_ptr + at, tl.map_elementwise(collatz, x))\n"
    body += "tl.store(z_ptr + at, tl.map_elementwise(triangle, x))"
    y, z = results(sources, body)
    np.testing.assert_array_equal(y, [_collatz(int(n)) for n in _X])
    np.testing.assert_array_equal(z, _X * (_X - 1) // 2)


@pytest.mark.parametrize(
    "call", ["both, x, 7", "both_of_two, x, 7, pack=2", "both, x, tl.full([1], 7, tl.int32)"]
)
def test_several_results_and_several_elements_at_a_time(sources: Sources, call: str) -> None:
    y, z = results(
        sources,
        f"y, z = tl.map_elementwise({call})\ntl.store(y_ptr + at, y)\ntl.store(z_ptr + at, z)",
    )
    np.testing.assert_array_equal(y, _X // 7)
    np.testing.assert_array_equal(z, _X % 7)


def test_a_return_on_one_path_ends_an_element(sources: Sources) -> None:
    y, _ = results(sources, "tl.store(y_ptr + at, tl.map_elementwise(early, x))")
    np.testing.assert_array_equal(y, np.where(_X > 3, 2 * _X, _X))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("tl.reduce(x, 0, lambda a, b: tl.maximum(a, b)) + at", _X.max() + np.arange(64)),
        ("tl.associative_scan(x, 0, lambda a, b: a + b)", np.cumsum(_X)),
        ("tl.map_elementwise(lambda a: a * 2 if a > 9 else a, x)", np.where(_X > 9, 2 * _X, _X)),
        ("(lambda a, by=3: a * by + x)(at)", np.arange(64) * 3 + _X),
        ("tl.map_elementwise(lambda a, b: both(a, b)[1], x, at + 1)", _X % np.arange(1, 65)),
        ("twice(lambda a: a + 1, x)", _X + 2),
        ("[f(x) for f in (lambda a: a + 1, lambda a: a - 1)][1]", _X - 1),
    ],
)
def test_lambdas(sources: Sources, expression: str, expected: np.ndarray) -> None:
    body = f"f = lambda a: a + 1\ntl.store(y_ptr + at, {expression})\ntl.store(z_ptr + at, f(x))"
    prelude = "\n@triton.jit\ndef twice(f, x):\n    return f(f(x))\n"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = _FUNCTIONS + prelude + _HEAD + lines
    translation = sources.translate(text, {"x_ptr": "*i32", "y_ptr": "*i32", "z_ptr": "*i32"})
    y, z = np.zeros(64, np.int32), np.zeros(64, np.int32)
    run(translation.kernel, (1,), [_X.copy(), y, z])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(z, _X + 1)


def test_a_lambda_sees_constants(sources: Sources) -> None:
    body = (
        "C: tl.constexpr = 5\ny = tl.map_elementwise(lambda a: a + C, x)\ntl.store(y_ptr + at, y)"
    )
    y, _ = results(sources, body)
    np.testing.assert_array_equal(y, _X + 5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("tl.map_elementwise(3, x)", "takes a @triton.jit function of scalars first, got 3"),
        ("tl.map_elementwise(both)", "takes a function and at least one tile"),
        ("tl.map_elementwise(both, 3, 4)", r"takes a tile, got \(int32, int32\)"),
        ("tl.map_elementwise(both, x, 7, pack=3)", "must be a power of two, got 3"),
        ("tl.map_elementwise(early, x, pack=2)", "early takes 1 argument"),
        ("tl.map_elementwise(both, x, 7, pack=2)", "both takes 2 arguments"),
        ("tl.map_elementwise(lambda a, b: a, x, pack=2)", "must return 2 scalars of one type"),
        ("tl.map_elementwise(lambda a: at + a, x)", "outside the lambda"),
        ("tl.reduce(x, 0, lambda a, b: a + at)", "outside the lambda"),
        ("tl.map_elementwise(lambda a: tl.arange(0, 4), x)", "must return scalars"),
        ("tl.map_elementwise(lambda a: tl.load(y_ptr), x)", "outside the lambda"),
        ("tl.map_elementwise(stores, x, y_ptr)", "may only compute"),
        ("tl.map_elementwise(lambda a: a + nowhere, x)", "nowhere"),
    ],
)
def test_refused(sources: Sources, body: str, message: str) -> None:
    stores = "\n@triton.jit\ndef stores(a, p):\n    tl.store(p, a)\n    return a\n"
    text = _FUNCTIONS + stores + _HEAD + f"    {body}\n"
    error = sources.error(text, {"x_ptr": "*i32", "y_ptr": "*i32", "z_ptr": "*i32"})
    assert re.search(message, error.message), error.message


def test_a_plain_lambda_of_the_file_is_refused(sources: Sources) -> None:
    text = "F = lambda a: a + 1\n@triton.jit\ndef k(p):\n    tl.store(p, F(3))\n"
    error = sources.error(text, {"p": "*i32"})
    assert "cannot call" in error.message or "F" in error.message


MANIFEST = """
[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:k"
grid = ["1"]
[kernel.signature]
x_ptr = "*i32:16"
f_ptr = "*fp32:16"
out_ptr = "*i32:16"
float_ptr = "*fp32:16"
[kernel.verify]
x_ptr = { low = 1, high = 9 }
"""
SOURCE = f"""
import triton
import triton.language as tl
{_FUNCTIONS}
@triton.jit
def k(x_ptr, f_ptr, out_ptr, float_ptr):
    at = tl.arange(0, 512)
    x = tl.load(x_ptr + at)
    q, r = tl.map_elementwise(both_of_two, x, at + 1, pack=2)
    s = tl.map_elementwise(triangle, x) + q - r
    top = tl.reduce(s, 0, lambda a, b: tl.maximum(a, b))
    tl.store(out_ptr + at, s * 2 - top)
    tl.store(float_ptr + at, tl.map_elementwise(lambda v: selu(v, 1.5), tl.load(f_ptr + at)))
"""


@pytest.mark.emulated
def test_the_gpu_does_the_same(tmp_path: Path) -> None:
    check_verified(tmp_path, SOURCE, MANIFEST)
