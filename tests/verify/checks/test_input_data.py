"""Contents of buffers: special values occur in every type, and most of a buffer is plain."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.types import SCALARS
from aotc.verify.arrays import Array
from aotc.verify.checks.contents import HEAD_BYTES
from aotc.verify.checks.input_data import cumulative, integers, shuffled, special

_FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv", "fp8e5")


def _special(name: str, count: int) -> Array:
    """Return the first elements behind the pointer."""
    start = HEAD_BYTES // SCALARS[name].size_bytes
    return special(SCALARS[name], 3).elements(start, start + count).astype(np.float64)


@pytest.mark.parametrize("name", _FLOATS)
def test_special_values_are_among_the_first_elements_and_rare(name: str) -> None:
    values = _special(name, 4096)
    few = values[:512]
    assert ((few == 0) & np.signbit(few)).any()
    assert ((few != 0) & (np.abs(few) < 2.0**-6)).any()
    assert np.isnan(values).any()
    if name != "fp8e4nv":  # has none
        assert np.isposinf(values).any()
        assert np.isneginf(values).any()
    assert (~np.isfinite(values)).mean() < 0.02
    tail = values[512:]
    whole = np.isfinite(tail) & (tail == np.rint(tail)) & (np.abs(tail) <= 8)
    assert whole.mean() > 0.97
    assert np.isfinite(_special(name, 32768)[16384:]).all()


@pytest.mark.parametrize(
    ("name", "narrow", "bits"), [("fp32", 7, 23), ("fp32", 10, 23), ("fp16", 3, 10)]
)
def test_inputs_contain_ties_of_narrower_types(name: str, narrow: int, bits: int) -> None:
    assert SCALARS[name].mantissa_bits == bits
    values = _special(name, 512)
    values = values[np.isfinite(values) & (values != 0)]
    mantissa, _ = np.frexp(np.abs(values))
    scaled = mantissa * 2.0 ** (narrow + 1)
    assert (scaled - np.floor(scaled) == 0.5).any()


def test_integers_have_the_ends_of_their_type() -> None:
    for name in ("i8", "i32", "i64", "u8", "u32"):
        table = integers(SCALARS[name], 1).table
        info = np.iinfo(table.dtype)
        for value in (info.min, info.max, 0, -1 if info.min else 1):
            assert (table == value).any()


def test_shuffled_integers_repeat_only_after_all_are_used() -> None:
    contents = shuffled(SCALARS["i32"], 3, 40, 5)
    start = HEAD_BYTES // 4
    first = contents.elements(start, start + 37)
    assert sorted(first.tolist()) == list(range(3, 40))
    assert (contents.elements(start + 37, start + 74) == first).all()
    assert (first != np.arange(3, 40)).any()


def test_running_sums_start_at_zero_with_steps_in_the_range() -> None:
    start = HEAD_BYTES // SCALARS["i32"].size_bytes
    sums = cumulative(SCALARS["i32"], 2, 9, seed=4).elements(start, start + 1000)
    assert sums[0] == 0
    assert {*np.diff(sums).tolist()} == {*range(2, 9)}
