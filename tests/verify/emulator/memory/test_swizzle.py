"""Swizzles as laws: done twice they undo themselves, and they stay within their span."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.emulator.memory.swizzle import swizzled


@given(st.integers(0, 1 << 18), st.sampled_from([0, 32, 64, 128]), st.integers(0, 7))
def test_twice_is_nothing_and_the_span_is_kept(address: int, span: int, first_line: int) -> None:
    before = np.array([address])
    once = swizzled(before, span, first_line=first_line)
    np.testing.assert_array_equal(swizzled(once, span, first_line=first_line), before)
    width = span or 16
    assert once[0] // width == address // width
    assert once[0] % 16 == address % 16


@pytest.mark.parametrize("span", [32, 64, 128])
def test_eight_rows_of_a_column_spread_over_the_banks(span: int) -> None:
    """Eight chunks below each other, span bytes apart, lie in 128 bytes' worth of banks."""
    rows = swizzled(np.arange(8) * span, span)
    assert len(set((rows % 128 // 16).tolist())) == 8


def test_a_pattern_with_a_base_offset() -> None:
    lines = 128 * np.arange(8)
    shifted = swizzled(lines + 256, 128, first_line=2)
    np.testing.assert_array_equal(shifted, swizzled(lines, 128) + 256)
