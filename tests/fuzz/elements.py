"""The element types of random programs, each with how often it is chosen."""

from __future__ import annotations

from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I1,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    ScalarType,
)

Weighted = list[tuple[int, ScalarType]]

ELEMENTS: Weighted = [
    *((4, I32), (4, FP32), (2, FP16), (1, I1), (1, I8), (1, I16), (2, I64), (1, U8), (1, U16)),
    *((1, U32), (1, U64), (2, BF16), (1, FP64), (1, FP8E4NV), (1, FP8E5)),
]
# fp8 is loaded, moved, converted and multiplied as matrices, but there is no arithmetic on it.
NUMBERS: Weighted = [
    (weight, element)
    for weight, element in ELEMENTS
    if element.bits > 8 or (element.is_int and not element.is_bool)
]
INTEGERS: Weighted = [(weight, element) for weight, element in NUMBERS if element.is_int]
FLOATS: Weighted = [(weight, element) for weight, element in NUMBERS if element.is_float]
