from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources


def outputs(
    sources: Sources, text: str, args: list[object], signature: dict[str, str], **constants
):
    """Run a kernel with an output of eight i32 values; return them."""
    out = np.full(8, -1, np.int32)
    translation = sources.translate(text, {"out": "*i32", **signature}, constants)
    run(translation.kernel, (1,), [out, *args])
    return out.tolist()


# ---- early return -----------------------------------------------------------------------------

GUARD = """
@triton.jit
def k(out, n):
    if n > 3:
        return
    tl.store(out, n)
"""


def test_what_follows_an_early_return_is_the_other_branch(sources: Sources) -> None:
    text = sources.text(GUARD, {"out": "*i32", "n": "i32"})
    # One branch returns, the other stores: no branch jumps.
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("scf.yield()") < lines.index("tile.store(%out, %n, _)")
    assert lines[-2] == "scf.return"


@pytest.mark.parametrize(("n", "first"), [(3, 3), (4, -1)])
def test_early_return_runs(sources: Sources, n: int, first: int) -> None:
    assert outputs(sources, GUARD, [n], {"n": "i32"})[0] == first


HELPER = """
@triton.jit
def pick(x, y):
    if x > y:
        return x, 1
    elif x == y:
        if x > 100:
            return x * 0, 9
    return x + y, 3

@triton.jit
def k(out, x, y):
    a, b = pick(x, y)
    tl.store(out, a)
    tl.store(out + 1, b)
"""


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [(5, 2, (5, 1)), (2, 5, (7, 3)), (4, 4, (8, 3)), (101, 101, (0, 9))],
)
def test_helpers_with_several_returns(
    sources: Sources, x: int, y: int, expected: tuple[int, int]
) -> None:
    assert tuple(outputs(sources, HELPER, [x, y], {"x": "i32", "y": "i32"})[:2]) == expected


def test_returns_of_two_types(sources: Sources) -> None:
    error = sources.error(
        """
        @triton.jit
        def f(x):
            if x > 0:
                return x
            return 1.5

        @triton.jit
        def k(x):
            y = f(x)
        """,
        {"x": "i32"},
    )
    assert "f returns int32 on one path and float32 on another" in error.message


def test_a_return_ruled_out_by_a_constant_doubles_nothing(sources: Sources) -> None:
    text = sources.text(
        """
        @triton.jit
        def k(out, n, DEBUG: tl.constexpr):
            if n > 3:
                if DEBUG:
                    return
            tl.store(out, n)
        """,
        {"out": "*i32", "n": "i32"},
        {"DEBUG": False},
    )
    assert text.count("tile.store") == 1


def test_return_inside_an_unrolled_loop(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        for i in tl.static_range(4):
            if i == n:
                return
            tl.store(out + i, i)
        tl.store(out + 7, 7)
    """
    assert outputs(sources, text, [2], {"n": "i32"}) == [0, 1, -1, -1, -1, -1, -1, -1]
    assert outputs(sources, text, [9], {"n": "i32"}) == [0, 1, 2, 3, -1, -1, -1, 7]


# ---- branches ---------------------------------------------------------------------------------


def test_dead_arms_are_never_looked_at(sources: Sources) -> None:
    text = sources.body(
        """
        if FLAG:
            tl.store(p, 1)
        else:
            nothing.here(is_defined) @ all
            raise ValueError
        x = 1 if FLAG else undefined
        y = FLAG or undefined
        z = (not FLAG) and undefined
        """,
        {"p": "*i32"},
        {"FLAG": True},
        params="p, FLAG: tl.constexpr",
    )
    assert "scf.if" not in text


def test_only_what_differs_is_merged(sources: Sources) -> None:
    text = sources.body(
        """
        a = n + 1
        b = n + 2
        if n > 0:
            a = a * 2
            b = b
        tl.store(p, a + b)
        """,
        {"p": "*i32", "n": "i32"},
        params="p, n",
    )
    yields = re.findall(r"scf.yield\((.*)\)", text)
    assert len(yields) == 2
    assert all(line.startswith("%a") and "," not in line for line in yields)


def test_variables_set_in_both_branches(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, n):
        if n > 0:
            a = n
            t = (n, n + 1)
        else:
            a = 0 - n
            t = (n * 2, n)
        x, y = t
        tl.store(out, a)
        tl.store(out + 1, x)
        tl.store(out + 2, y)
    """
    assert outputs(sources, text, [3], {"n": "i32"})[:3] == [3, 3, 4]
    assert outputs(sources, text, [-3], {"n": "i32"})[:3] == [3, -6, -3]


# ---- assignment -------------------------------------------------------------------------------


def test_constexpr_decay(sources: Sources) -> None:
    body = "x = 2 * BLOCK\ny = tl.arange(0, x)"
    error = sources.body_error(body, {}, {"BLOCK": 8}, params="BLOCK: tl.constexpr")
    assert "the end of arange must be known at compile time" in error.message
    for annotated in (
        "x: tl.constexpr = 2 * BLOCK\ny = tl.arange(0, x)",
        "x: tl.constexpr\nx = 2 * BLOCK\ny = tl.arange(0, x)",
        "y = tl.arange(0, 2 * BLOCK)",
        "t = (BLOCK, 1)\nd = p.dtype\nz = None\ny = tl.arange(0, 2 * BLOCK)",
    ):
        text = sources.body(annotated, {"p": "*i32"}, {"BLOCK": 8}, params="p, BLOCK: tl.constexpr")
        assert "tile<16xi32>" in text


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        ("a, b", (4, 8)),
        ("[a, b]", (4, 8)),
        ("(a, _), b", ((4, 3), 8)),
        ("a, (_, (b,))", (4, (3, (8,)))),
    ],
)
def test_declared_constexprs_stay_constants_where_a_tuple_is_unpacked(
    sources: Sources, names: str, shape: object
) -> None:
    body = f"a: tl.constexpr\nb: tl.constexpr\n{names} = S\ntl.store(p + tl.arange(0, a * b), a)"
    text = sources.body(body, {"p": "*i32"}, {"S": shape}, params="p, S: tl.constexpr")
    assert "tile<32x*i32>" in text


