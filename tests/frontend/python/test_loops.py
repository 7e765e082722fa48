from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources
from tests.frontend.python.test_statements import outputs


def test_a_loop_carries_only_what_changes(sources: Sources) -> None:
    text = sources.body(
        """
        acc = 0
        same = n * 3
        other = n
        for i in range(n):
            acc += same
            same = same
            other = same
        tl.store(p, acc)
        tl.store(p + 1, other)
        """,
        {"p": "*i32", "n": "i32"},
        params="p, n",
    )
    loop = next(line for line in text.splitlines() if "scf.for" in line)
    assert "%acc" in loop
    assert loop.count(": i32") == 3
    assert "%same" not in loop.split("(%i")[1]


@pytest.mark.parametrize(
    "bounds", [(5,), (2, 7), (1, 8, 3), (7, 2, -1), (7, 0, -3), (0, 0), (3, 1), (0, 5, -1)]
)
def test_ranges(sources: Sources, bounds: tuple[int, ...]) -> None:
    arguments = ", ".join(map(str, bounds))
    text = f"""
    @triton.jit
    def k(out, zero):
        at = 0
        for i in range({arguments}):
            tl.store(out + at, i + zero)
            at += 1
    """
    expected = (list(range(*bounds)) + [-1] * 8)[:8]
    assert outputs(sources, text, [0], {"zero": "i32"}) == expected
    assert outputs(sources, text.replace("range(", "tl.range("), [0], {"zero": "i32"}) == expected
    unrolled = text.replace("range(", "tl.static_range(")
    assert outputs(sources, unrolled, [0], {"zero": "i32"}) == expected


def test_bounds_are_promoted(sources: Sources) -> None:
    text = sources.body(
        "for i in range(0, n, m):\n    tl.store(p + i, i)",
        {"p": "*i64", "n": "i64", "m": "i32"},
        params="p, n, m",
    )
    assert "(%i: i64)" in text


def test_float_bounds(sources: Sources) -> None:
    error = sources.body_error("for i in range(1.5):\n    pass", {})
    assert "bounds and step of a range are integers, got float32" in error.message


def test_hints(sources: Sources) -> None:
    text = sources.body(
        "for i in tl.range(0, n, num_stages=3, loop_unroll_factor=2, flatten=True, "
        "disallow_acc_multi_buffer=True, warp_specialize=False, disable_licm=True):\n    pass",
        {"n": "i32"},
        params="n",
    )
    assert "{num_stages = 3, unroll = 2, flatten = true, disallow_acc_multi_buffer = true}" in text


def test_unknown_hint(sources: Sources) -> None:
    error = sources.body_error("for i in tl.range(4, num_stage=3):\n    pass", {})
    assert error.message == "tl.range has no parameter 'num_stage'"
    assert "'num_stages'" in error.remedy


def test_a_conditional_iterator(sources: Sources) -> None:
    body = "for i in (tl.static_range if N <= 4 else tl.range)(N):\n    tl.store(p + i, i)"
    small = sources.body(body, {"p": "*i32"}, {"N": 3}, params="p, N: tl.constexpr")
    large = sources.body(body, {"p": "*i32"}, {"N": 9}, params="p, N: tl.constexpr")
    assert "scf.for" not in small
    assert small.count("tile.store") == 3
    assert "scf.for" in large


def test_going_over_a_tuple(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        at: tl.constexpr = 0
        for x in (n, n + 1, 7):
            tl.store(out, x)
            out += 1
    """
    assert outputs(sources, text, [3], {"n": "i32"})[:4] == [3, 4, 7, -1]


def test_nested_loops_and_tuples(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        state = (0, 1)
        for i in range(n):
            for j in range(i):
                a, b = state
                state = (b, a + b)
        a, b = state
        tl.store(out, a)
        tl.store(out + 1, b)
    """
    # 3 + 2 + 1 steps of Fibonacci.
    assert outputs(sources, text, [4], {"n": "i32"})[:2] == [8, 13]


def test_swapped_variables(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        a = n * 10
        b = n * 20
        for i in range(n):
            a, b = b, a
        tl.store(out, a)
        tl.store(out + 1, b)
    """
    assert outputs(sources, text, [3], {"n": "i32"})[:2] == [60, 30]
    assert outputs(sources, text, [2], {"n": "i32"})[:2] == [20, 40]


def test_while(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        steps = 0
        fixed = n
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        tl.store(out, steps)
        tl.store(out + 1, fixed)
    """
    assert outputs(sources, text, [6], {"n": "i32"})[:2] == [8, 6]
    printed = sources.text(text, {"out": "*i32", "n": "i32"})
    loop = next(line for line in printed.splitlines() if "scf.while" in line)
    assert "fixed" not in loop


def test_while_on_a_flag(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        going = n > 0
        while going:
            n -= 1
            going = n > 3
        tl.store(out, n)
    """
    assert outputs(sources, text, [9], {"n": "i32"})[0] == 3
    assert outputs(sources, text, [-9], {"n": "i32"})[0] == -9


def test_while_false(sources: Sources) -> None:
    text = sources.body(
        "while FLAG:\n    tl.store(p, 1)",
        {"p": "*i32"},
        {"FLAG": False},
        params="p, FLAG: tl.constexpr",
    )
    assert "tile.store" not in text


def test_too_much_unrolling(sources: Sources) -> None:
    error = sources.body_error("for i in tl.static_range(100000000):\n    pass", {})
    assert "100000000 times" in error.message
    nested = "for i in tl.static_range(1000):\n    for j in tl.static_range(1000):\n        pass"
    assert "200000 statements" in sources.body_error(nested, {}).message


def test_too_many_operations_name_the_outermost_loop(sources: Sources) -> None:
    loops = "for i in tl.static_range(10):\n    for j in tl.static_range(9):\n        x = x + y"
    types = {"p": "*fp32", "y": "fp32"}
    error = sources.body_error(f"x = y\n{loops}\ntl.store(p, x)", types, params="p, y", max_ops=89)
    assert error.message == (
        "the kernel expands to more than 89 operations, "
        "most of them in a loop whose body stands here 10 times"
    )
    assert error.loc is not None
    assert error.loc.line == 6
    assert "`operations` in [kernel.limits]" in error.remedy


def test_too_many_operations_in_a_row(sources: Sources) -> None:
    body, types = "tl.store(p, y + y)", {"p": "*fp32", "y": "fp32"}
    sources.body(body, types, params="p, y", max_ops=3)  # an addition, a store and the return
    error = sources.body_error(body, types, params="p, y", max_ops=1)
    assert error.message == "the kernel expands to more than 1 operations"


def test_accumulating_a_tile(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(x, out, n, BLOCK: tl.constexpr):
            acc = tl.zeros((BLOCK,), tl.float32)
            for start in range(0, n, BLOCK):
                offs = start + tl.arange(0, BLOCK)
                acc += tl.load(x + offs, mask=offs < n, other=0.0)
            tl.store(out, tl.sum(acc))
        """,
        {"x": "*fp32", "out": "*fp32", "n": "i32"},
        {"BLOCK": 16},
    )
    x = np.arange(37, dtype=np.float32)
    out = np.zeros(1, np.float32)
    run(translation.kernel, (1,), [x, out, 37])
    assert out[0] == x.sum()
