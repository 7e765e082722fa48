"""Constants of any source are rounded once, to nearest even."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.backend.llvm_types import constant, float_bits, llvm_type, memory_type
from aotc.ir.types import BF16, FP8E4NV, FP8E5, FP16, FP32, FP64, I1, I32, PointerType, ScalarType
from tests.backend.programs import NUMPY


def finite_numbers(element: ScalarType) -> list[tuple[Fraction, int]]:
    """Return all finite non-negative numbers of a small type, with their bits."""
    bits = np.arange(1 << (element.bits - 1), dtype=np.uint16)
    dtype = np.dtype(NUMPY[element.name])
    numbers = bits.astype(np.uint8 if element.bits == 8 else np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        wide = numbers.astype(np.float64)
    return [(Fraction(float(x)), int(b)) for x, b in zip(wide, bits, strict=True) if np.isfinite(x)]


TABLES = {kind.name: finite_numbers(kind) for kind in (FP8E4NV, FP8E5, FP16, BF16)}


@pytest.mark.parametrize("element", [FP8E4NV, FP8E5, FP16, BF16], ids=str)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1000, 1000))
def test_small_floats_round_to_the_nearest_even(element, value) -> None:
    table = TABLES[element.name]
    exact = abs(Fraction(value))
    largest, largest_bits = table[-1]
    step = largest - table[-2][0]
    pattern = float_bits(value, element)
    assert pattern >> (element.bits - 1) == (math.copysign(1, value) < 0)
    pattern &= (1 << (element.bits - 1)) - 1
    if exact >= largest + step / 2:
        # fp8 saturates; the others overflow to infinity.
        assert pattern == (largest_bits if element.bits == 8 else largest_bits + 1)
        return
    above = bisect.bisect_left(table, (exact, 0))
    around = table[max(0, above - 1) : above + 1]
    nearest = min(abs(number - exact) for number, _ in around)
    best = [bits for number, bits in around if abs(number - exact) == nearest]
    assert pattern == (best[0] if len(best) == 1 else next(bits for bits in best if bits % 2 == 0))


@given(st.floats(width=64))
def test_wide_floats_are_numpys(value) -> None:
    with np.errstate(all="ignore"):
        single = np.float32(value)
    if not math.isnan(value):
        assert float_bits(value, FP32) == int(single.view(np.uint32))
        assert float_bits(value, FP64) == int(np.float64(value).view(np.uint64))


@pytest.mark.parametrize("element", [FP8E4NV, FP8E5, FP16, BF16, FP32, FP64], ids=str)
def test_nan_stays_nan(element) -> None:
    bits = float_bits(math.nan, element)
    unsigned = np.dtype(f"uint{element.bits}")
    assert np.isnan(np.array(bits, unsigned).view(NUMPY[element.name]).astype(np.float64))


def test_spelling() -> None:
    assert constant(True, I1) == "true"
    assert constant(-3, I32) == "-3"
    assert constant(1.0, FP16) == "0xH3C00"
    assert constant(1.0, BF16) == "0xR3F80"
    assert constant(1.0, FP32) == "0x3FF0000000000000"
    assert constant(0.1, FP32) == "0x3FB99999A0000000"
    assert constant(1.0, FP8E5) == str(0x3C)
    assert float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max) == 448.0
    assert (llvm_type(FP8E4NV), llvm_type(PointerType(FP32))) == ("i8", "ptr addrspace(1)")
    assert (memory_type(I1), memory_type(BF16), memory_type(PointerType(FP32))) == (
        "i8", "i16", "i64",
    )  # fmt: skip
