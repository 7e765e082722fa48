"""Tensor maps: their bytes, and every rule of the driver's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.emulator.async_copies.tensor_map import ELEMENT_TYPES, TensorMap, TensorMapError

MAP = TensorMap("bf16", 0x10000, (200, 300), (512,), (64, 128), swizzle=3)


@st.composite
def tensor_maps(draw: st.DrawFn) -> TensorMap:
    """Draw a map the driver would accept."""
    rank = draw(st.integers(1, 5))
    name = draw(st.sampled_from(list(ELEMENT_TYPES)))
    size = ELEMENT_TYPES[name][1]
    span = draw(st.sampled_from([0, 1, 2, 3]))
    inner = draw(st.integers(1, {0: 256 * size, 1: 32, 2: 64, 3: 128}[span] // 16)) * 16 // size

    def extents(limit: int, count: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(1, limit), min_size=count, max_size=count)))

    return TensorMap(
        name,
        draw(st.integers(0, 2**40)) * 16,
        extents(1 << 32, rank),
        tuple(16 * stride for stride in extents((1 << 36) - 1, rank - 1)),
        (min(inner, 256), *extents(256, rank - 1)),
        (1, *extents(8, rank - 1)),
        swizzle=span,
        fill=draw(st.integers(0, int(ELEMENT_TYPES[name][2]))),
        l2_promotion=draw(st.integers(0, 3)),
    )


@given(tensor_maps())
def test_bytes_read_back(tensor_map: TensorMap) -> None:
    data = tensor_map.to_bytes()
    assert len(data) == 128
    assert TensorMap.from_bytes(data) == tensor_map


def test_box_counts() -> None:
    assert MAP.box_bytes == 64 * 128 * 2
    strided = replace(MAP, box=(64, 9), element_strides=(1, 4))
    assert strided.box_elems == (64, 3)
    assert strided.box_bytes == 64 * 3 * 2


BROKEN = {
    "address 0x10008 is no multiple of 16": {"address": 0x10008},
    "dimension 1 is 0, not 1 to": {"dims": (200, 0)},
    f"dimension 0 is {2**32 + 1}": {"dims": (2**32 + 1, 300)},
    "stride of dimension 1 is 520 bytes": {"strides_bytes": (520,)},
    "below 2\\^40": {"strides_bytes": (1 << 40,)},
    "box of dimension 1 is 257, not 1 to 256": {"box": (64, 257)},
    "box of dimension 0 is 0, not 1 to 256": {"box": (0, 128)},
    "element stride of dimension 1 is 9": {"element_strides": (1, 9)},
    "element stride of dimension 0 is 1 unless": {"element_strides": (2, 1)},
    "box of dimension 0 is 24 bytes, no multiple of 16": {"box": (12, 128)},
    "box of dimension 0 is 160 bytes, more than the swizzle's 128": {"box": (80, 128)},
    "2 dimensions with 2 strides": {"strides_bytes": (512, 1024)},
    "swizzle 4 is none of": {"swizzle": 4},
    "fill 2 is none of": {"fill": 2},
    "s32 has no NaN": {"element_type": "s32", "fill": 1, "box": (32, 128)},
    "3 dimensions or more, not 2": {"interleave": 1},
    "needs the 32-byte swizzle": {
        "interleave": 2,
        "dims": (8, 8, 8),
        "strides_bytes": (512, 4096),
        "box": (8, 8, 8),
        "element_strides": (1, 1, 1),
    },
}


@pytest.mark.parametrize("message", BROKEN)
def test_driver_errors_are_named(message: str) -> None:
    with pytest.raises(TensorMapError, match=message):
        replace(MAP, **BROKEN[message]).to_bytes()


def test_other_bytes_are_no_map() -> None:
    for data in (bytes(128), MAP.to_bytes()[:64], b"aotM" + bytes(124)):
        with pytest.raises(TensorMapError, match="no tensor map"):
            TensorMap.from_bytes(data)


def test_fields_can_be_replaced() -> None:
    edited = MAP.with_field("global_address", 0x20000)
    edited = edited.with_field("global_dim", 77, 1).with_field("global_stride", 1024, 0)
    edited = edited.with_field("box_dim", 32, 0).with_field("element_stride", 2, 1)
    edited = edited.with_field("elemtype", 6).with_field("swizzle_mode", 2)
    assert edited == TensorMap("f16", 0x20000, (200, 77), (1024,), (32, 128), (1, 2), swizzle=2)
    assert TensorMap.from_bytes(edited.pack()) == edited


def test_rank_is_given_less_one() -> None:
    wider = MAP.with_field("rank", 2)
    assert wider.rank == 3
    with pytest.raises(TensorMapError, match="dimension 2 is 0"):
        wider.check()
    assert wider.with_field("rank", 1) == MAP


def test_edits_of_missing_fields() -> None:
    with pytest.raises(TensorMapError, match="global_dim has no dimension 2, it has 2"):
        MAP.with_field("global_dim", 5, 2)
    with pytest.raises(TensorMapError, match="element type 13"):
        MAP.with_field("elemtype", 13)
    with pytest.raises(TensorMapError, match="box_dim of dimension 0 is 512"):
        MAP.with_field("box_dim", 512, 0)
    with pytest.raises(TensorMapError, match="rank is 6"):
        MAP.with_field("rank", 5)
