"""Planted mistakes in the frontend: the recorded outcomes must expose each.

A mistake replaces a piece of a function's text; the function's code is exchanged during the test. The first three passed every test of the frontend before there was an oracle.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc.frontend.language import (
    convert,
    indexing,
    math_functions,
    memory,
    operators,
    promotion,
    reductions,
    shapes,
    sorting,
)
from aotc.ir.diagnostics import IRError
from aotc.verify.interpreter.run import InterpretError
from tests.oracle import recorded
from tests.oracle.agree import cases, disagreement
from tests.oracle.compiled import answer
from tests.oracle.differences import reason

PLANTED: dict[str, tuple[Callable[..., Any], str, str, str]] = {
    "sums of int8 and int16 are not widened": (
        reductions._sum_type,
        "kind.bits < I32.bits",
        "kind.bits < 1",
        "reduce/sum,",
    ),
    "of equal elements the last is taken": (
        reductions._indexed,
        '"lt"',
        '"gt"',
        "reduce/places,",
    ),
    "clamp drops NaN whatever is asked": (
        math_functions.clamp,
        "propagate = _propagates(propagate_nan)",
        "propagate = False",
        "clamp/",
    ),
    "minimum and maximum propagate NaN if they are not to": (
        math_functions._propagates,
        "is PropagateNan.ALL",
        "is PropagateNan.NONE",
        "extremes/float",
    ),
    "the type that operands meet in decides how to shift": (
        operators.shift_right,
        "decides.is_signed == kind.is_signed",
        "decides.bits > 0",
        "shift/",
    ),
    "the quotient of integers is an integer": (
        operators.divide,
        "if kind.is_int:",
        "if kind.is_bool:",
        "divide/int",
    ),
    "a remainder of halves is made in halves": (
        operators.remainder,
        'arithmetic="division"',
        'arithmetic="plain"',
        "remainder/float16",
    ),
    "integers of one width meet in the signed one": (
        promotion.integer_type,
        "unsigned.bits >= signed.bits",
        "unsigned.bits > signed.bits",
        "arithmetic/int",
    ),
    "bf16 and an integer meet in bf16": (
        promotion._float_type,
        "return BF16 if left == right else FP32",
        "return BF16",
        "arithmetic/bfloat16",
    ),
    "fp16 wins over fp32": (
        promotion._float_type,
        'arithmetic == "division" or FP32 in (left, right)',
        'arithmetic == "division" or left == right == FP32',
        "arithmetic/float",
    ),
    "a literal of the same kind takes part in promotion": (
        promotion.computation_type,
        "rank(literal) <= rank(other)",
        "rank(literal) < rank(other)",
        "literal/int8",
    ),
    "a literal from 2**31 on is int64": (
        promotion.literal_type,
        "(U32, 2**31, 2**32)",
        "(I64, 2**31, 2**32)",
        "literal/",
    ),
    "a subnormal literal is fp32": (
        promotion.literal_type,
        "_SMALLEST_NORMAL_FP32 <= magnitude",
        "magnitude",
        "literal/",
    ),
    "the maximum of halves stays a half": (
        reductions._for_extremum,
        "kind.bits >= I32.bits",
        "kind.bits >= 16",
        "reduce/extremes,",
    ),
    "a scan goes one way only": (
        reductions._scan,
        'static_bool(reverse, "reverse")',
        "False",
        "scan/",
    ),
    "the axes of a full reduction are dropped": (
        reductions._reduce,
        'if not static_bool(keep_dims, "keep_dims"):',
        'if axis is None or not static_bool(keep_dims, "keep_dims"):',
        "reduce/max keeps",
    ),
    "a conversion rounds to nearest whatever is asked": (
        convert.cast,
        'rounding == "rtz"',
        'rounding == "down"',
        "rounding/rtz,",
    ),
    "the complement of an unsigned integer keeps its highest bit": (
        operators.invert,
        "(1 << kind.bits) - 1",
        "(1 << (kind.bits - 1)) - 1",
        "unary/invert",
    ),
    "where takes the other one": (
        operators.select,
        "arith.Select(chosen, lhs, rhs)",
        "arith.Select(chosen, rhs, lhs)",
        "extremes/",
    ),
    "umulhi multiplies signed integers": (
        math_functions.umulhi,
        "if kind.is_signed:",
        "if kind.is_bool:",
        "function/umulhi",
    ),
    "the absolute value of an integer is itself": (
        math_functions.absolute,
        "kind.is_int and not kind.is_signed",
        "kind.is_int",
        "unary/abs",
    ),
    "the addend of an fma comes first": (
        math_functions.fma,
        "arith.Fma(a, b, c)",
        "arith.Fma(c, b, a)",
        "function/fma,float",
    ),
    "cdiv rounds down": (
        math_functions.cdiv,
        "div, 1)",
        "div, div)",
        "function/cdiv",
    ),
    "unsigned integers sort as signed ones": (
        sorting._to_keys,
        "if kind.is_signed or kind.bits < key.bits:",
        "if kind.is_int:",
        "shape/sort",
    ),
    "the greatest one is sought among inverted keys": (
        sorting._Network.sort_runs,
        "if not num_bits:",
        "if num_bits > 99:",
        "shape/topk one",
    ),
    "the greatest few are not widened": (
        sorting.topk,
        "kind.bits >= I32.bits",
        "kind.bits >= 8",
        "shape/topk",
    ),
    "cat puts the second tile first": (
        shapes.cat,
        "join(emit, left, right)",
        "join(emit, right, left)",
        "shape/cat",
    ),
    "flip reverses the first axis": (
        shapes.flip,
        "-1 if dim is None else dim",
        "0 if dim is None else dim",
        "shape/flip",
    ),
    "a histogram counts what is masked off": (
        indexing.histogram,
        "indexing.Histogram(value, bins, chosen)",
        "indexing.Histogram(value, bins, None)",
        "histogram/",
    ),
    "masked-off elements are undefined in spite of `other`": (
        memory.load,
        "tile.Load(source, masked, filler, *hints)",
        "tile.Load(source, masked, None, *hints)",
        "load/",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, right, wrong, prefix = PLANTED[name]
    answers = recorded.read()
    chosen = [case for case in cases() if case.name.startswith(prefix) and not reason(case.name)]
    assert chosen
    text = textwrap.dedent(inspect.getsource(function))
    assert right in text
    namespace: dict[str, Any] = {}
    exec(
        compile(
            "from __future__ import annotations\n" + text.replace(right, wrong), "planted", "exec"
        ),
        dict(function.__globals__),
        namespace,
    )
    monkeypatch.setattr(function, "__code__", namespace[function.__name__].__code__)
    for case in chosen:
        expected = answers[case.name][1]
        try:
            actual = answer(case, expected, tmp_path)
        except (IRError, InterpretError):  # told, if not by a result
            return
        if disagreement(case, expected, actual) is not None:
            return
    raise AssertionError(f"{len(chosen)} cases do not tell it")
