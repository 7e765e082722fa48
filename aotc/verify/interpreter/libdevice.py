"""The meaning of libdevice functions, by symbol.

Functions of floats are computed in fp64 and rounded once; `noise.py` bounds how far libdevice's
own results are off. `_rn` functions are correctly rounded, so their results are exact.

Source: libdevice User's Guide, "Function List".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from aotc.ir.types import FP64, ScalarType
from aotc.verify.arrays import Array, clipped, view
from aotc.verify.interpreter import numerics
from aotc.verify.interpreter.numerics import dtype_of, round_to

_Unary: TypeAlias = Callable[[Array], Any]
_Binary: TypeAlias = Callable[[Array, Array], Any]
_MODES = ("rn", "rz", "rd", "ru")


def _each(function: Callable[[float], float]) -> _Unary:
    """Return a function on arrays from one on numbers; domain errors are NaN or infinite."""

    def safe(value: float) -> float:
        try:
            return function(value)
        except ValueError:
            return math.inf if value == math.floor(value) else math.nan
        except OverflowError:
            return math.inf

    return lambda value: np.asarray(np.frompyfunc(safe, 1, 1)(value), dtype=np.float64)


def _round(value: Array) -> Array:
    """Round half away from zero."""
    return np.copysign(np.floor(np.abs(value) + 0.5), value)


def _exponent(value: Array) -> Array:
    return np.where(np.isfinite(value) & (value != 0), np.frexp(value)[1] - 1.0, np.abs(value))


_INT_MAX = (1 << 31) - 1


def _ilogb(value: float) -> int:
    if math.isinf(value):
        return _INT_MAX
    is_zero = math.isnan(value) or value == 0.0
    return -1 - _INT_MAX if is_zero else math.frexp(value)[1] - 1


_UNARY: dict[str, _Unary] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10")},
    **{name: getattr(np, name) for name in ("log1p", "sqrt", "cbrt", "sin", "cos", "tan")},
    **{name: getattr(np, name) for name in ("sinh", "cosh", "tanh", "floor", "ceil", "trunc")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sinh", "cosh", "tanh")},
    "fabs": np.abs,
    "rint": np.rint,
    "nearbyint": np.rint,
    "round": _round,
    "exp10": lambda value: np.power(10.0, value),
    "rsqrt": lambda value: 1.0 / np.sqrt(value),
    "rcbrt": lambda value: 1.0 / np.cbrt(value),
    "rcp": lambda value: 1.0 / value,
    "sinpi": lambda value: np.sin(np.pi * np.fmod(value, 2.0)),
    "cospi": lambda value: np.cos(np.pi * np.fmod(value, 2.0)),
    "erf": numerics.erf,
    "erfc": _each(math.erfc),
    "lgamma": _each(math.lgamma),
    "tgamma": _each(math.gamma),
    "normcdf": _each(lambda value: 0.5 * math.erfc(-value / math.sqrt(2.0))),
    "logb": _exponent,
    "ilogb": np.frompyfunc(_ilogb, 1, 1),
    "isnan": np.isnan,
    "isnand": np.isnan,
    "isinf": np.isinf,
    "isinfd": np.isinf,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "signbit": np.signbit,
    "signbitd": np.signbit,
    "saturate": lambda value: np.where(np.isnan(value), 0.0, clipped(value, 0.0, 1.0)),
    "llrint": np.rint,
    "llround": _round,
}
_BINARY: dict[str, _Binary] = {
    "pow": np.power,
    "powi": np.power,
    "fmod": np.fmod,
    "remainder": lambda a, b: a - b * np.rint(a / b),
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "hypot": np.hypot,
    "rhypot": lambda a, b: 1.0 / np.hypot(a, b),
    "fdim": lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, np.maximum(a - b, 0.0)),
    "fmin": lambda a, b: numerics.extreme(a, b, least=True, propagate_nan=False),
    "fmax": lambda a, b: numerics.extreme(a, b, least=False, propagate_nan=False),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fdivide": np.divide,
    "ldexp": lambda a, b: np.ldexp(a, clipped(b, -4096, 4096).astype(np.int32)),
    "scalbn": lambda a, b: np.ldexp(a, clipped(b, -4096, 4096).astype(np.int32)),
}
_INTEGERS = ("abs", "clz", "ffs", "popc", "brev", "mulhi", "hadd", "rhadd", "sad")
_INTEGER_NAMES = {
    **{name: name for name in _INTEGERS},
    **{f"{name}ll": name for name in ("clz", "ffs", "popc", "brev")},
    **{f"u{name}": name for name in ("mulhi", "hadd", "rhadd", "sad")},
    "llabs": "abs",
    "mul64hi": "mulhi",
    "umul64hi": "mulhi",
}


def _of_bits(name: str, bits: int, a: int, b: int = 0, c: int = 0) -> int:
    """Return a function of `_INTEGERS`, for registers of so many bits."""
    word = a & (1 << bits) - 1
    match name:
        case "abs" | "sad":
            return abs(a - b) + c
        case "clz":
            return bits - word.bit_length()
        case "ffs":
            return (a & -a).bit_length()
        case "popc":
            return word.bit_count()
        case "brev":
            return int(f"{word:0{bits}b}"[::-1], 2)
        case "mulhi":
            return a * b >> bits
        case _:
            return a + b + (name == "rhadd") >> 1


_BITS = ("int_as_float", "uint_as_float", "float_as_int", "float_as_uint")
_BITS64 = ("longlong_as_double", "double_as_longlong")
# fmul_rn, drcp_rz, fsqrt_ru: one operation in a rounding mode.
_ROUNDED = {
    f"{kind}{name}_{mode}": name
    for kind in "fd"
    for name in ("add", "sub", "mul", "div", "rcp", "sqrt", "rsqrt")
    for mode in _MODES
}

EXACT = frozenset(
    f"__nv_{name}"
    for name in (
        *(f"{name}{suffix}" for name in ("fabs", "floor", "ceil", "trunc") for suffix in ("", "f")),
        *(f"{name}{suffix}" for name in ("rint", "nearbyint", "round") for suffix in ("", "f")),
        *(
            f"{name}{suffix}"
            for name in ("copysign", "fmin", "fmax", "fmod")
            for suffix in ("", "f")
        ),
        *(
            f"{name}{suffix}"
            for name in ("isnan", "isinf", "finite", "fma")
            for suffix in ("", "f")
        ),
        *(f"{name}{suffix}" for name in ("fdim", "ldexp", "scalbn") for suffix in ("", "f")),
        *(
            "isnand",
            "isinfd",
            "isfinited",
            "signbitf",
            "signbitd",
            "saturatef",
            "fmaf_rn",
            "fma_rn",
        ),
        *(name for name in _ROUNDED if name.endswith("_rn") and "rsqrt" not in name),
        *(*_BITS, *_BITS64, *_INTEGER_NAMES, "ilogb", "ilogbf"),
    )
)
"""The functions with one rounding or none."""


def evaluate(symbol: str, arguments: Sequence[Array], target: ScalarType) -> Array | None:
    """Return the libdevice function `symbol` of `arguments`, or None if it is unknown here."""
    name = symbol.removeprefix("__nv_")
    if name in _BITS or name in _BITS64:
        return view(np.ascontiguousarray(arguments[0]), dtype_of(target))
    if name in ("fma", "fmaf", "fma_rn", "fmaf_rn"):
        a, b, c = arguments
        return numerics.fma(a, b, c, target)
    if name in _INTEGER_NAMES:
        return _of_integers(_INTEGER_NAMES[name], arguments, target)
    table: Mapping[str, Callable[..., Any]] = {1: _UNARY, 2: _BINARY}.get(len(arguments), {})
    name = _ROUNDED.get(name, name).removeprefix("fast_")
    function = table.get(name) or table.get(name.removesuffix("f"))
    if function is None and len(arguments) == 1 and name[-3:-2] == "_" and "2" in name:
        function = _conversion(name[-2:], target)
    if function is None:
        return None
    value = np.asarray(function(*(argument.astype(np.float64) for argument in arguments)))
    return round_to(value, target) if target.is_float else value.astype(dtype_of(target))


def _of_integers(name: str, arguments: Sequence[Array], target: ScalarType) -> Array:
    """Return a function of integers, wrapped to the target's bits."""
    bits = 8 * arguments[0].dtype.itemsize
    function: Any = np.frompyfunc(partial(_of_bits, name, bits), len(arguments), 1)
    out: Any = function(*(argument.astype(object) for argument in arguments))
    unsigned = np.asarray(out & (1 << target.bits) - 1).astype(f"u{target.size_bytes}")
    return view(unsigned, dtype_of(target))


def _conversion(mode: str, target: ScalarType) -> _Unary | None:
    """Return a conversion in a rounding mode; integers saturate, NaN is 0."""
    if target.is_float:
        return (lambda value: value) if mode == "rn" or target == FP64 else None
    rounded = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}[mode]
    info = np.iinfo(dtype_of(target))
    largest = np.nextafter(float(info.max) + 1, 0) if info.bits == 64 else info.max
    return lambda value: clipped(np.nan_to_num(rounded(value)), info.min, largest)
