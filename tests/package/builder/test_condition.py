"""Conditions keep all of the guards and of the driver's limits not proved by the signature."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.compiler import CompileRequest
from aotc.ir import expression
from aotc.ir.expression import Expression, ExpressionError
from aotc.metadata import ParamSlot, TensorMapSpec
from aotc.package.builder.condition import NEVER, launch_condition
from tests.support.extent import examples

SIGNATURE = {
    "a": "*bf16:16",
    "unaligned": "*bf16",
    "m": "i32",
    "k": "i64",
    "step": "i32:16",
    "odd": "i32",
    "wide": "i64:16",
    "huge": "u64",
    "one": "i32=1",
    "flag": "i1",
    "small": "u8",
}


def _request(**types: str) -> CompileRequest:
    return CompileRequest("k.py", "k", tuple({**SIGNATURE, **types}.items()), (), "sm_90a")


def _slot(
    shape: tuple[str, ...], strides: tuple[str, ...], element: str = "bf16", pointer: str = "a"
) -> ParamSlot:
    spec = TensorMapSpec(element, (64,) * len(shape), 128, False, pointer, shape, strides)
    return ParamSlot("map", "map", 0, 128, argument=pointer, tensor_map=spec)


def _condition(*guards: str, slots: tuple[ParamSlot, ...] = ()) -> str | None:
    condition = launch_condition(_request(), guards, slots)
    return None if condition is None else expression.to_text(condition)


def test_no_maps_and_no_guards_are_no_condition() -> None:
    plain = ParamSlot("a", "*bf16", 0, 8)
    assert launch_condition(_request(), (), (plain,)) is None


def test_what_the_signature_promises_is_left_out() -> None:
    assert _condition(slots=(_slot(("max(1, m)", "64"), ("step",)),)) == "step >= 0"
    assert _condition("step > 0", slots=(_slot(("max(1, m)", "64"), ("step",)),)) == "step > 0"


def test_what_it_does_not_promise_is_not() -> None:
    assert _condition(slots=(_slot(("m", "64"), ("odd",)),)) == (
        "m >= 1 and odd >= 0 and odd % 8 == 0"
    )
    assert _condition(slots=(_slot(("64", "max(1, k)"), ("wide * 2",)),)) == (
        "max(1, k) <= 4294967296 and wide * 2 >= 0 and wide * 2 < 549755813888"
        " and wide * 2 % 8 == 0"
    )
    assert _condition(slots=(_slot(("64",), (), pointer="unaligned"),)) == "unaligned % 16 == 0"
    assert _condition(slots=(_slot(("64", "64"), ("step",), "fp64"),)) == "step >= 0"
    assert _condition(slots=(_slot(("max(1, huge)", "64"), ("step",)),)) == (
        "max(1, huge) >= 1 and max(1, huge) <= 4294967296 and step >= 0"
    )


def test_a_condition_is_stated_once() -> None:
    slot = _slot(("max(1, m)", "64"), ("odd",))
    assert _condition("odd % 32 == 0", slots=(slot, slot)) == "odd % 32 == 0 and odd >= 0"


def test_fixed_arguments_are_folded() -> None:
    assert _condition("m % (one * 128) == 0", "one == 1") == "m % 128 == 0"


def test_a_tensor_argument_is_the_callers_to_get_right() -> None:
    spec = TensorMapSpec("bf16", (64, 64), 128, False, "t", ("t.shape[0]", "8"), ("t.strides[0]",))
    slot = ParamSlot("t", "map", 0, 128, tensor_map=spec)
    assert launch_condition(_request(t="tensordesc<bf16[64,64]>"), (), (slot,)) is None


@pytest.mark.parametrize(
    ("guards", "slots"),
    [
        (("one == 2",), ()),
        (("m % 128 == 0", "small > 255"), ()),
        ((), (_slot(("4294967297", "64"), ("step",)),)),
        ((), (_slot(("64", "64"), ("4",)),)),
        (tuple(f"m % {divisor} != 1" for divisor in range(2, 200)), ()),
    ],
)
def test_a_condition_that_never_holds(guards: Any, slots: Any) -> None:
    assert launch_condition(_request(), guards, slots) == NEVER


# ---- the law: a condition holds exactly if everything it replaces holds ---------------------

_NAMES = ("m", "k", "step", "odd", "wide", "huge", "one", "flag", "small", "a")
_NUMBERS = st.sampled_from([-8, -1, 0, 1, 2, 3, 8, 16, 128, 1 << 31, 1 << 40, (1 << 63) - 1])
_VALUES = st.recursive(
    st.one_of(st.sampled_from(_NAMES), _NUMBERS.map(str)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max", "cdiv"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
    ),
    max_leaves=4,
)
_GUARDS = st.one_of(
    st.tuples(_VALUES, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), _VALUES).map(" ".join),
    st.tuples(st.sampled_from(_NAMES), st.sampled_from([2, 8, 16, 128])).map(
        lambda parts: f"{parts[0]} % {parts[1]} == 0"
    ),
    _VALUES,
    _VALUES.map(lambda text: f"not {text}"),
)
_ROUND = st.sampled_from([-16, 0, 16, 128, 1 << 20])
_ARGUMENTS = st.fixed_dictionaries(
    {
        "m": st.one_of(st.sampled_from([-1, 0, 1, 128, 2**31 - 1]), st.integers(-300, 300)),
        "k": st.one_of(_NUMBERS, st.integers(-300, 300)),
        "step": _ROUND,
        "odd": st.integers(-40, 40),
        "wide": st.one_of(_ROUND, st.just(1 << 62)),
        "huge": st.one_of(_NUMBERS.filter(lambda value: value >= 0), st.just((1 << 64) - 1)),
        "flag": st.integers(0, 1),
        "small": st.integers(0, 255),
        "a": st.sampled_from([1 << 20, (1 << 40) + 16]),
    }
)


def _holds(root: Expression, values: dict[str, int]) -> bool:
    try:
        return expression.evaluate(root, values) != 0
    except ExpressionError:
        return False


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_GUARDS, max_size=4), _VALUES, st.sampled_from(["step", "odd", "wide"]), _ARGUMENTS)
def test_nothing_is_lost_and_nothing_is_added(
    guards: list[str], extent: str, stride: str, arguments: dict[str, int]
) -> None:
    try:
        condition = launch_condition(_request(), guards, (_slot((extent, "64"), (stride,)),))
    except ExpressionError:
        return  # fails among constants; the compiler writes no such condition
    driver = [f"{extent} >= 1", f"{extent} <= {1 << 32}", f"{stride} >= 0"]
    driver += [f"{stride} < {1 << 39}", f"{stride} % 8 == 0", "a % 16 == 0"]
    values = {**arguments, "one": 1}
    expected = all(_holds(expression.parse(text), values) for text in (*guards, *driver))
    assert (condition is None or _holds(condition, values)) == expected
