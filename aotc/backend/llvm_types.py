"""Scalar types and their constants in LLVM IR.

LLVM has no fp8 type for NVPTX, so an fp8 number is an `i8` with its bits.
"""

from __future__ import annotations

import math
import struct

from aotc.ir.types import ElementType, PointerType, ScalarType

GLOBAL_POINTER = "ptr addrspace(1)"
SHARED_POINTER = "ptr addrspace(3)"

_FLOATS = {"fp16": "half", "bf16": "bfloat", "fp32": "float", "fp64": "double"}
_FP8_BIAS = {"fp8e4nv": 7, "fp8e5": 15}
_FP8_MAX = {"fp8e4nv": (448.0, 0x7E), "fp8e5": (57344.0, 0x7B)}


def llvm_type(element: ElementType) -> str:
    """Return the LLVM type of an `element` in a register."""
    if isinstance(element, PointerType):
        return GLOBAL_POINTER
    return _FLOATS.get(element.name) or f"i{element.bits}"


def memory_type(element: ElementType) -> str:
    """Return the LLVM integer type of `element`'s bits in memory, a byte for a boolean."""
    return f"i{8 * element.size_bytes}"


def constant(value: float, element: ScalarType) -> str:
    """Return the literal of `value` in `element`, rounded to nearest even."""
    if element.is_bool:
        return "true" if value else "false"
    if element.is_int:
        return str(int(value))
    bits = float_bits(float(value), element)
    if element.name == "fp32":
        # LLVM spells a float as the bits of the equal double.
        single: float = struct.unpack("<f", struct.pack("<I", bits))[0]
        return f"0x{_double_bits(single):016X}"
    if element.name == "fp64":
        return f"0x{bits:016X}"
    return {"fp16": "0xH{:04X}", "bf16": "0xR{:04X}"}.get(element.name, "{}").format(bits)


def float_bits(value: float, element: ScalarType) -> int:
    """Return the bits of `value` rounded to the float type `element`; fp8 saturates."""
    if element.name == "fp64":
        return _double_bits(value)
    if element.name == "fp16":
        return _pack_half(value)
    if element.name == "fp32":
        return _pack_single(value)
    if element.name == "bf16":
        return _round_to_bfloat(_double_bits(value))
    return _round_to_fp8(value, element)


def _double_bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def _pack_half(value: float) -> int:
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def _pack_single(value: float) -> int:
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def _round_to_bfloat(double: int) -> int:
    """Round the bits of a double to bfloat16 bits, to nearest even, once."""
    value: float = struct.unpack("<d", struct.pack("<Q", double))[0]
    sign = double >> 63 << 15
    if math.isnan(value):
        return sign | 0x7FC0
    magnitude = abs(value)
    if magnitude == 0 or math.isinf(magnitude):
        return sign | (0x7F80 if magnitude else 0)
    exponent = max(math.frexp(magnitude)[1] - 1, -126)
    steps = round(math.ldexp(magnitude, 7 - exponent))  # `round` ties to even
    return sign | min((exponent + 126 << 7) + steps, 0x7F80)


def _round_to_fp8(value: float, element: ScalarType) -> int:
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | 0x7F
    largest, largest_bits = _FP8_MAX[element.name]
    magnitude = abs(value)
    if magnitude >= largest:
        return sign | largest_bits
    if magnitude == 0:
        return sign
    bias, mantissa = _FP8_BIAS[element.name], element.mantissa_bits
    exponent = max(math.frexp(magnitude)[1] - 1, 1 - bias)
    steps = round(math.ldexp(magnitude, mantissa - exponent))
    return sign | min((exponent + bias - 1 << mantissa) + steps, largest_bits)
