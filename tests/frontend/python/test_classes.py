"""Classes of a kernel's file: functions under a name, and records."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

PRELUDE = """
from collections import namedtuple
from enum import Enum
from typing import NamedTuple
from triton.language.core import _aggregate as aggregate

Pair = namedtuple("Pair", "low, high", defaults=[7])
Range = namedtuple("Range", ["low", "high"])


class Act(Enum):
    RELU = 1
    GELU = 2


class Base(object):  # noqa: UP004
    SCALE: tl.constexpr = 3

    @staticmethod
    @triton.jit
    def twice(x):
        return x * 2


class Ops(Base):
    OFFSET = tl.constexpr(100)

    class Inner:
        @staticmethod
        @triton.jit
        def shifted(x):
            return x + Ops.OFFSET


class Span(NamedTuple):
    start: tl.tensor
    size: tl.tensor
    step: tl.constexpr = 2

    @triton.jit
    def end(self):
        return self.start + self.size * self.step


@aggregate
class Counter:
    value: tl.tensor
    by: tl.constexpr

    def __init__(self, value, by=5):
        self.value = value
        self.by: tl.constexpr = by

    @triton.jit
    def advanced(self, times):
        return Counter(self.value + self.by * times, self.by)


@aggregate
class Named(Counter):
    label: tl.constexpr


Wrapped = namedtuple("Wrapped", ["record", "name"])


@aggregate
class Plain:
    value: tl.tensor
    width: tl.constexpr = 4


class Thing:
    def __init__(self, x):
        self.x = x
"""


def _numbers(sources: Sources, body: str, *, n: int = 5, helpers: str = "") -> list[int]:
    """Run a kernel with this body; return the eight numbers of `out`."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    text = f"{PRELUDE}\n{helpers}\n\n@triton.jit\ndef k(out, n):\n{lines}\n"
    out = np.full(8, -1, np.int32)
    run(sources.translate(text, {"out": "*i32", "n": "i32"}).kernel, (1,), [out, n])
    return out.tolist()


def _message(sources: Sources, body: str) -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    text = f"{PRELUDE}\n\n@triton.jit\ndef k(out, n):\n{lines}\n"
    return str(sources.error(text, {"out": "*i32", "n": "i32"}))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.store(out, Ops.twice(n))", 10),
        ("tl.store(out, Ops.Inner.shifted(n))", 105),
        ("tl.store(out, n * Ops.SCALE + Ops.OFFSET)", 115),
        ("tl.store(out, n + Act.GELU.value)", 7),
        ("p = Pair(n, n + 1)\ntl.store(out, p.low * p.high)", 30),
        ("p = Pair(low=n)\ntl.store(out, p.high - p[0] + len(p))", 4),
        ("low, high = Pair(n, 1)\ntl.store(out, low + high)", 6),
        ("p = Pair(n, 1)._replace(high=n * 2)\ntl.store(out, p.high)", 10),
        ("s = Span(n, 3)\ntl.store(out, s.end())", 11),
        ("s = Span(size=n, start=1, step=3)\ntl.store(out, s.end())", 16),
        ("c = Counter(n).advanced(2)\ntl.store(out, c.value)", 15),
        ("c = Counter(n, by=2).advanced(n)\ntl.store(out + c.by, c.value)", None),
        ("c = Plain(n)\ntl.store(out, c.value + tl.sum(tl.arange(0, c.width)))", 11),
        ("c = tl.aggregate_replace(Plain(n), value=n + 1)\ntl.store(out, c.value)", 6),
        ("tl.store(out, Wrapped(n, 1)._replace(record=n + 2, name=0).record)", 7),
        ("tl.store(out, tuple([n, n + 1])[1] + list((n, 2))[1])", 8),
        ("tl.store(out, n if isinstance(Pair(1, 2), Range) else n + 1)", 6),
        ("tl.store(out, n + isinstance(Span(1, 2), Span) + hasattr(Span(1, 2), 'end'))", 7),
    ],
)
def test_values(sources: Sources, body: str, expected: int | None) -> None:
    actual = _numbers(sources, body)
    assert (actual[0] if expected is not None else actual[2]) == (expected or 15)


def test_records_go_through_branches_loops_and_functions(sources: Sources) -> None:
    body = """
p = Pair(n, n)
c = Counter(n)
for i in range(n):
    p = Pair(p.low + i, p.high * 2)
    if i % 2 == 0:
        c = c.advanced(1)
    else:
        c = Counter(c.value - 1)
q = larger(p, n)
tl.store(out, p.low)
tl.store(out + 1, p.high)
tl.store(out + 2, c.value)
tl.store(out + 3, q.high)
"""
    helpers = """
@triton.jit
def larger(p, n):
    if n > 3:
        return Pair(n, p.high + 1)
    return p
"""
    assert _numbers(sources, body, helpers=helpers)[:4] == [15, 160, 18, 161]
    assert _numbers(sources, body, n=2, helpers=helpers)[:4] == [3, 8, 6, 8]


def test_constants_of_an_aggregate_stay_constants(sources: Sources) -> None:
    """A plain assignment turns a named tuple's items into run-time values, invalid in a shape."""
    assert _numbers(sources, "c = Counter(n, 8)\ntl.store(out + tl.arange(0, c.by), n)") == [5] * 8
    message = _message(sources, "p = Pair(n, 8)\ntl.store(out + tl.arange(0, p.high), n)")
    assert "tl.arange" in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.store(out, Ops.thrice(n))", "the class Ops has no attribute 'thrice'"),
        ("tl.store(out, Pair(n, n).lov)", "Pair has no field 'lov'"),
        ("tl.store(out, Pair(n, n, n)[0])", "Pair takes at most 2 fields, got 3"),
        ("tl.store(out, Range(n)[0])", "Range is missing the field 'high'"),
        ("tl.store(out, Range(n, n, high=1)[0])", "Range got the field 'high' twice"),
        ("tl.store(out, Range(n, low=1)[0])", "Range got the field 'low' twice"),
        ("tl.store(out, Pair(n, n)._replace(mid=1)[0])", "Pair has no field 'mid'"),
        ("tl.store(out, Thing(n).x)", "a kernel makes no objects of the class Thing"),
        ("c = Plain(n)\nc.value = n", "an attribute cannot be assigned"),
        ("tl.store(out, tl.aggregate_replace(n, value=1))", "expected an aggregate"),
        ("p = Pair(n, n)\nif n > 2:\n    p = Range(n, n)\ntl.store(out, p.low)", "p is "),
    ],
)
def test_mistakes(sources: Sources, body: str, expected: str) -> None:
    assert expected in _message(sources, body)


def test_an_aggregate_sets_all_of_its_fields(sources: Sources) -> None:
    text = PRELUDE.replace("        self.by: tl.constexpr = by\n", "")
    text += "\n\n@triton.jit\ndef k(out, n):\n    tl.store(out, Counter(n).value)\n"
    error = sources.error(text, {"out": "*i32", "n": "i32"})
    assert "Counter is missing the field 'by'" in str(error)


def test_a_field_is_not_set_under_a_run_time_condition(sources: Sources) -> None:
    setting = "        self.value = value\n"
    branch = "        if value > 3:\n            self.value = value\n        else:\n            self.value = by\n"
    assert setting in PRELUDE
    text = PRELUDE.replace(setting, branch, 1)
    text += "\n\n@triton.jit\ndef k(out, n):\n    tl.store(out, Counter(n).value)\n"
    error = sources.error(text, {"out": "*i32", "n": "i32"})
    assert "the field 'value' is set under a run-time condition" in str(error)
