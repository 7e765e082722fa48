"""Rounding, casting and integer arithmetic against exact rational arithmetic and plain NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I1,
    I8,
    I32,
    I64,
    SCALARS,
    U8,
    U32,
    U64,
    PointerType,
    ScalarType,
)
from aotc.verify.interpreter import numerics
from aotc.verify.interpreter.numerics import ALL_ZERO, Poison, cast, dtype_of, fma, round_to

NARROW = [FP16, BF16, FP8E4NV, FP8E5, FP32]
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def _values(scalar: ScalarType) -> list[float]:
    """Return the finite values of a float type of at most 16 bits, sorted, -0 left out."""
    dtype = dtype_of(scalar)
    bits = np.arange(1 << scalar.bits, dtype=f"u{scalar.size_bytes}").view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs among them
        wide = bits.astype(np.float64)
    return sorted(set(wide[np.isfinite(wide)].tolist()))


_GRID = {scalar: np.array(_values(scalar)) for scalar in (FP16, BF16, FP8E4NV, FP8E5)}


def _nearest(value: float, scalar: ScalarType) -> float:
    """Return the nearest finite value of `scalar`, ties to even, by exact comparison."""
    grid = _GRID[scalar]
    index = int(np.searchsorted(grid, value))
    candidates = [float(grid[i]) for i in (index - 1, index) if 0 <= i < len(grid)]
    exact = Fraction(value)
    distances = [abs(exact - Fraction(candidate)) for candidate in candidates]
    if len(candidates) == 2 and distances[0] == distances[1]:
        bits = [
            int(np.array(c, dtype_of(scalar)).view(f"u{scalar.size_bytes}")) for c in candidates
        ]
        return candidates[bits[0] & 1]
    return candidates[distances.index(min(distances))]


def test_every_scalar_has_a_dtype_of_its_size() -> None:
    for scalar in SCALARS.values():
        assert dtype_of(scalar).itemsize == scalar.size_bytes
    assert dtype_of(PointerType(FP16)) == np.int64


@pytest.mark.parametrize("scalar", [FP16, BF16, FP8E4NV, FP8E5], ids=str)
@given(data=st.data())
def test_rounding_is_to_nearest_even(scalar: ScalarType, data: st.DataObject) -> None:
    limit = float(_GRID[scalar][-1])
    value = data.draw(st.floats(-limit, limit))
    assert float(round_to(np.array(value), scalar)) == _nearest(value, scalar)


@pytest.mark.parametrize("scalar", [FP16, BF16, FP8E4NV, FP8E5], ids=str)
def test_midpoints_round_to_even_and_a_hair_decides(scalar: ScalarType) -> None:
    grid = _GRID[scalar]
    middle = (grid[:-1] + grid[1:]) / 2  # exact in fp64
    for values in (middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)):
        rounded = round_to(values, scalar).astype(np.float64)
        sample = slice(None, None, max(1, len(values) // 500))
        expected = [_nearest(float(value), scalar) for value in values[sample]]
        assert rounded[sample].tolist() == expected


@pytest.mark.parametrize(("scalar", "limit"), [(FP8E4NV, 448.0), (FP8E5, 57344.0)], ids=str)
def test_fp8_saturates(scalar: ScalarType, limit: float) -> None:
    values = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 1e308])
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = round_to(values, scalar).astype(np.float64)
    assert rounded[:4].tolist() == [limit, -limit, limit, -limit]
    assert np.isnan(rounded[4])
    assert rounded[5] == limit


def test_wider_floats_overflow_to_infinity() -> None:
    with np.errstate(over="ignore"):
        assert round_to(np.array(65520.0), FP16) == np.inf
        assert round_to(np.array(65519.0), FP16) == 65504.0
        assert round_to(np.array(3.4e38), BF16) == np.inf
        assert round_to(np.array(-1e300), FP32) == -np.inf


@given(value=FINITE)
def test_tiny_values_keep_their_sign(value: float) -> None:
    for scalar in NARROW:
        with np.errstate(over="ignore", under="ignore"):
            rounded = round_to(np.array(value), scalar)
        assert np.signbit(rounded) == np.signbit(value)


@pytest.mark.parametrize("scalar", [FP16, BF16], ids=str)
@given(value=st.floats(-60000, 60000))
def test_towards_zero_never_grows(scalar: ScalarType, value: float) -> None:
    poison = Poison(0)
    out = float(cast(np.array(value), FP64, scalar, "rtz", poison))
    grid = _GRID[scalar]
    below = grid[np.abs(grid) <= abs(value)]
    assert abs(out) == np.max(np.abs(below))
    assert np.signbit(out) == np.signbit(value)


def _cast(value: Any, source: ScalarType, target: ScalarType, seed: int = 0) -> Any:
    with np.errstate(all="ignore"):
        array = np.array(value, dtype_of(source))
        out = cast(array, source, target, "rtne", Poison(seed))
    assert out.dtype == dtype_of(target)
    return out


def test_integers_wrap_and_extend_by_the_sources_sign() -> None:
    assert _cast(300, I32, U8) == 44
    assert _cast(200, I32, I8) == -56
    assert _cast(-1, I8, U32) == 0xFFFFFFFF
    assert _cast(255, U8, I32) == 255
    assert _cast(True, I1, I32) == 1
    assert _cast(-3, I32, I1)


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_integer_to_float_rounds_once(value: int) -> None:
    assert float(_cast(value, I64, FP64)) == float(value)
    assert float(_cast(value, I64, FP32)) == float(np.float32(_exact_round(value, 24)))
    assert float(_cast(value, I64, BF16)) == _exact_round(value, 8)


@given(value=st.integers(0, 2**64 - 1))
def test_unsigned_to_float_rounds_once(value: int) -> None:
    assert float(_cast(value, U64, BF16)) == _exact_round(value, 8)


def _exact_round(value: int, precision: int) -> float:
    """Round an integer to `precision` significant bits, ties to even."""
    drop = max(0, abs(value).bit_length() - precision)
    low, rest = divmod(abs(value), 1 << drop)
    half = 1 << drop >> 1
    low += rest > half or (drop > 0 and rest == half and low & 1)
    return float((low << drop) * (1 if value >= 0 else -1))


def test_float_to_integer_truncates() -> None:
    assert _cast([1.9, -1.9, 0.0, -0.5], FP32, I32).tolist() == [1, -1, 0, 0]
    assert _cast([2147483520.0, -(2.0**31)], FP32, I32).tolist() == [2147483520, -(2**31)]
    assert _cast([255.9, 0.0, -0.9], FP32, U8).tolist() == [255, 0, 0]
    assert _cast([-(2.0**63), 2.0**63 - 1024], FP64, I64).tolist() == [-(2**63), 2**63 - 1024]


@pytest.mark.parametrize(
    ("value", "target"),
    [(2.0**31, I32), (np.nan, I32), (-1.0, U8), (256.0, U8), (2.0**63, I64), (2.0**64, U64)],
)
def test_float_that_does_not_fit_an_integer_is_poison(value: float, target: ScalarType) -> None:
    seen = {int(_cast(value, FP64, target, seed)) for seed in range(1, 30)}
    assert len(seen) > 20


def test_float_to_boolean_is_not_zero() -> None:
    assert _cast([0.0, -0.0, 1e-30, np.nan], FP32, I1).tolist() == [False, False, True, True]


def test_float_to_float_goes_through_the_bits_of_the_source() -> None:
    value = np.array([1.0009765625, -3.1415927], np.float32)
    assert (_cast(value, FP32, BF16) == value.astype(ml_dtypes.bfloat16)).all()
    assert (_cast(value, FP32, FP16) == value.astype(np.float16)).all()


# ---- fma --------------------------------------------------------------------------------------


def _fma_reference(a: float, b: float, c: float, scalar: ScalarType) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if scalar == FP64:
        return float(exact)
    # Round to odd with far more bits than fp64 has would be exact; two neighbours decide here.
    near = np.float32(float(exact))
    with np.errstate(over="ignore"):
        candidates = [
            near,
            np.nextafter(near, np.float32(np.inf)),
            np.nextafter(near, np.float32(-np.inf)),
        ]
    finite = [c for c in candidates if np.isfinite(c)]
    distances = [abs(exact - Fraction(float(c))) for c in finite]
    best = [c for c, d in zip(finite, distances, strict=True) if d == min(distances)]
    even = [c for c in best if int(c.view(np.uint32)) & 1 == 0]
    return float((even or best)[0])


F32 = st.floats(-(2.0**50), 2.0**50, width=32)


@given(a=F32, b=F32, c=F32)
def test_fp32_fma_rounds_once(a: float, b: float, c: float) -> None:
    arrays = (np.array(v, np.float32) for v in (a, b, c))
    with np.errstate(all="ignore"):
        out = float(fma(*arrays, FP32))
    assert out == _fma_reference(a, b, c, FP32)


def test_fp32_fma_where_fp64_would_round_twice() -> None:
    # a * b + c lies just above a midpoint of fp32, by less than fp64 can hold beside c.
    a, b, c = 1.0 + 2.0**-23, 2.0**-24 * (1.0 + 2.0**-23), 1.0
    out = fma(*(np.array([v], np.float32) for v in (a, b, c)), FP32)
    assert float(out[0]) == _fma_reference(a, b, c, FP32) == 1.0 + 2.0**-23
    tie = fma(*(np.array([v], np.float32) for v in (2.0**-60, 2.0**-60, 1.0 + 2.0**-23)), FP32)
    assert float(tie[0]) == 1.0 + 2.0**-23


@given(a=FINITE, b=FINITE, c=FINITE)
def test_fp64_fma_rounds_once(a: float, b: float, c: float) -> None:
    with np.errstate(all="ignore"):
        out = float(fma(np.array(a), np.array(b), np.array(c), FP64))
    try:
        expected = _fma_reference(a, b, c, FP64)
    except OverflowError:
        expected = np.inf if Fraction(a) * Fraction(b) + Fraction(c) > 0 else -np.inf
    assert out == expected


def test_fma_of_infinities_and_integers() -> None:
    unit, inf = np.array(1.0), np.array(np.inf)
    assert fma(inf, unit, unit, FP64) == np.inf
    with np.errstate(invalid="ignore"):
        assert np.isnan(fma(inf, unit, -inf, FP64))
    two = np.array([2**30], np.int32)
    with np.errstate(over="ignore"):
        assert fma(two, two, two, I32)[0] == 2**30


# ---- integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 32, 64])
@given(data=st.data())
def test_division_truncates_as_c(bits: int, data: st.DataObject) -> None:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    a, b = data.draw(st.integers(low, high)), data.draw(st.integers(low, high))
    x, y = (np.array([v], f"int{bits}") for v in (a, b))
    if b == 0 or (a == low and b == -1):
        return
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    assert numerics.divide(x, y, Poison(0)).item() == quotient
    assert numerics.remainder(x, y, Poison(0)).item() == a - quotient * b


def test_division_by_zero_is_poison_in_its_lane_only() -> None:
    a, b = np.array([7, 7, -7], np.int32), np.array([0, 2, 2], np.int32)
    seen = [numerics.divide(a, b, Poison(seed)).tolist() for seed in (1, 2)]
    assert seen[0][1:] == seen[1][1:] == [3, -3]
    assert seen[0][0] != seen[1][0]


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.float32])
def test_undefined_values_may_be_all_zero(dtype: type[np.generic]) -> None:
    poison = Poison(ALL_ZERO)
    assert not poison.fill(np.dtype(dtype), (3, 2)).any()
    assert poison.was_asked
    assert Poison(0).fill(np.dtype(dtype), (3, 2)).all()


def test_shifts_beyond_the_width_are_poison() -> None:
    a, b = np.array([1, 1, -8], np.int32), np.array([4, 32, 1], np.int32)
    left = [numerics.shift_left(a, b, Poison(seed)).tolist() for seed in (1, 2)]
    assert left[0][0] == left[1][0] == 16
    assert left[0][1] != left[1][1]
    assert numerics.shift_right(a, b, Poison(0)).tolist()[2] == -4
    logical = numerics.shift_right(
        np.array([0x80000000], np.uint32), np.array([31], np.uint32), Poison(0)
    )
    assert logical.tolist() == [1]


@given(a=st.integers(0, 2**64 - 1), b=st.integers(0, 2**64 - 1))
def test_multiply_high(a: int, b: int) -> None:
    x, y = np.array([a], np.uint64), np.array([b], np.uint64)
    assert numerics.multiply_high(x, y, Poison(0)).item() == a * b >> 64
    signed = numerics.multiply_high(x.view(np.int64), y.view(np.int64), Poison(0)).item()
    assert signed == x.view(np.int64).item() * y.view(np.int64).item() >> 64


# ---- poison -----------------------------------------------------------------------------------


def test_poison_is_recognisable_with_seed_zero() -> None:
    fill = Poison(0).fill
    assert np.isnan(fill(np.dtype(np.float32), (3,))).all()
    assert np.isnan(fill(dtype_of(BF16), (2,)).astype(np.float32)).all()
    assert fill(np.dtype(np.uint32), (1,)).tolist() == [0xDEADBEEF]
    assert fill(np.dtype(np.int8), (1,)).view(np.uint8).tolist() == [0xDE]
    assert fill(np.dtype(np.bool_), (2,)).all()


def test_poison_is_random_and_reproducible_with_a_seed() -> None:
    first, again, other = (Poison(seed).fill(np.dtype(np.int64), (8,)) for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).all()
    flags = Poison(5).fill(np.dtype(np.bool_), (64,))
    assert set(flags.view(np.uint8).tolist()) == {0, 1}
