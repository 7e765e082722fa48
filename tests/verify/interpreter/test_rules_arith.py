"""Every arithmetic op, as a kernel of one op, against plain NumPy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP8E4NV, FP16, FP32, FP64, I1, I8, I32, I64, U8, U64, PointerType
from aotc.verify.interpreter.rules_arith import ARITH_RULES
from aotc.verify.interpreter.run import InterpretError
from tests.support.run_op import run_op

INTS = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
SHAPE = (4, 16)


def _random(dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return np.frombuffer(rng.bytes(64 * kind.itemsize), kind).reshape(SHAPE).copy()
    return (4 * rng.standard_normal(SHAPE)).astype(kind)


def _one(make: Callable[..., Op], *arrays: Any, **options: Any) -> Any:
    def body(add: Builder, *values: Value) -> Value:
        return add(make(*values, **options)).results[0]

    return run_op(body, *arrays)[0]


def _equal(actual: Any, expected: Any) -> None:
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_every_arith_op_has_a_rule() -> None:
    ops = {cls for name, cls in Op.registry.items() if name.startswith("arith.")}
    assert set(ARITH_RULES) == ops


@pytest.mark.parametrize(
    ("cls", "function"),
    [(arith.Add, np.add), (arith.Sub, np.subtract), (arith.Mul, np.multiply)],
)
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_sums_and_products_round_to_their_type(cls: Any, function: Any, dtype: Any) -> None:
    a, b = _random(dtype, 1), _random(dtype, 2)
    with np.errstate(all="ignore"):
        expected = function(a, b)
    _equal(_one(cls, a, b), expected)


def test_sixteen_bit_sums_do_not_keep_fp32_precision() -> None:
    ones_array, tiny = np.ones(2, np.float16), np.full(2, 2.0**-12, np.float16)

    def body(add: Builder, x: Value, y: Value) -> Value:
        return add(arith.Add(add(arith.Add(x, y)).out, y)).out

    assert run_op(body, ones_array, tiny)[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("a", "b", "quotient"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3)])
def test_integer_division_truncates(a: int, b: int, quotient: int) -> None:
    x, y = np.array([a], np.int32), np.array([b], np.int32)
    assert _one(arith.Div, x, y).tolist() == [quotient]
    assert _one(arith.Rem, x, y).tolist() == [a - b * quotient]


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_division_and_remainder(dtype: Any) -> None:
    a, b = _random(dtype, 1), _random(dtype, 2)
    _equal(_one(arith.Div, a, b), a / b)
    _equal(_one(arith.DivRn, a, b), a / b)
    expected = np.fmod(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
    _equal(_one(arith.Rem, a, b), expected)
    with np.errstate(all="ignore"):
        by_zero = _one(arith.Div, np.array([1, -1, 0], dtype)[:2], np.zeros(2, dtype))
    assert by_zero.astype(np.float64).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", INTS)
def test_bits(dtype: Any) -> None:
    a, b = _random(dtype, 1), _random(dtype, 2)
    _equal(_one(arith.And, a, b), a & b)
    _equal(_one(arith.Or, a, b), a | b)
    _equal(_one(arith.Xor, a, b), a ^ b)
    amount = (np.arange(64).reshape(SHAPE) % (8 * a.itemsize)).astype(dtype)
    _equal(_one(arith.Shl, a, amount), a << amount)
    _equal(_one(arith.Shr, a, amount), a >> amount)


def test_bits_of_booleans() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert _one(arith.And, a, b).tolist() == [False, False, False, True]
    assert _one(arith.Or, a, b).tolist() == [False, True, True, True]
    assert _one(arith.Xor, a, b).tolist() == [False, True, True, False]
    assert _one(arith.Add, a, b).tolist() == [False, True, True, False]  # modulo 2
    assert _one(arith.Mul, a, b).tolist() == [False, False, False, True]


def test_multiply_high() -> None:
    a, b = _random(np.uint32, 1), _random(np.uint32, 2)
    wide = (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)
    _equal(_one(arith.MulHi, a, b), wide.astype(np.uint32))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, *FLOATS])
def test_minimum_and_maximum(dtype: Any) -> None:
    a, b = _random(dtype, 1), _random(dtype, 2)
    _equal(_one(arith.Min, a, b), np.where(a < b, a, b))
    _equal(_one(arith.Max, a, b), np.where(a > b, a, b))


def test_nan_in_minimum_and_maximum() -> None:
    nan = np.array([np.nan, 1.0, np.nan, 2.0], np.float32)
    other = np.array([3.0, np.nan, np.nan, 4.0], np.float32)
    for cls, best in ((arith.Min, 2.0), (arith.Max, 4.0)):
        number = _one(cls, nan, other)
        assert number[[0, 1, 3]].tolist() == [3.0, 1.0, best]
        assert np.isnan(number[2])
        propagated = _one(cls, nan, other, propagate_nan=True)
        assert np.isnan(propagated).tolist() == [True, True, True, False]


@pytest.mark.parametrize("propagate_nan", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_minus_zero_is_before_zero(dtype: Any, propagate_nan: bool) -> None:
    a, b = np.array([0.0, -0.0, 0.0, -0.0], dtype), np.array([-0.0, 0.0, 0.0, -0.0], dtype)
    least = _one(arith.Min, a, b, propagate_nan=propagate_nan)
    most = _one(arith.Max, a, b, propagate_nan=propagate_nan)
    assert np.signbit(least).tolist() == [True, True, False, True]
    assert np.signbit(most).tolist() == [False, False, False, True]


def test_fp8_is_computed_in_fp32_and_saturates() -> None:
    a = np.array([448, 448, -448, 1, 0.25, np.nan, -0.0, 2], ml_dtypes.float8_e4m3fn)
    b = np.array([448, 32, -448, 1.125, 0.25, 1, 0, 1], ml_dtypes.float8_e4m3fn)
    _equal(_one(arith.Add, a, b)[:5], np.array([448, 448, -448, 2, 0.5], a.dtype))
    assert _one(arith.Add, a, b).view(np.uint8)[5] == 0x7F
    wide = np.array([np.inf, -np.inf, 57344, 1], ml_dtypes.float8_e5m2)
    other = np.zeros(4, wide.dtype)
    _equal(_one(arith.Max, wide, other), np.array([57344, 0, 57344, 1], wide.dtype))
    _equal(_one(arith.Neg, wide), np.array([-np.inf, np.inf, -57344, -1], wide.dtype))
    _equal(_one(arith.Abs, wide), np.array([np.inf, np.inf, 57344, 1], wide.dtype))


def test_integers_of_one_bit() -> None:
    a, b = np.array([False, True]), np.array([True, True])
    assert _one(arith.Div, a, b).tolist() == [False, True]
    assert _one(arith.Rem, a, b).tolist() == [False, False]
    assert _one(arith.Shl, a, ~b).tolist() == [False, True]
    assert _one(arith.Shr, a, ~b).tolist() == [False, True]
    assert _one(arith.Neg, a).tolist() == [False, True]


def test_an_fma_of_a_product_too_large_for_fp64() -> None:
    large, inf = np.array([1.7e308]), np.array([np.inf])
    assert _one(arith.Fma, large, large, -inf) == -np.inf


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, *FLOATS])
def test_comparison(predicate: str, dtype: Any) -> None:
    a, b = _random(dtype, 1), _random(dtype, 2)
    b[0] = a[0]
    _equal(_one(arith.Compare, a, b, predicate=predicate), getattr(operator, predicate)(a, b))


def test_only_ne_holds_for_nan() -> None:
    nan = np.full(2, np.nan, np.float32)
    holds = {
        predicate: _one(arith.Compare, nan, nan, predicate=predicate).any()
        for predicate in ("eq", "ne", "lt", "le", "gt", "ge")
    }
    assert [predicate for predicate, any_ in holds.items() if any_] == ["ne"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, *FLOATS])
def test_sign(dtype: Any) -> None:
    a = _random(dtype)
    with np.errstate(over="ignore"):
        _equal(_one(arith.Neg, a), np.negative(a))
        _equal(_one(arith.Abs, a), np.abs(a))


def test_negation_flips_the_sign_of_zero() -> None:
    assert np.signbit(_one(arith.Neg, np.zeros(2, np.float32))).all()


_FUNCTIONS: list[tuple[type[arith.Unary], Callable[[float], float]]] = [
    (arith.Exp, math.exp),
    (arith.Exp2, lambda x: 2.0**x),
    (arith.Log, math.log),
    (arith.Log2, math.log2),
    (arith.Sqrt, math.sqrt),
    (arith.SqrtRn, math.sqrt),
    (arith.Rsqrt, lambda x: 1 / math.sqrt(x)),
    (arith.Sin, math.sin),
    (arith.Cos, math.cos),
    (arith.Erf, math.erf),
    (arith.Floor, math.floor),
    (arith.Ceil, math.ceil),
]


@pytest.mark.parametrize(("cls", "function"), _FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_are_right_to_the_last_place(cls: Any, function: Any, dtype: Any) -> None:
    a = np.abs(_random(dtype)) + np.asarray(0.25, dtype)
    exact = np.array([function(float(x)) for x in a.reshape(-1)]).reshape(SHAPE)
    actual = _one(cls, a)
    assert actual.dtype == a.dtype
    # Half a unit in the last place; fp64 itself is only as good as the mathematical library.
    precision = {np.float16: 11, ml_dtypes.bfloat16: 8, np.float32: 24, np.float64: 51}[dtype]
    error = np.abs(actual.astype(np.float64) - exact)
    assert (error <= 2.0**-precision * np.abs(exact)).all()


def test_functions_outside_their_domain() -> None:
    a = np.array([-1.0, 0.0], np.float32)
    assert np.isnan(_one(arith.Log, a)[0])
    assert _one(arith.Log, a)[1] == -np.inf
    assert np.isnan(_one(arith.Sqrt, a)[0])
    assert _one(arith.Rsqrt, a)[1] == np.inf
    assert _one(arith.Exp, np.full(2, -np.inf, np.float32)).tolist() == [0.0, 0.0]


def test_fma_rounds_once() -> None:
    a = np.array([1 + 2.0**-12] * 2, np.float32)
    c = np.array([-1.0, -(1 + 2.0**-11)], np.float32)
    exact = a.astype(np.float64) * a.astype(np.float64) + c.astype(np.float64)
    assert _one(arith.Fma, a, a, c).astype(np.float64).tolist() == exact.tolist()
    assert (a * a + c).astype(np.float64).tolist() != exact.tolist()


def test_select_takes_from_each_arm() -> None:
    condition = np.array([True, False, True, False])
    a, b = np.arange(4, dtype=np.int32), np.arange(10, 14, dtype=np.int32)
    assert _one(arith.Select, condition, a, b).tolist() == [0, 11, 2, 13]


@pytest.mark.parametrize(
    ("values", "source", "target", "expected"),
    [
        ([300, -1], np.int32, U8, [44, 255]),
        ([1.99, -1.99], np.float32, I32, [1, -1]),
        ([0.0, -2.5], np.float32, I1, [False, True]),
        ([500.0, -1e9], np.float32, FP8E4NV, [448.0, -448.0]),
        ([1.0009765625, 2.0], np.float32, BF16, [1.0, 2.0]),
        ([1e6, 1.5], np.float32, FP16, [np.inf, 1.5]),
        ([-1, 2**40], np.int64, I32, [-1, 0]),
        ([-1, 1], np.int32, U64, [2**64 - 1, 1]),
        ([True, False], np.bool_, FP32, [1.0, 0.0]),
    ],
)
def test_cast(values: Any, source: Any, target: Any, expected: list[Any]) -> None:
    actual = _one(arith.Cast, np.array(values, source), dtype=target)
    assert actual.astype(np.float64 if target.is_float else actual.dtype).tolist() == expected


def test_cast_towards_zero() -> None:
    a = np.array([1.99999, -1.99999, 1e9, 0.1], np.float32)
    actual = _one(arith.Cast, a, dtype=FP16, rounding="rtz")
    assert actual.astype(np.float64).tolist() == [
        1.9990234375,
        -1.9990234375,
        65504.0,
        0.0999755859375,
    ]


def test_bitcast() -> None:
    a = np.array([1.0, -0.0], np.float32)
    assert _one(arith.Bitcast, a, dtype=I32).tolist() == [0x3F800000, -(2**31)]
    flags = np.array([True, False])
    assert _one(arith.Bitcast, flags, dtype=I8).tolist() == [1, 0]
    assert _one(arith.Bitcast, np.array([2, 0], np.int8), dtype=I1).tolist() == [True, False]


def test_addptr_scales_by_the_pointee() -> None:
    def body(add: Builder, value: Value) -> Value:
        base = add(arith.Bitcast(value, PointerType(FP64))).out
        pointer = add(arith.AddPtr(base, add(arith.Cast(value, I32)).out)).out
        return add(arith.Bitcast(pointer, I64)).out

    assert run_op(body, np.array([100, -8], np.int64))[0].tolist() == [900, -72]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [(2**32 - 1, I32, -1), (-1, U64, 2**64 - 1), (0.1, FP32, np.float32(0.1)), (True, I1, True)],
)
def test_constant(value: Any, kind: Any, expected: Any) -> None:
    def body(add: Builder, _: Value) -> Value:
        return add(arith.Constant(value, kind)).out

    assert run_op(body, np.zeros(1, np.int32))[0] == expected


def test_libdevice() -> None:
    a = np.array([0.5, -2.0], np.float32)

    def call(symbol: str) -> Any:
        return run_op(lambda add, x: add(arith.Libdevice(symbol, FP32, [x])).out, a)[0]

    np.testing.assert_allclose(call("__nv_tanhf"), np.tanh(a), rtol=1e-6)
    with pytest.raises(InterpretError, match="__nv_nothing is not known"):
        call("__nv_nothing")
