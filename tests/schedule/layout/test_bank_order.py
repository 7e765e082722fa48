"""Bank order of lanes: no conflicts where swaps pay off, and the same elements."""

from __future__ import annotations

import pytest

from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, FP32, I8, DescriptorType, ScalarType
from aotc.schedule.layout.bank_order import bank_order
from aotc.schedule.layout.conversions import plan_warp_shuffle
from aotc.schedule.layout.layouts import mma_v2
from aotc.schedule.layout.scratch import bank_conflicts
from aotc.schedule.layout.tensor_copies import (
    block_layout,
    buffer_access,
    buffer_layout,
    tensor_map_of,
)

SHAPES = [(16, 8), (16, 16), (16, 64), (64, 32), (128, 256)]


def _order(
    layout: LinearLayout, element: ScalarType, shape: tuple[int, int]
) -> tuple[LinearLayout, int, int]:
    """Return the order for a buffer, and the conflicts before and with it."""
    buffer = buffer_layout(tensor_map_of(DescriptorType(element, shape)), shape)
    reordered = bank_order(layout, buffer, element.bits, ("",))
    before, after = (
        bank_conflicts(
            candidate, buffer, buffer_access(candidate, buffer, element.bits, ("",))[0], bits
        )
        for candidate in (layout, reordered)
        for bits in (element.bits,)
    )
    return reordered, before, after


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accumulators_of_fp32_have_no_conflicts(shape: tuple[int, int]) -> None:
    layout = mma_v2(shape, (1, 1))
    order, before, after = _order(layout, FP32, shape)
    assert after == 0
    assert (order == layout) == (before == 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_element_changes_its_thread(shape: tuple[int, int]) -> None:
    layout = mma_v2(shape, (1, 1))
    order, _, _ = _order(layout, FP32, shape)
    plan = plan_warp_shuffle(layout, order, 32)
    assert plan is not None
    assert plan.is_butterfly
    assert not any(round_.lane_xor for round_ in plan.rounds)


@pytest.mark.parametrize("element", [BF16, FP32, I8])
def test_rows_in_whole_runs_stay_as_they_are(element: ScalarType) -> None:
    layout = block_layout(DescriptorType(element, (32, 64)), 4)
    order, before, _ = _order(layout, element, (32, 64))
    assert before == 0
    assert order == layout


def test_matrices_need_no_order() -> None:
    layout, shape = mma_v2((64, 64), (4, 1)), (64, 64)
    buffer = buffer_layout(tensor_map_of(DescriptorType(BF16, shape)), shape)
    assert bank_order(layout, buffer, 16, ("", "b16", "b16.trans")) == layout
