"""Element formats of matrix instructions: decoding and encoding of bits.

Everything is computed in float64, exact for a product of two operands of up to 24 bits and for the
whole sum of integers. Results are rounded once; NaN becomes the single pattern of tensor cores.

Invariant: `decode` is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, clipped, reduce_min, view
from aotc.verify.emulator.compute.small_floats import SMALL_FORMATS

Float64: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """Describe a type of element that a matrix instruction multiplies."""

    name: str
    bits: int  # in a register or in memory; tf32 takes 32
    decode: Callable[[Array], Float64]
    is_int: bool = False


def _widen(value: Array) -> Float64:
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return value.astype(np.float64)


def _float16(bits: Array) -> Float64:
    return _widen(view(bits, np.float16))


def _bfloat16(bits: Array) -> Float64:
    return _widen(view(bits.astype(np.uint32) << np.uint32(16), np.float32))


def _float32(bits: Array) -> Float64:
    return _widen(view(bits, np.float32))


def _tfloat32(bits: Array) -> Float64:
    # Tensor cores ignore the low 13 bits.
    return _float32(bits & np.uint32(0xFFFFE000))


def _signed4(bits: Array) -> Float64:
    return (bits.astype(np.int8) ^ np.int8(8)).astype(np.float64) - 8.0


def _unsigned(bits: Array) -> Float64:
    return bits.astype(np.float64)


FORMATS = {
    format_.name: format_
    for format_ in (
        Format("f16", 16, _float16),
        Format("bf16", 16, _bfloat16),
        Format("tf32", 32, _tfloat32),
        Format("f32", 32, _float32),
        Format("f64", 64, lambda bits: view(bits, np.float64)),
        Format("e4m3", 8, SMALL_FORMATS["e4m3"].decode),
        Format("e5m2", 8, SMALL_FORMATS["e5m2"].decode),
        Format("s8", 8, lambda bits: view(bits, np.int8).astype(np.float64), is_int=True),
        Format("u8", 8, _unsigned, is_int=True),
        Format("s4", 4, _signed4, is_int=True),
        Format("u4", 4, _unsigned, is_int=True),
        Format("b1", 1, _unsigned, is_int=True),
        Format("s32", 32, lambda bits: view(bits, np.int32).astype(np.float64), is_int=True),
    )
}

_INT32 = np.iinfo(np.int32)


def _encode_s32(value: Float64, *, saturate: bool) -> Array:
    if saturate:
        value = clipped(value, _INT32.min, _INT32.max)
    return value.astype(np.int64).astype(np.uint32)  # wraps: the sum fits 53 bits


def encode(name: str, value: Float64, *, saturate: bool = False) -> Array:
    """Return the bits of accumulators `value` rounded to the format `name`: f16, f32, f64, s32."""
    if name == "s32":
        return _encode_s32(value, saturate=saturate)
    if name == "f64":
        return view(value, np.uint64)
    canonicals: dict[str, tuple[npt.DTypeLike, np.dtype[Any], int]] = {
        "f16": (np.float16, np.dtype(np.uint16), 0x7FFF),
        "f32": (np.float32, np.dtype(np.uint32), 0x7FFFFFFF),
    }
    dtype, bits_dtype, canonical = canonicals[name]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = value.astype(dtype)
    least = reduce_min(rounded, axis=None, initial=np.inf)  # NaN if any is
    if least == least:  # noqa: PLR0124
        return view(rounded, bits_dtype)
    return np.where(np.isnan(rounded), bits_dtype.type(canonical), view(rounded, bits_dtype))
