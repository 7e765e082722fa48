"""Boxes of one warpgroup: computed from layouts, and counted over every element."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, TensorMapType
from aotc.schedule.layout.layouts import blocked, mma_v2, wgmma_accumulator
from aotc.schedule.layout.warpgroup_boxes import box_warpgroups, in_warpgroup_boxes


def _counted(layout: LinearLayout, box: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first warpgroup with each element of a box, or () if a box has several."""
    groups = np.full(layout.shape, -1)
    for warp in reversed(range(1 << layout.in_bits("warp"))):
        for lane in range(32):
            for element in layout.table("register", lane=lane, warp=warp):
                groups[tuple(layout.unpack(element))] = warp >> 2
    starts = [range(0, extent, step) for extent, step in zip(layout.shape, box, strict=True)]
    counts = [
        np.unique(
            groups[
                tuple(slice(start, start + step) for start, step in zip(origin, box, strict=True))
            ]
        )
        for origin in itertools.product(*starts)
    ]
    return tuple(int(count[0]) for count in counts) if all(map(_is_one, counts)) else ()


def _is_one(groups: np.ndarray) -> bool:
    return len(groups) == 1


@pytest.mark.parametrize(
    ("layout", "box"),
    [
        (wgmma_accumulator((128, 64), (2, 1)), (64, 64)),
        (wgmma_accumulator((128, 64), (2, 1)), (128, 64)),
        (wgmma_accumulator((256, 128), (2, 1)), (64, 64)),
        (wgmma_accumulator((256, 64), (4, 1)), (64, 32)),
        (wgmma_accumulator((64, 256), (1, 2)), (64, 64)),
        (mma_v2((128, 64), (8, 1)), (64, 64)),
        (mma_v2((128, 64), (2, 4)), (64, 64)),
        (blocked((8, 64), (1, 8), (4, 8), (8, 1), (1, 0)), (8, 64)),
    ],
    ids=str,
)
def test_a_box_is_one_warpgroups_if_all_its_elements_are(
    layout: LinearLayout, box: tuple[int, ...]
) -> None:
    assert box_warpgroups(layout, box) == _counted(layout, box)


def test_one_warpgroup_needs_no_boxes_of_its_own() -> None:
    assert box_warpgroups(wgmma_accumulator((64, 64), (1, 1)), (64, 64)) == ()


def test_maps_are_cut_for_warpgroups_only() -> None:
    tensor = TensorMapType(BF16, (128, 64), 128)
    by_rows = wgmma_accumulator((128, 256), (2, 1))
    by_columns = mma_v2((128, 256), (1, 8))
    assert in_warpgroup_boxes(tensor, [by_rows]).box == (64, 64)
    assert in_warpgroup_boxes(tensor, [by_rows, by_columns]) == tensor
    assert in_warpgroup_boxes(tensor, []) == tensor
    low = TensorMapType(BF16, (64, 64), 128)
    assert in_warpgroup_boxes(low, [wgmma_accumulator((64, 256), (1, 2))]) == low


def test_maps_of_a_transposed_tile_have_the_columns_of_a_warpgroup() -> None:
    tensor = TensorMapType(BF16, (32, 64), 128)
    acc = wgmma_accumulator((128, 32), (2, 1))
    assert in_warpgroup_boxes(tensor, [acc.transpose((1, 0))]) == tensor  # it has 64 as it is
    # Of the gate and up layers of a network, 8 rows each in turn, one of both is left.
    gate = acc.reshape((8, 2, 8, 32)).transpose((0, 2, 3, 1)).split().reshape((64, 32))
    halves = in_warpgroup_boxes(tensor, [gate.transpose((1, 0))])
    assert (halves.box, halves.swizzle_bytes) == ((32, 32), 64)
    by_rows = blocked((32, 64), (1, 8), (4, 8), (8, 1), (1, 0))
    assert in_warpgroup_boxes(tensor, [gate.transpose((1, 0)), by_rows]) == tensor
