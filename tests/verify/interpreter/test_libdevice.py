"""Libdevice functions: every common one is known, roundings are right, and errors bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotc.ir.types import FP32, FP64, I32, I64
from aotc.verify.arrays import Array
from aotc.verify.interpreter.libdevice import EXACT, evaluate

_X = np.array([0.5, 2.5, -1.5], np.float32)


def _of(symbol: str, *arguments: Array) -> Array:
    value = evaluate(symbol, arguments, FP32)
    assert value is not None
    return value


def test_floats_are_rounded_once() -> None:
    assert _of("__nv_rintf", _X).tolist() == [0.0, 2.0, -2.0]
    np.testing.assert_allclose(_of("__nv_powf", _X[:2], _X[:2]), _X[:2] ** _X[:2], rtol=1e-6)
    assert _of("__nv_rintf", _X).dtype == np.float32


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_correctly_rounded_operations_are_exact(name: str) -> None:
    a, b = np.array([1.1, -3.7, 1e20], np.float32), np.array([0.3, 7.9, 1e9], np.float32)
    numpy_name = {"sub": "subtract", "mul": "multiply", "div": "divide"}.get(name, name)
    assert (_of(f"__nv_f{name}_rn", a, b) == getattr(np, numpy_name)(a, b)).all()
    assert f"__nv_f{name}_rn" in EXACT
    assert f"__nv_f{name}_rz" not in EXACT


def test_fma_is_rounded_once() -> None:
    a, b, c = (
        np.array([1 + 2**-23], np.float32),
        np.array([1 - 2**-23], np.float32),
        np.array([-1.0], np.float32),
    )
    assert _of("__nv_fmaf", a, b, c)[0] == -(2.0**-46)


def test_conversions_saturate_and_bits_stay() -> None:
    value = np.array([2.5, -2.5, 1e30, np.nan], np.float32)
    expected = {"rn": 2, "rz": 2, "rd": 2, "ru": 3}
    for mode, first in expected.items():
        integers = evaluate(f"__nv_float2int_{mode}", [value], I32)
        assert integers is not None
        assert integers.tolist()[0] == first
        assert integers.tolist()[2:] == [2**31 - 1, 0]
    bits = evaluate("__nv_float_as_int", [_X], I32)
    assert bits is not None
    assert (bits == _X.view(np.int32)).all()
    large = evaluate("__nv_llrint", [np.array([2.5, -3.5], np.float64)], I64)
    assert large is not None
    assert large.tolist() == [2, -4]


def test_special_functions() -> None:
    values = np.array([0.5, 3.0, 5.5], np.float64)
    gamma = evaluate("__nv_tgamma", [values], FP64)
    assert gamma is not None
    np.testing.assert_allclose(gamma, [math.gamma(value) for value in values.tolist()])
    assert _of("__nv_saturatef", np.array([-1, 0.5, 7, np.nan], np.float32)).tolist() == [
        0,
        0.5,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("symbol", "operands", "expected"),
    [
        ("clz", [1], 31),
        ("clzll", [-1], 0),
        ("popc", [-1], 32),
        ("ffs", [8], 4),
        ("ffs", [0], 0),
        ("brev", [1], -(2**31)),
        ("mulhi", [-(2**31), 2], -1),
        ("hadd", [-3, 2], -1),
        ("sad", [-3, 2, 7], 12),
        ("abs", [-5], 5),
    ],
)
def test_functions_of_integers(symbol: str, operands: list[int], expected: int) -> None:
    kind = np.int64 if symbol.endswith("ll") else np.int32
    values = [np.array([operand, operand], kind) for operand in operands]
    out = evaluate(f"__nv_{symbol}", values, I32)
    assert out is not None
    assert out.tolist() == [expected, expected]
    assert f"__nv_{symbol}" in EXACT


def test_exponents_of_floats() -> None:
    values = np.array([8.0, 0.75, 0.0, np.inf, np.nan], np.float32)
    out = evaluate("__nv_ilogbf", [values], I32)
    assert out is not None
    assert out.tolist() == [3, -1, -(2**31), 2**31 - 1, -(2**31)]


def test_an_unknown_function_has_no_value() -> None:
    assert evaluate("__nv_unheard_of", [_X], FP32) is None
