from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.interpreter.run import InterpretError, run
from tests.frontend.conftest import Sources


@pytest.mark.parametrize(
    ("call", "attribute"),
    [
        ("tl.multiple_of(x, (1, 16))", "divisibility = [1, 16]"),
        ("tl.max_contiguous(x, [1, 8])", "contiguity = [1, 8]"),
        ("tl.max_constancy(x, (4, 1))", "constancy = [4, 1]"),
    ],
)
def test_promises(sources: Sources, call: str, attribute: str) -> None:
    body = (
        f"x = tl.arange(0, 4)[:, None] + tl.arange(0, 8)[None, :]\nx = {call}\ntl.store(p + x, 1)"
    )
    assert f"tile.hint(%x) {{{attribute}}}" in sources.body(body, {"p": "*i32"}, params="p")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("tl.multiple_of(tl.arange(0, 4), (1, 1))", "one number for each of 1 axes, got 2"),
        ("tl.multiple_of(n, 0)", "positive numbers"),
        ("tl.multiple_of(n, n)", "known at compile time"),
        ("tl.assume(1 > 2)", "known to be false"),
        ("tl.device_assert(False, 'never')", "known to fail: never"),
        ("tl.device_assert(n > 0, n)", "must be a string"),
        ("tl.device_print(n)", "must be a string"),
        ("print(n)", "must be a string"),
        ("tl.device_print('größer', n)", "prints ASCII, got 'größer'"),
        ("tl.device_print('x', 'y')", "a value to print"),
        ("tl.static_assert(n > 0)", "must be known at compile time"),
    ],
)
def test_mistakes(sources: Sources, body: str, message: str) -> None:
    assert message in sources.body_error(body, {"n": "i32"}, params="n").message


def test_static_print(sources: Sources) -> None:
    text = "@triton.jit\ndef k(n):\n    tl.static_print('a', 1, n, tl.float16, sep='|')\n"
    assert sources.translate(text, {"n": "i32"}).prints == ("a|1|int32|fp16",)


def test_assertions_run(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit(debug=True)
        def k(n):
            x = tl.arange(0, 8)
            tl.device_assert(x < n, "too far", mask=x < 4)
        """,
        {"n": "i32"},
    )
    run(translation.kernel, (1,), [4])
    with pytest.raises(InterpretError, match="too far"):
        run(translation.kernel, (1,), [3])


def test_grid(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(out):
            x, y, z = tl.program_id(0), tl.program_id(axis=1), tl.program_id(2)
            at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
            tl.store(out + at, x + 10 * y + 100 * z)
            tl.debug_barrier()
        """,
        {"out": "*i32"},
    )
    out = np.zeros(24, np.int32)
    run(translation.kernel, (2, 3, 4), [out])
    expected = [x + 10 * y + 100 * z for z in range(4) for y in range(3) for x in range(2)]
    assert out.tolist() == expected


GUARDED_IMPORT = (
    "try:\n    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
    "except ImportError:\n    @triton.jit\n    def gdc_wait():\n        pass\n"
)


@pytest.mark.parametrize(
    ("head", "prefix"),
    [
        ("", "tl.extra.cuda."),
        ("from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait", ""),
        ("from triton.language.extra.cuda.gdc import gdc_launch_dependents, gdc_wait", ""),
        ("from triton.language.extra import cuda", "cuda."),
        (GUARDED_IMPORT, ""),
    ],
)
def test_programmatic_dependent_launch(sources: Sources, head: str, prefix: str) -> None:
    source = (
        f"{head}\n@triton.jit\ndef k(p):\n    tl.store(p, 1)\n    {prefix}gdc_wait()\n"
        f"    {prefix}gdc_launch_dependents()\n    tl.store(p, 2)\n"
    )
    lines = sources.text(source, {"p": "*i32"}).splitlines()
    ops = [line.split("(")[0].strip() for line in lines if "tile.store" in line or "grid." in line]
    assert ops == ["tile.store", "grid.wait", "grid.launch_dependents", "tile.store"]


def test_waiting_takes_no_argument(sources: Sources) -> None:
    error = sources.body_error("tl.extra.cuda.gdc_wait(n)", {"n": "i32"}, params="n")
    assert error.message == "tl.extra.cuda.gdc_wait takes 0 arguments, got 1"
    error = sources.body_error("tl.extra.cuda.gdc_wat()", {"n": "i32"}, params="n")
    assert "gdc_wait" in error.remedy
