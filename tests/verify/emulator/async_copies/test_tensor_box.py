"""Boxes of tensors, byte by byte, against every element looked at on its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.verify.emulator.async_copies.tensor_box import (
    assemble,
    check_supported,
    fill_of,
    flipped,
    pick,
    pieces_of,
    shared_chunks,
)
from aotc.verify.emulator.async_copies.tensor_map import ELEMENT_TYPES, TensorMap, TensorMapError
from tests.support.extent import examples

TYPES = {1: "u8", 2: "bf16", 4: "f32", 8: "f64"}


@st.composite
def boxes(draw: st.DrawFn) -> tuple[TensorMap, list[int]]:
    """Draw a map and where a box starts, inside, outside or across the tensor's edge."""
    rank = draw(st.integers(1, 4))
    size = draw(st.sampled_from([1, 2, 4, 8]))
    dims = draw(st.lists(st.integers(1, 9), min_size=rank - 1, max_size=rank - 1))
    inner = draw(st.integers(1, 40))
    strides = tuple(16 * draw(st.integers(0, 1000)) for _ in dims)
    box = (16 // size * draw(st.integers(1, 3)), *(draw(st.integers(1, 4)) for _ in dims))
    steps = (1, *(draw(st.integers(1, 3)) for _ in dims))
    tensor = TensorMap(TYPES[size], 1 << 20, (inner, *dims), strides, box, steps)
    return tensor, [
        draw(st.integers(-box[0], inner + 2)),
        *(draw(st.integers(-5, 9)) for _ in dims),
    ]


@settings(max_examples=examples(60))
@given(boxes())
def test_pieces_are_the_elements_inside(case: tuple[TensorMap, list[int]]) -> None:
    tensor, origin = case
    size = tensor.element_bytes
    expected: dict[int, int] = {}  # byte of the dense box to address
    extents = tensor.box_elems
    for element, index in enumerate(itertools.product(*map(range, reversed(extents)))):
        position = [
            o + i * s
            for o, i, s in zip(origin, reversed(index), tensor.element_strides, strict=True)
        ]
        if all(0 <= p < dim for p, dim in zip(position, tensor.dims, strict=True)):
            outer = sum(p * s for p, s in zip(position[1:], tensor.strides_bytes, strict=True))
            for byte in range(size):
                expected[element * size + byte] = tensor.address + position[0] * size + outer + byte
    pieces = pieces_of(tensor, origin)
    byte_addresses: dict[int, int] = {}
    for address, position in zip(pieces.address.tolist(), pieces.indices.tolist(), strict=True):
        assert address % pieces.size_bytes == 0
        for byte in range(pieces.size_bytes):
            byte_addresses[position * pieces.size_bytes + byte] = address + byte
    assert byte_addresses == expected


@settings(max_examples=examples(60))
@given(boxes(), st.integers(0, 2**32 - 1))
def test_assemble_and_pick_are_inverse(case: tuple[TensorMap, list[int]], seed: int) -> None:
    tensor, origin = case
    pieces = pieces_of(tensor, origin)
    shape = (len(pieces.address), pieces.size_bytes)
    data = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    box = assemble(tensor, pieces, data)
    assert box.size == tensor.box_bytes
    np.testing.assert_array_equal(pick(pieces, box), data)


@pytest.mark.parametrize("name", [name for name, (_, _, nan) in ELEMENT_TYPES.items() if nan])
def test_fill_is_a_nan(name: str) -> None:
    size = ELEMENT_TYPES[name][1]
    tensor = TensorMap(name, 0, (64,), (), (16,), fill=1)
    assert fill_of(tensor).tobytes() == bytes.fromhex("f77f" * (size // 2))


@pytest.mark.parametrize(
    ("swizzle", "atomicity", "first_bytes"),
    [
        # Where the first chunk of each of eight lines of 128 bytes goes.
        (3, 0, [0, 16, 32, 48, 64, 80, 96, 112]),
        (3, 1, [0, 32, 64, 96, 0, 32, 64, 96]),
        (3, 3, [0, 64, 0, 64, 0, 64, 0, 64]),
        (0, 0, [0] * 8),
    ],
)
def test_swizzles(swizzle: int, atomicity: int, first_bytes: list[int]) -> None:
    tensor = TensorMap("u8", 0, (128, 8), (128,), (128, 8), swizzle=swizzle, atomicity=atomicity)
    chunks = shared_chunks(tensor, 4096).reshape(8, 8)
    assert sorted(chunks.ravel()) == list(range(4096, 5120, 16))
    assert (chunks[:, 0] - 4096 - 128 * np.arange(8)).tolist() == first_bytes


def test_the_pattern_is_that_of_the_address() -> None:
    """A box starting in the second line has the swizzle of that line."""
    tensor = TensorMap("u8", 0, (128, 8), (128,), (128, 8), swizzle=3)
    assert shared_chunks(tensor, 4096 + 128)[0] == 4096 + 128 + 16


def test_halves_are_flipped_in_odd_lines() -> None:
    tensor = TensorMap("u8", 0, (128, 2), (128,), (128, 2), swizzle=3, atomicity=2)
    box = np.arange(256, dtype=np.uint8).reshape(16, 16)
    out = flipped(tensor, shared_chunks(tensor, 4096), box)
    np.testing.assert_array_equal(out[:8], box[:8])
    np.testing.assert_array_equal(out[8:], np.roll(box[8:], 8, axis=1))


@pytest.mark.parametrize(
    ("tensor", "load", "message"),
    [
        (TensorMap("tf32", 0, (8,), (), (4,)), True, "conversion to tf32"),
        (TensorMap("f32.ftz", 0, (8,), (), (4,)), True, "conversion to f32.ftz"),
        (TensorMap("u8", 0, (64,), (), (32,), swizzle=1, atomicity=1), True, "128-byte swizzle"),
        (TensorMap("u8", 0, (64,), (), (32,), swizzle=3, atomicity=2), False, "for loads alone"),
        (
            TensorMap("u8", 0, (8, 8, 8), (16, 128), (8, 8, 8), interleave=1),
            True,
            "interleaved tensors are not emulated",
        ),
        (TensorMap("u8", 8, (64,), (), (32,)), True, "no multiple of 16"),
    ],
)
def test_unsupported_maps_are_named(tensor: TensorMap, load: bool, message: str) -> None:
    with pytest.raises(TensorMapError, match=message):
        check_supported(tensor, load=load)
