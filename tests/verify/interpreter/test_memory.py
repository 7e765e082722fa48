"""Addresses, bounds and alignment of the interpreter's global memory."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.types import BF16, FP16, FP32, I1, I8, I32, I64
from aotc.verify.arrays import Array
from aotc.verify.interpreter.memory import ALIGNMENT_BYTES, AccessError, Memory
from aotc.verify.interpreter.numerics import dtype_of


def _at(address: int, *bytes_: int) -> Array:
    return np.array([address + offset for offset in bytes_], np.int64)


def test_owners_are_aligned_and_views_keep_their_place() -> None:
    memory = Memory()
    owner = np.arange(16, dtype=np.float32)
    base = memory.add("x", owner)
    assert base % ALIGNMENT_BYTES == 0
    assert memory.add("y", owner[3:]) == base + 12
    assert memory.add("z", owner.reshape(4, 4)[1:, 1:]) == base + 20
    other = memory.add("w", np.zeros(4))
    assert abs(other - base) > 1 << 39


def test_loads_gather_in_lane_order() -> None:
    memory = Memory()
    base = memory.add("x", np.arange(8, dtype=np.float16))
    assert memory.load(_at(base, 6, 0, 6, 14), None, FP16).tolist() == [3, 0, 3, 7]
    mask = np.array([False, True, False, True])
    assert memory.load(_at(base, 1000, 2, 1, 4), mask, FP16).tolist() == [1, 2]


def test_an_address_at_the_end_of_its_type_is_out_of_bounds() -> None:
    memory = Memory()
    base = memory.add("x", np.zeros(4, np.float32))
    last = np.array([base, np.iinfo(np.int64).max - 3], np.int64)
    with pytest.raises(AccessError, match="out of bounds"):
        memory.load(last, None, FP32)


def test_an_access_may_use_another_type_than_the_array() -> None:
    memory = Memory()
    array = np.array([0x3F800000, 0], np.uint32)
    base = memory.add("x", array)
    assert memory.load(_at(base, 0), None, FP32).tolist() == [1.0]
    assert memory.load(_at(base, 3), None, I8).tolist() == [0x3F]
    memory.store(_at(base, 4), np.array([1.0], dtype_of(BF16)), None, BF16)
    assert array[1] == 0x3F80


def test_lanes_may_point_into_several_buffers() -> None:
    memory = Memory()
    a, b = np.zeros(2, np.int32), np.zeros(2, np.int32)
    pa, pb = memory.add("a", a), memory.add("b", b)
    address = np.array([pa, pb + 4, pa + 4], np.int64)
    memory.store(address, np.array([1, 2, 3], np.int32), None, I32)
    assert (a.tolist(), b.tolist()) == ([1, 3], [0, 2])
    assert memory.load(address, None, I32).tolist() == [1, 2, 3]


@pytest.mark.parametrize("offset", [-4, 32, 1 << 20, -(1 << 30)])
def test_out_of_bounds_names_buffer_and_byte(offset: int) -> None:
    memory = Memory()
    base = memory.add("logits", np.zeros(8, np.float32))
    with pytest.raises(AccessError, match=rf"byte {offset} of logits \(32 bytes\), out of bounds"):
        memory.load(_at(base, 0, offset), None, FP32)


def test_the_last_element_must_fit_whole() -> None:
    memory = Memory()
    base = memory.add("x", np.zeros(6, np.int8))
    with pytest.raises(AccessError, match="out of bounds"):
        memory.load(_at(base, 4), None, I32)


def test_an_address_in_no_buffer() -> None:
    memory = Memory()
    with pytest.raises(AccessError, match="in no buffer"):
        memory.load(_at(0, 0), None, FP32)


def test_misaligned_access() -> None:
    memory = Memory()
    base = memory.add("x", np.zeros(8, np.float32))
    with pytest.raises(AccessError, match="byte 6 of x .* no multiple of 4"):
        memory.load(_at(base, 0, 6), None, FP32)
    odd = np.zeros(9, np.int8)[1:].view(np.int32)
    with pytest.raises(AccessError, match="no multiple of 4"):
        memory.load(_at(memory.add("odd", odd), 0), None, I32)


def test_only_the_views_span_is_accessible() -> None:
    memory = Memory()
    owner = np.zeros((4, 8), np.float32)
    view = owner[1:3, 2:4]  # spans row 1 column 2 to row 2 column 3
    base = memory.add("view", view)
    memory.load(_at(base, 0, 4, 32, 36), None, FP32)
    for offset in (-4, 40):
        with pytest.raises(AccessError, match="out of bounds"):
            memory.load(_at(base, offset), None, FP32)


def test_spans_of_views_of_one_array_join() -> None:
    memory = Memory()
    owner = np.zeros(32, np.int8)
    for name, part in (("c", owner[24:28]), ("a", owner[0:4]), ("b", owner[2:8])):
        memory.add(name, part)
    base = memory.add("all", owner[:1])
    memory.load(_at(base, *range(8), *range(24, 28)), None, I8)
    for offset in (8, 23, 28):
        with pytest.raises(AccessError, match="c/a/b/all"):
            memory.load(_at(base, offset), None, I8)


def test_reversed_and_strided_views() -> None:
    memory = Memory()
    owner = np.arange(8, dtype=np.int64)
    base = memory.add("x", owner[::-2])  # elements 7, 5, 3, 1
    assert memory.load(_at(base, 0, -16, -48), None, I64).tolist() == [7, 5, 1]
    with pytest.raises(AccessError):
        memory.load(_at(base, -56), None, I64)
    strided = np.lib.stride_tricks.as_strided(owner[2:], (2, 2), (24, 8))
    address = memory.add("y", strided)
    assert memory.load(_at(address, 24), None, I64).tolist() == [5]


def test_empty_arrays_have_an_address_and_no_bytes() -> None:
    memory = Memory()
    base = memory.add("x", np.zeros((0, 5), np.float32))
    assert memory.load(_at(base), None, FP32).size == 0
    with pytest.raises(AccessError, match="out of bounds"):
        memory.load(_at(base, 0), None, FP32)


def test_read_only_arrays() -> None:
    memory = Memory()
    array = np.zeros(4, np.int32)
    array.flags.writeable = False
    base = memory.add("weights", array)
    memory.load(_at(base, 0), None, I32)
    with pytest.raises(AccessError, match="weights, which is read-only"):
        memory.store(_at(base, 0), np.array([1], np.int32), None, I32)


def test_stores_of_several_lanes_to_one_address() -> None:
    memory = Memory()
    array = np.zeros(2, np.float32)
    base = memory.add("x", array)
    memory.store(_at(base, 0, 0), np.array([np.nan, np.nan], np.float32), None, FP32)
    assert np.isnan(array[0])
    with pytest.raises(AccessError, match="two lanes write different values to byte 4 of x"):
        memory.store(_at(base, 4, 4), np.array([1, 2], np.float32), None, FP32)
    with pytest.raises(AccessError, match="two lanes"):
        memory.store(_at(base, 4, 4), np.array([0.0, -0.0], np.float32), None, FP32)


def test_booleans_are_bytes() -> None:
    memory = Memory()
    array = np.array([0, 1, 7], np.uint8)
    base = memory.add("x", array)
    assert memory.load(_at(base, 0, 1, 2), None, I1).tolist() == [False, True, True]
    memory.store(_at(base, 0, 2), np.array([True, False]), None, I1)
    assert array.tolist() == [1, 1, 0]


def test_fortran_order_is_contiguous_memory() -> None:
    memory = Memory()
    array = np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3))
    base = memory.add("x", array)
    assert memory.load(_at(base, 4), None, I32).tolist() == [3]
