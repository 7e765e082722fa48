"""Conversions of fp8e4b15, Triton's 8-bit float without instructions of its own.

A sign, 4 bits of exponent with fp16's bias of 15, and 3 of mantissa: up to its largest exponent, a
number has the bits of the equal fp16 without the last seven. There is no infinity and no NaN.

From fp16 the magnitude rounds to nearest, halves away from zero, and saturates at 1.75. NaN becomes
1.75 too: `min.f16x2` in Triton's sequence drops NaN. Other floats are rounded towards zero to fp16
first, so nothing rounds twice.
Source: `convert_custom_float8` of Triton's language/extra/cuda/utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.frontend.emitter import Emitter
from aotc.ir.core import Value
from aotc.ir.dialects import arith
from aotc.ir.types import FP8E4B15, FP16, FP32, U8, U16, TileType, element_of

_MAGNITUDE = 0x7FFF
_LARGEST = 0x3F00  # 1.75 in fp16
_DROPPED_BITS = 7


def to_fp16(emit: Emitter, value: Value) -> Value:
    """Convert fp8e4b15 to fp16, exactly."""
    bits = emit(arith.Cast(emit(arith.Bitcast(value, U8)).out, U16)).out
    magnitude = emit(arith.Shl(_and(emit, bits, 0x7F), _number(emit, bits, _DROPPED_BITS))).out
    sign = emit(arith.Shl(_and(emit, bits, 0x80), _number(emit, bits, 8))).out
    return emit(arith.Bitcast(emit(arith.Or(sign, magnitude)).out, FP16)).out


def from_float(emit: Emitter, value: Value) -> Value:
    """Return a float of any other type as fp8e4b15."""
    kind = element_of(value.type)
    if kind != FP16:
        if (
            kind.bits == FP16.bits
        ):  # bf16 exceeds the exponents of fp16, so it narrows by way of fp32
            value = emit(arith.Cast(value, FP32)).out
        narrows = element_of(value.type).bits > FP16.bits
        value = emit(arith.Cast(value, FP16, "rtz" if narrows else "rtne")).out
    bits = emit(arith.Bitcast(value, U16)).out
    magnitude = emit(arith.Min(_and(emit, bits, _MAGNITUDE), _number(emit, bits, _LARGEST))).out
    half = _number(emit, bits, 1 << _DROPPED_BITS - 1)
    rounded = emit(arith.Add(magnitude, half)).out
    shortened = emit(arith.Shr(rounded, _number(emit, bits, _DROPPED_BITS))).out
    sign = _and(emit, emit(arith.Shr(bits, _number(emit, bits, 8))).out, 0x80)
    byte = emit(arith.Cast(emit(arith.Or(sign, shortened)).out, U8)).out
    return emit(arith.Bitcast(byte, FP8E4B15)).out


def constant_of(emit: Emitter, value: float, extents: Sequence[int]) -> Value:
    """Return a number as fp8e4b15, in every element of a tile."""
    kind = TileType(FP32, tuple(extents)) if extents else FP32
    return from_float(emit, emit(arith.Constant(value, kind)).out)


def _and(emit: Emitter, value: Value, mask: int) -> Value:
    return emit(arith.And(value, _number(emit, value, mask))).out


def _number(emit: Emitter, like: Value, number: int) -> Value:
    return emit(arith.Constant(number, like.type)).out