def test_what_is_not_declared_decays_beside_what_is(sources: Sources) -> None:
    body = "a: tl.constexpr\na, b = S\ny = tl.arange(0, a)\nz = tl.arange(0, b)"
    error = sources.body_error(body, {}, {"S": (4, 8)}, params="S: tl.constexpr")
    assert "the end of arange must be known at compile time" in error.message
    assert error.loc is not None
    assert "arange(0, b)" in str(error)
    error = sources.body_error(
        "a: tl.constexpr\na, b = S", {}, {"S": (4,)}, params="S: tl.constexpr"
    )
    assert error.message == "expected 2 values to unpack, got 1"


def test_a_run_time_scalar_takes_part_in_promotion(sources: Sources) -> None:
    body = """
    x = tl.load(p + tl.arange(0, 4))
    half = 0.5
    tl.static_print((x * 0.5).dtype, (x * half).dtype)
    """
    translation = sources.translate(f"@triton.jit\ndef k(p):\n{body}", {"p": "*fp16"})
    assert translation.prints == ("fp16 fp32",)


def test_a_promise_without_a_name_is_kept(sources: Sources) -> None:
    text = sources.body(
        "tl.multiple_of(n, 16)\ntl.store(p + n, 1)", {"p": "*i32", "n": "i32"}, params="p, n"
    )
    assert "tile.hint(%n) {divisibility = [16]}" in text
    assert "arith.addptr(%p, %n)" not in text


def test_local_constexpr_in_an_unrolled_loop(sources: Sources) -> None:
    text = sources.body(
        "for i in tl.static_range(2):\n    n: tl.constexpr = 4 << i\n    tl.store(p + tl.arange(0, n), i)",
        {"p": "*i32"},
        params="p",
    )
    assert "tile<4x*i32>" in text
    assert "tile<8x*i32>" in text


def test_assertions_can_be_left_out(sources: Sources) -> None:
    text = (
        "@triton.jit\ndef k(n):\n    assert n > 0, 'positive'\n    tl.device_assert(n > 1, 'two')\n"
    )
    debug_text = text.replace("@triton.jit", "@triton.jit(debug=True)")
    for ir in (
        sources.text(text, {"n": "i32"}, debug=True),
        sources.text(debug_text, {"n": "i32"}),
    ):
        assert 'message = "positive"' in ir
        assert 'message = "two"' in ir
    assert "tile.assert" not in sources.text(text, {"n": "i32"})


def test_docstrings_and_pass_are_nothing(sources: Sources) -> None:
    text = sources.body('"""What it does."""\npass', {})
    assert text == "kernel @k() {num_warps = 4} {\n  scf.return\n}\n"


def test_a_pointer_is_true_if_it_is_not_null(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(out, start_ptr, n):
        start = n
        if start_ptr:
            start = tl.load(start_ptr)
        tl.store(out, start if out else 0)
    """
    translation = sources.translate(text, {"out": "*i32", "start_ptr": "*i32", "n": "i32"})
    out = np.zeros(1, np.int32)
    run(translation.kernel, (1,), [out, np.array([7], np.int32), 3])
    assert out.tolist() == [7]
    absent = sources.translate(text, {"out": "*i32", "n": "i32"}, {"start_ptr": None})
    run(absent.kernel, (1,), [out, 3])
    assert out.tolist() == [3]
