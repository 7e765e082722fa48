"""Sums of atomics: bounds cover any order, and sums exact in every order stay exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.types import BF16, FP16, FP32, ScalarType
from aotc.verify.arrays import Array
from aotc.verify.checks.atomic_sums import AtomicSums, Sums
from aotc.verify.checks.compare import NOISE_FACTOR
from aotc.verify.interpreter.numerics import dtype_of, round_to

_LARGEST = {FP32: float(np.finfo(np.float32).max), FP16: 65504.0, BF16: float.fromhex("0x1.fep127")}
_ADDRESS = np.array([4096], np.int64)


def _added(parts: Sequence[float], element: ScalarType, start: float = 0.0) -> Sums:
    """Return the sum at an address after adding numbers in order."""
    sums = AtomicSums()
    cell = np.array([start], dtype_of(element))
    total: Sums | None = None
    for part in parts:
        value = np.array([part], dtype_of(element))
        total = sums.add(_ADDRESS, cell, value, element, _LARGEST[element])
        cell = _rounded(total.total, element)
        sums.leave(_ADDRESS, cell)
    assert total is not None
    return total


def _rounded(value: Array, element: ScalarType) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(round_to(value, element))


def _in_order(parts: Array, element: ScalarType) -> float:
    total = np.zeros((), dtype_of(element))
    for part in parts:
        total = _rounded(total.astype(np.float64) + float(part), element)
    return float(total)


@pytest.mark.parametrize("element", [FP32, FP16, BF16])
@pytest.mark.parametrize("scales", [(1.0,), (1.0, 1e-3), (1.0, -1.0), (100.0, 0.1)])
def test_any_order_is_covered(element: ScalarType, scales: tuple[float, ...]) -> None:
    rng = np.random.default_rng(1)
    for count in (2, 3, 8, 40):
        drawn = rng.normal(size=count) * np.resize(scales, count)
        parts = np.asarray(round_to(drawn, element))
        bounds = _added(parts.tolist(), element)
        # A noisy interpretation makes half of the deviation at least, a comparison allows a multiple.
        allowed = NOISE_FACTOR * max(0.5 * bounds.deviation[0], bounds.step[0])
        orders = [rng.permutation(parts) for _ in range(200)]
        by_size = parts[np.argsort(np.abs(parts))]
        results = [_in_order(order, element) for order in (*orders, by_size, by_size[::-1])]
        assert max(abs(result - bounds.total[0]) for result in results) <= allowed
        assert allowed < 0.02 * count * np.abs(parts).astype(float).sum()


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, unique=True), min_size=1, max_size=8))
def test_addresses_may_come_in_any_order(tiles: list[list[int]]) -> None:
    """The bounds of an address equal those of the address alone."""
    rng = np.random.default_rng(2)
    sums, memory, parts = AtomicSums(), np.zeros(41, np.float32), [list[float]() for _ in range(41)]
    for tile in tiles:
        address = 4096 + 4 * np.array(tile, np.int64)
        value = rng.normal(size=len(tile)).astype(np.float32)
        together = sums.add(address, memory[tile], value, FP32, _LARGEST[FP32])
        memory[tile] = _rounded(together.total, FP32)
        sums.leave(address, memory[tile])
        for index, (cell, part) in enumerate(zip(tile, value.tolist(), strict=True)):
            parts[cell].append(part)
            alone = _added(parts[cell], FP32)
            separate = (alone.total[0], alone.deviation[0], alone.step[0], alone.is_open[0])
            combined = (
                together.total[index],
                together.deviation[index],
                together.step[index],
                together.is_open[index],
            )
            assert combined == separate


def test_a_sum_that_fits_the_mantissa_is_exact_in_any_order() -> None:
    assert not _added([1.0, 4096.0, -3.0, 2.0**23], FP32).step[0]
    assert not _added([0.5, 31.0, -8.0], BF16, 2.0).step[0]
    assert _added([0.125, 31.0, -8.0], BF16, 2.0).step[0]
    assert not _added([2.0**-30, 2.0**-29], FP32).step[0]


def test_one_addition_may_round_either_way() -> None:
    """An addend may be off by a step; the rounding of the sum hides or doubles it."""
    bounds = _added([9129953.0], FP32, 0.5)
    assert bounds.step[0] == 1.0
    assert bounds.deviation[0] == 0.0


@pytest.mark.parametrize(
    ("parts", "is_open"),
    [
        ((3e38, 3e38), True),
        ((3e38, 3e38, -np.inf), True),
        ((3e38, 3e38, -np.inf, 200.0), True),
        ((3e38, 3e38, np.inf, -np.inf), False),
        ((3e38, 3e38, np.nan), False),
        ((3e38, -np.inf, 200.0), False),
    ],
)
def test_an_overflow_in_some_order_is_open_until_nan_in_all(
    parts: tuple[float, ...], is_open: bool
) -> None:
    assert _added(parts, BF16).is_open[0] == is_open


def test_flushed_sums_are_inexact() -> None:
    bounds = _added([2.0**-127, 2.0**-127], FP32)
    assert bounds.step[0] == 2.0**-126


def test_other_writes_to_an_address_count() -> None:
    sums = AtomicSums()
    unit = np.ones(1, np.float32)
    bounds = sums.add(_ADDRESS, unit, unit, FP32, _LARGEST[FP32])
    sums.leave(_ADDRESS, np.asarray(bounds.total, np.float32))
    bounds = sums.add(_ADDRESS, np.float32(1e9) * unit, unit, FP32, _LARGEST[FP32])
    assert bounds.total[0] == 1e9
    assert bounds.step[0] == 64.0


def test_addresses_are_kept_apart() -> None:
    sums = AtomicSums()
    zeros = np.zeros(3, np.float32)
    for addresses, value in (((64, 8, 32), 1.0), ((8, 128, 64), 0.1), ((4, 32, 8), 0.1)):
        where = np.array(addresses, np.int64)
        bounds = sums.add(where, zeros, np.full(3, value, np.float32), FP32, _LARGEST[FP32])
        sums.leave(where, zeros)
    assert (bounds.step > 0).tolist() == [False, True, True]
