"""Inputs for every builtin: special values of each type, and plain numbers.

Invariant: the values of a type never change, so recorded outcomes stay comparable.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NUMPY: dict[str, np.dtype[Any]] = {
    "int1": np.dtype(np.bool_),
    **{f"int{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e5": np.dtype(ml_dtypes.float8_e5m2),
}
"""The language's name of each type -> the NumPy dtype that holds it."""

SIGNATURE_NAMES = {
    **{name: name.replace("uint", "u").replace("int", "i") for name in NUMPY},
    **{f"float{bits}": f"fp{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "float8e4nv": "fp8e4nv",
    "float8e5": "fp8e5",
}
"""The language's name of each type -> its name in a signature."""

INTEGERS = tuple(name for name in NUMPY if "int" in name and name != "int1")
FP8 = ("float8e4nv", "float8e5")
FLOATS = ("float16", "bfloat16", "float32", "float64")
TYPES = ("int1", *INTEGERS, *FLOATS, *FP8)
WIDE = ("float32", "float64")
"""The types that exponentials, roots and their like take."""


def is_float(name: str) -> bool:
    """Return whether a type holds floats."""
    return "float" in name


def special(name: str) -> Array:
    """Return 16 values of a type: extremes, ties, both zeros, subnormals, infinities, NaN."""
    dtype = NUMPY[name]
    if name == "int1":
        return np.array([False, True] * 8)
    if is_float(name):
        info: Any = ml_dtypes.finfo(dtype)
        tiny, least = float(info.smallest_normal), float(info.smallest_subnormal)
        signed = [1.0, 1.0 + float(info.eps), 2.5, float(info.max), tiny, tiny - least]
        values = [0.0, -0.0, np.inf, -np.inf, np.nan, *signed, -1.0, -1.5, -2.5, -least]
        return _floats([*values, -float(info.max)], dtype)
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    middle = 1 << (info.bits // 2)
    values = [0, 1, 2, 3, 5, 7, 100, high, high - 1, low, low + 1, middle, middle - 1]
    if low:
        return np.array([*values, -1, -2, -7], dtype)
    return np.array([*values, high >> 1, (high >> 1) + 1, high - 6], dtype)


def plain(name: str, count: int, seed: int = 0) -> Array:
    """Return small numbers with exact sums and products in every type."""
    random = np.random.default_rng([seed, count])
    if name == "int1":
        return random.integers(0, 2, count).astype(np.bool_)
    low = 0 if name.startswith("uint") else -4
    values = random.integers(low, 5, count)
    if is_float(name):
        return (values * 0.5).astype(np.float32).astype(NUMPY[name])
    return values.astype(NUMPY[name])


def large(name: str, count: int) -> Array:
    """Return special values; sums of the largest need a wider type."""
    values = special(name)
    return np.resize(values[np.isfinite(values.astype(np.float64))], count)


def shifts(name: str, width: int) -> Array:
    """Return 16 shift amounts of type `name`, from 0 to `width` - 1."""
    return (np.arange(16) * (width - 1) // 15).astype(NUMPY[name])


def _floats(values: list[float], dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype)
