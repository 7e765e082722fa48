"""Casts, operators and elementwise functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.oracle.triton_ptx import Arrays, Case

N = 256
DTYPES: dict[str, Any] = {
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
}
FLOATS = ("fp16", "bf16", "fp32", "fp64")
TL = {
    **{name: f"tl.{name.replace('i', 'int', 1)}" for name in DTYPES if name[0] == "i"},
    **{name: f"tl.{name.replace('u', 'uint', 1)}" for name in DTYPES if name[0] == "u"},
    **{f"fp{bits}": f"tl.float{bits}" for bits in (16, 32, 64)},
    "bf16": "tl.bfloat16",
    "fp8e4nv": "tl.float8e4nv",
    "fp8e5": "tl.float8e5",
}


def is_float(name: str) -> bool:
    return name.startswith(("fp", "bf"))


def drawn(rng: np.random.Generator, name: str, count: int = N, low: int = -60) -> Any:
    """Return numbers in the range of every tested type."""
    if is_float(name):
        return (rng.standard_normal(count) * 8).astype(np.float32).astype(DTYPES[name])
    low = 0 if name[0] == "u" else low
    return rng.integers(low, 61, count).astype(DTYPES[name])


def _cast(source: str, target: str) -> Case:
    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        x = drawn(rng, source)
        if is_float(source) and target[0] == "u":
            x = np.abs(x.astype(np.float32)).astype(DTYPES[source])
        return {"x": x, "out": np.zeros(N, DTYPES[target])}

    def expected(arrays: Arrays) -> dict[str, Any]:
        x = arrays["x"]
        wide = x.astype(np.float64) if is_float(source) else x
        if target in ("bf16", "fp8e4nv", "fp8e5"):
            wide = wide.astype(np.float32)
        return {
            "out": np.trunc(wide).astype(DTYPES[target])
            if is_float(source) and not is_float(target)
            else wide.astype(DTYPES[target])
        }

    body = f"i = tl.arange(0, N)\ntl.store(out + i, tl.load(x + i).to({TL[target]}))"
    types = {"x": f"*{source}", "out": f"*{target}"}
    return Case(f"cast-{source}-{target}", body, types, inputs, expected, {"N": N})


def _is_castable(source: str, target: str) -> bool:
    """Return whether Triton has the conversion."""
    narrow = {source, target} & {"fp8e4nv", "fp8e5"}
    wide = {source, target} - {"fp8e4nv", "fp8e5"}
    return not narrow or (len(wide) == 1 and wide <= {"fp16", "bf16", "fp32"})


def _binary(name: str, text: str, kind: str, compute: Callable[[Any, Any], Any]) -> Case:
    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        x, y = drawn(rng, kind), drawn(rng, kind, low=1)
        if kind[0] in "iu" and name in ("shl", "shr"):
            y = (y % (8 * y.itemsize)).astype(y.dtype)
        elif kind[0] in "iu":
            y = np.where(y == 0, y.dtype.type(3), y)
        return {"x": x, "y": y, "out": np.zeros(N, DTYPES[kind])}

    def expected(arrays: Arrays) -> dict[str, Any]:
        x, y = arrays["x"], arrays["y"]
        if kind in ("fp16", "bf16"):
            x, y = x.astype(np.float32), y.astype(np.float32)
        with np.errstate(all="ignore"):
            return {"out": compute(x, y).astype(DTYPES[kind])}

    body = f"i = tl.arange(0, N)\nx, y = tl.load(x + i), tl.load(y + i)\ntl.store(out + i, {text})"
    body = body.replace(
        "x, y = tl.load(x + i), tl.load(y + i)", "a = tl.load(x + i)\nb = tl.load(y + i)"
    )
    types: dict[str, str] = dict.fromkeys(("x", "y", "out"), f"*{kind}")
    rtol = {"fp16": 1e-3, "bf16": 1e-2, "fp32": 1e-6, "fp64": 1e-14}.get(kind, 0.0)
    return Case(f"{name}-{kind}", body, types, inputs, expected, {"N": N}, rtol)


def _c_division(x: Any, y: Any) -> Any:
    return np.trunc(x.astype(np.float64) / y.astype(np.float64))


_ARITHMETIC = {
    "add": ("a + b", np.add),
    "sub": ("a - b", np.subtract),
    "mul": ("a * b", np.multiply),
    "min": ("tl.minimum(a, b)", np.minimum),
    "max": ("tl.maximum(a, b)", np.maximum),
    "where": ("tl.where(a > b, a, b - a)", lambda x, y: np.where(x > y, x, y - x)),
}
_INTEGER = {
    "div": ("a // b", _c_division),
    "rem": ("a % b", np.fmod),
    "and": ("a & b", np.bitwise_and),
    "or": ("a | b", np.bitwise_or),
    "xor": ("a ^ b", np.bitwise_xor),
    "shl": ("a << b", np.left_shift),
    "shr": ("a >> b", np.right_shift),
    "neg": ("-a", lambda x, _: np.negative(x)),
    "not": ("~a", lambda x, _: np.invert(x)),
}
_FUNCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "exp": ("tl.exp(a)", np.exp),
    "exp2": ("tl.exp2(a)", np.exp2),
    "log": ("tl.log(a)", np.log),
    "log2": ("tl.log2(a)", np.log2),
    "sqrt": ("tl.sqrt(a)", np.sqrt),
    "sqrt_rn": ("tl.sqrt_rn(a)", np.sqrt),
    "rsqrt": ("tl.rsqrt(a)", lambda x: 1 / np.sqrt(x)),
    "sin": ("tl.sin(a)", np.sin),
    "cos": ("tl.cos(a)", np.cos),
    "abs": ("tl.abs(a - 2)", lambda x: np.abs(x - 2)),
    "floor": ("tl.floor(a)", np.floor),
    "ceil": ("tl.ceil(a)", np.ceil),
    "sigmoid": ("tl.sigmoid(a)", lambda x: 1 / (1 + np.exp(-x))),
    "div_rn": ("tl.div_rn(a, a + 1)", lambda x: x / (x + 1)),
    "quotient": ("a / (a + 1)", lambda x: x / (x + 1)),
    "fma": ("tl.fma(a, a, a)", lambda x: x * x + x),
    "clamp": ("tl.clamp(a, 1.0, 2.0)", lambda x: np.clip(x, 1, 2)),
    "erf": ("tl.erf(a)", np.vectorize(math.erf)),
    "tanh": ("libdevice.tanh(a)", np.tanh),
    "pow": ("libdevice.pow(a, a)", lambda x: x**x),
    "atan": ("libdevice.atan(a)", np.arctan),
    "rint": ("libdevice.rint(a)", np.rint),
    "log1p": ("libdevice.log1p(a)", np.log1p),
    "expm1": ("libdevice.expm1(a)", np.expm1),
    "cbrt": ("libdevice.cbrt(a)", np.cbrt),
    "fmod": ("libdevice.fmod(a, a * 0.3)", lambda x: np.fmod(x, x * x.dtype.type(0.3))),
    "isnan": ("libdevice.isnan(a - a).to(tl.int32).to(tl.float32)", lambda x: x * 0),
}
_NOT_OF_FP64 = ("isnan", "erf", "sigmoid", "sqrt_rn", "div_rn")
_SINGLE = ("fma", "clamp", "exp", "abs")


def _function(name: str, kind: str) -> Case:
    text, compute = _FUNCTIONS[name]

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        x = rng.uniform(0.1, 4, N).astype(np.float32).astype(DTYPES[kind])
        return {"x": x, "out": np.zeros(N, DTYPES[kind])}

    def expected(arrays: Arrays) -> dict[str, Any]:
        x = arrays["x"] if kind == "fp64" else arrays["x"].astype(np.float32)
        return {"out": compute(x).astype(DTYPES[kind])}

    body = f"i = tl.arange(0, N)\na = tl.load(x + i)\ntl.store(out + i, {text})"
    types = {"x": f"*{kind}", "out": f"*{kind}"}
    rtol = {"fp16": 2e-3, "bf16": 2e-2, "fp32": 1e-5, "fp64": 1e-12}[kind]
    return Case(f"{name}-{kind}", body, types, inputs, expected, {"N": N}, rtol)


_INTEGERS = tuple(name for name in DTYPES if name[0] in "iu")
ELEMENTWISE = [
    *(_cast(a, b) for a, b in itertools.permutations(DTYPES, 2) if _is_castable(a, b)),
    *(
        _binary(name, text, kind, compute)
        for name, (text, compute) in _ARITHMETIC.items()
        for kind in (*_INTEGERS, *FLOATS)
    ),
    *(
        _binary(name, text, kind, compute)
        for name, (text, compute) in _INTEGER.items()
        for kind in _INTEGERS
    ),
    *(_function(name, "fp32") for name in _FUNCTIONS),
    *(_function(name, "fp64") for name in _FUNCTIONS if name not in _NOT_OF_FP64),
    *(_function(name, kind) for name in _SINGLE for kind in ("fp16", "bf16") if name != "exp"),
]
