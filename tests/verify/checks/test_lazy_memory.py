"""Growing memory: contents independent of access order, marks, conflicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.dialects.tile import AtomicSem
from aotc.ir.types import FP16, FP32, FP64, I1, I32
from aotc.verify.arrays import Array
from aotc.verify.checks.contents import HEAD_BYTES, Contents
from aotc.verify.checks.input_data import between, floats, integers
from aotc.verify.checks.lazy_memory import ElasticMemory
from aotc.verify.interpreter.memory import (
    AccessError,
    Address,
    Box,
    OutOfBoundsError,
    TensorAddress,
)

_ONE = np.array([1.0], np.float32)
_COUNTS = Contents(np.arange(256, dtype=np.float32), 1)


def _memory(max_bytes: int = 1 << 20) -> tuple[ElasticMemory, Address]:
    memory = ElasticMemory(max_bytes)
    return memory, memory.add_buffer("x", FP32, floats(FP32, 5))


def _at(address: int, *elements: int) -> Array:
    return np.array([address + 4 * element for element in elements], np.int64)


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=20))
def test_contents_do_not_depend_on_access_order(elements: list[int]) -> None:
    memory, x = _memory()
    one_by_one = [memory.load(_at(x, e), None, FP32)[0] for e in elements]
    other, y = _memory()
    assert other.load(_at(y, *elements), None, FP32).tolist() == one_by_one


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 5000))
def test_contents_are_a_function_of_the_position(start: int, length: int, skip: int) -> None:
    whole = _COUNTS.elements(start, start + skip + length)
    assert (_COUNTS.elements(start + skip, start + skip + length) == whole[skip:]).all()


def test_only_accessed_elements_are_marked() -> None:
    memory, x = _memory()
    memory.load(_at(x, 3, 3000), np.array([True, False]), FP32)
    memory.store(_at(x, 5), np.array([1.0], np.float32), None, FP32)
    read, written = memory.touched(0)
    assert np.flatnonzero(read).tolist() == [HEAD_BYTES + 12 + i for i in range(4)]
    assert np.flatnonzero(written).tolist() == [HEAD_BYTES + 20 + i for i in range(4)]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_buffer_of_stated_size_ends_there(is_sparse: bool) -> None:
    memory = ElasticMemory(1 << 20, is_sparse=is_sparse)
    x = memory.add_buffer("x", FP32, _COUNTS, 4, size=5)
    assert memory.load(_at(x, 0, 4), None, FP32).size == 2
    memory.store(_at(x, 3, 9), np.full(2, 7, np.float32), np.array([True, False]), FP32)
    for first, last, named in ((0, 5, 5), (-1, 2, -1), (3, 4000, 4000)):
        with pytest.raises(OutOfBoundsError, match=f"element {named} of x, which has 5 elements"):
            memory.load(_at(x, first, last), None, FP32)
    rows = TensorAddress(x, (2, 3), (3, 1))
    assert memory.load_box(Box(rows, (0, 0), (1, 4)), FP32).size == 3
    with pytest.raises(OutOfBoundsError, match="element 5 of x, which has 5 elements"):
        memory.load_box(Box(rows, (1, 0), (1, 4)), FP32)


def test_old_and_new_contents() -> None:
    memory, x = _memory()
    memory.store(_at(x, 0), np.array([7.0], np.float32), None, FP32)
    size = HEAD_BYTES + 8
    before, after = memory.initial(0, size), memory.result(0, size)
    assert after.view(np.float32)[-2] == 7.0
    assert (before[:-8] == after[:-8]).all()
    assert (before[-4:] == after[-4:]).all()


def test_a_pointer_may_be_one_element_off_and_stepped_back_from() -> None:
    memory = ElasticMemory(1 << 20)
    x = memory.add_buffer("x", FP16, floats(FP16, 1), offset_bytes=2)
    assert x % 256 == 2
    assert memory.load(np.array([x - 4], np.int64), None, FP16).dtype == np.float16
    with pytest.raises(AccessError, match=r"byte -5002 of x, before the pointer"):
        memory.load(np.array([x - 5002], np.int64), None, FP16)


def test_a_buffer_does_not_grow_beyond_its_limit() -> None:
    memory, x = _memory(1 << 16)
    with pytest.raises(AccessError, match=r"byte 400000 of x, beyond 65536 bytes"):
        memory.load(_at(x, 100_000), None, FP32)


def test_a_wild_address_is_in_no_buffer() -> None:
    memory, _ = _memory()
    with pytest.raises(AccessError, match="in no buffer"):
        memory.load(np.array([8], np.int64), None, FP32)


def test_programs_that_touch_the_same_memory_conflict() -> None:
    for first, second, conflict in (
        ("store", "load", "program 1 reads what another has written in x"),
        ("load", "store", "program 1 writes what another has read in x"),
        ("store", "store", "program 1 writes what another has written in x"),
    ):
        memory, x = _memory()
        for value, access in ((1.0, first), (2.0, second)):
            memory.begin_program()
            if access == "load":
                memory.load(_at(x, 4), None, FP32)
            else:
                memory.store(_at(x, 4), np.array([value], np.float32), None, FP32)
        assert memory.conflict == conflict


def test_accesses_without_conflict() -> None:
    memory, x = _memory()
    for program in range(3):
        memory.begin_program()
        memory.load(_at(x, 0), None, FP32)
        memory.store(_at(x, 8 + program), _ONE, None, FP32)
        memory.load(_at(x, 8 + program), None, FP32)
        memory.store(_at(x, 20), _ONE, None, FP32)  # the same value by all
        with memory.atomic():
            memory.load(_at(x, 30), None, FP32)
            memory.store(_at(x, 30), _ONE * program, None, FP32)
    assert memory.conflict == ""


def _signal(memory: ElasticMemory, address: int, sem: AtomicSem, *elements: int) -> None:
    with memory.atomic(sem):
        target = _at(address, *elements)
        memory.store(target, memory.load(target, None, FP32) + 1, None, FP32)


@pytest.mark.parametrize(
    ("released", "acquired", "expected"),
    [
        ("release", "acquire", ""),
        ("acq_rel", "acq_rel", ""),
        ("release", "release", "program 1 reads what another has written in x"),
        ("acquire", "acquire", "program 1 reads what another has written in x"),
        ("relaxed", "acq_rel", "program 1 reads what another has written in x"),
    ],
)
def test_atomics_order_programs(released: AtomicSem, acquired: AtomicSem, expected: str) -> None:
    memory, x = _memory()
    memory.begin_program()
    memory.store(_at(x, 4, 5), np.array([7.0, 8.0], np.float32), None, FP32)
    _signal(memory, x, released, 30)
    memory.begin_program()
    _signal(memory, x, acquired, 30)
    memory.load(_at(x, 4, 5), None, FP32)
    assert memory.conflict == expected


def test_accesses_unordered_by_atomics() -> None:
    """Another place, several elements, a write behind the release, no acquire in this program."""
    for element, elements, late in (
        (31, (30,), 4),
        (30, (30, 31), 4),
        (30, (30,), 5),
        (None, (30,), 4),
    ):
        memory, x = _memory()
        memory.begin_program()
        memory.store(_at(x, 4), _ONE * 7, None, FP32)
        _signal(memory, x, "acq_rel", *elements)
        memory.store(_at(x, 5), _ONE * 7, None, FP32)
        memory.begin_program()
        if element is None:
            _signal(memory, x, "acq_rel", 30)
            memory.begin_program()
        else:
            _signal(memory, x, "acq_rel", element)
        memory.load(_at(x, late), None, FP32)
        assert "reads what another has written" in memory.conflict


def test_order_goes_through_programs_in_between() -> None:
    memory, x = _memory()
    for first, second in ((30, 31), (31, 32), (32, 33)):
        memory.begin_program()
        if first != 30:
            _signal(memory, x, "acq_rel", first)
            memory.load(_at(x, 4), None, FP32)
        else:
            memory.store(_at(x, 4), _ONE * 7, None, FP32)
        _signal(memory, x, "acq_rel", second)
    assert memory.conflict == ""
    memory.store(_at(x, 4), _ONE * 9, None, FP32)  # all its readers have read it
    assert memory.conflict == ""


@pytest.mark.parametrize("is_last_ordered", [True, False])
def test_reads_before_a_release_may_be_overwritten(is_last_ordered: bool) -> None:
    """A lock orders accesses to the memory it guards, and no others."""
    memory, x = _memory()
    for program in range(3):
        memory.begin_program()
        if program < 2 or is_last_ordered:
            _signal(memory, x, "acq_rel", 30)
        memory.load(_at(x, 4), None, FP32)
        if program == 2:
            memory.store(_at(x, 4), _ONE * 9, None, FP32)
        _signal(memory, x, "acq_rel", 30)
    conflict = "program 2 writes what another has read in x"
    assert memory.conflict == ("" if is_last_ordered else conflict)


def test_a_swap_that_fails_releases_nothing() -> None:
    memory, x = _memory()
    memory.begin_program()
    memory.load(_at(x, 4), None, FP32)
    with memory.atomic("acq_rel", "cas"):
        memory.store(_at(x, 30), memory.load(_at(x, 30), None, FP32), None, FP32)
    memory.begin_program()
    _signal(memory, x, "acq_rel", 30)
    memory.store(_at(x, 4), _ONE * 9, None, FP32)
    assert memory.conflict == "program 1 writes what another has read in x"


def test_an_unordered_reader_conflicts_with_writers() -> None:
    memory, x = _memory()
    memory.begin_program()
    memory.load(_at(x, 4), None, FP32)  # and releases nothing
    for _ in range(2):
        assert memory.conflict == ""
        memory.begin_program()
        _signal(memory, x, "acq_rel", 30)
        memory.load(_at(x, 4), None, FP32)
        _signal(memory, x, "acq_rel", 30)
    memory.store(_at(x, 4), _ONE * 9, None, FP32)
    assert memory.conflict == "program 2 writes what another has read in x"


def test_ordered_accesses_may_be_overwritten() -> None:
    memory, x = _memory()
    for value in range(3):
        memory.begin_program()
        _signal(memory, x, "acquire", 30)
        memory.store(_at(x, 4), _ONE * value, None, FP32)
        _signal(memory, x, "release", 30)
    assert (memory.conflict, memory.rewritten) == ("", "")


def test_a_program_changing_its_own_writes_is_noted() -> None:
    for value, rewritten in ((1.0, ""), (2.0, "x")):
        memory, x = _memory()
        memory.begin_program()
        memory.store(_at(x, 0, 1), np.array([0.5, 1.0], np.float32), None, FP32)
        memory.store(_at(x, 1, 2), np.array([value, 3.0], np.float32), None, FP32)
        assert (memory.rewritten, memory.conflict) == (rewritten, "")


def test_untraced_memory_holds_the_same_and_marks_nothing() -> None:
    memory = ElasticMemory(1 << 20, is_traced=False)
    x = memory.add_buffer("x", FP32, floats(FP32, 5))
    traced, y = _memory()
    for variant, address in ((memory, x), (traced, y)):
        for _ in range(2):
            variant.begin_program()
            variant.store(_at(address, 9), _ONE, None, FP32)
            variant.load(_at(address, 3, 2000), None, FP32)
    size = traced.size_bytes(0)
    assert memory.result(0, size).tobytes() == traced.result(0, size).tobytes()
    assert memory.conflict == ""
    assert not memory.touched(0)[0].any()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_memory_can_be_restored(is_sparse: bool) -> None:
    """A run on it may touch more, without adding it to the first memory."""
    first = ElasticMemory(1 << 20, is_sparse=is_sparse)
    x = first.add_buffer("x", FP32, floats(FP32, 5))
    fresh, y = _memory()
    first.store(_at(x, 3, 3000), _ONE, None, FP32)
    pages = first.pages(0)
    for _ in range(2):
        again = first.again()
        indices = [3, 3000, 70_000]
        expected = fresh.load(_at(y, *indices), None, FP32)
        assert again.load(_at(x, *indices), None, FP32).tolist() == expected.tolist()
        again.store(_at(x, 3), 2 * _ONE, None, FP32)
    assert first.load(_at(x, 3), None, FP32).tolist() == [1.0]
    assert first.pages(0) == pages


def test_elements_of_several_sizes_are_marked_to_the_byte() -> None:
    memory, x = _memory()
    memory.begin_program()
    memory.store(_at(x, 0), _ONE, None, FP32)
    memory.load(np.array([x + 6], np.int64), None, FP16)
    memory.begin_program()
    memory.load(np.array([x + 8], np.int64), None, FP64)
    assert memory.conflict == ""
    read, written = memory.touched(0)
    assert np.flatnonzero(read).tolist() == [HEAD_BYTES + i for i in (6, 7, *range(8, 16))]
    assert np.flatnonzero(written).tolist() == [HEAD_BYTES + i for i in range(4)]
    memory.load(np.array([x], np.int64), None, FP64)
    assert memory.conflict == "program 1 reads what another has written in x"


def test_contents_by_dtype() -> None:
    drawn = floats(FP16, 3).elements(0, 5000).astype(np.float64)
    assert np.isfinite(drawn).all()
    assert 0.9 < drawn.std() < 1.1
    assert (drawn == 0).any()
    whole = integers(I32, 3).elements(0, 5000)
    assert whole.min() < -(1 << 30)
    assert (np.abs(whole) <= 100).sum() > 1000
    assert set(integers(I1, 3).elements(0, 100).tolist()) == {0, 1}
    assert set(between(I32, 3, 6, 1).elements(0, 200).tolist()) == {3, 4, 5}
    assert set(between(I32, 3, 3, 1).elements(0, 9).tolist()) == {3}
    part = between(FP32, -2, -1, 1).elements(0, 100)
    assert ((part >= -2) & (part < -1)).all()


# ---- boxes of tensors -------------------------------------------------------------------------


@st.composite
def _boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Draw the shape of a tensor, where a box of it begins, its extents, and how far rows are."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 600 if axis == rank - 1 else 5)) for axis in range(rank))
    start = tuple(draw(st.integers(-3, size + 2)) for size in shape)
    extents = tuple(draw(st.sampled_from([1, 2, 4, 256])) for _ in shape)
    return shape, start, extents, draw(st.sampled_from([600, 1 << 20]))


@given(_boxes(), st.booleans())
def test_a_box_is_its_elements(
    drawn: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int], is_sparse: bool
) -> None:
    shape, start, extents, row = drawn
    strides = (5 * row, row, 1)[-len(shape) :]
    index = np.indices(extents) + np.reshape(start, (-1, *[1] * len(shape)))
    inside = np.logical_and.reduce(
        [
            (coordinate >= 0) & (coordinate < size)
            for coordinate, size in zip(index, shape, strict=True)
        ]
    )
    value = np.arange(inside.size, dtype=np.float32).reshape(extents)
    whole, one_by_one = (ElasticMemory(1 << 28, is_sparse=is_sparse) for _ in range(2))
    for memory in (whole, one_by_one):
        memory.add_buffer("x", FP32, floats(FP32, 5))
        memory.share_buffer(0)
        memory.begin_program()
    box = Box(TensorAddress(Address(ElasticMemory.address_of(0)), shape, strides), start, extents)
    address = box.tensor.address + 4 * np.tensordot(strides, index, 1).astype(np.int64)
    for offset in (0, 4, 0):
        shifted_box = replace(
            box, tensor=replace(box.tensor, address=Address(box.tensor.address + offset))
        )
        loaded = whole.load_box(shifted_box, FP32)
        assert loaded.tolist() == one_by_one.load(address + offset, inside, FP32).tolist()
        assert whole.crossed == one_by_one.crossed
        whole.store_box(shifted_box, value, FP32)
        one_by_one.store(address + offset, value, inside, FP32)
    pages, size = one_by_one.pages(0), one_by_one.size_bytes(0)
    assert whole.pages(0) == pages
    assert whole.result(0, size, pages).tobytes() == one_by_one.result(0, size, pages).tobytes()
    for left, right in zip(whole.touched(0, pages), one_by_one.touched(0, pages), strict=True):
        assert left.tolist() == right.tolist()
    assert (whole.crossed, whole.rewritten) == (one_by_one.crossed, one_by_one.rewritten)


def test_a_box_beyond_the_memory_is_refused() -> None:
    memory, x = _memory(1 << 16)
    box = Box(TensorAddress(x, (4, 1 << 20), (1 << 20, 1)), (0, 0), (2, 64))
    with pytest.raises(AccessError, match=r"byte 4194556 of x, beyond 65536 bytes"):
        memory.load_box(box, FP32)
    odd = Box(TensorAddress(Address(x + 2), (4,), (1,)), (0,), (4,))
    with pytest.raises(AccessError, match="no multiple of 4 bytes"):
        memory.load_box(odd, FP32)


# ---- sparse and shared buffers ----------------------------------------------------------------

_FAR = 3 << 30


def test_a_sparse_buffer_holds_the_pages_that_are_touched() -> None:
    memory = ElasticMemory(1 << 16, is_sparse=True)
    x = memory.add_buffer("x", FP32, floats(FP32, 5))
    dense, y = _memory()
    indices = [0, 5, 255, 256, 5000]
    assert (
        memory.load(_at(x, *indices), None, FP32).tolist()
        == dense.load(_at(y, *indices), None, FP32).tolist()
    )
    memory.store(_at(x, _FAR), _ONE, None, FP32)
    pages = memory.pages(0)
    assert pages == [4, 5, 4 + 5000 // 256, 4 + _FAR // 256]
    result, before = memory.result(0, 0, pages), memory.initial(0, 0, pages)
    read, written = memory.touched(0, pages)
    assert np.flatnonzero(result != before).min() >= 3 * 1024
    assert np.flatnonzero(written).tolist() == [3 * 1024 + i for i in range(4)]
    assert read.sum() == 4 * len(indices)
    assert memory.load(_at(x, _FAR), None, FP32).tolist() == [1.0]


def test_a_sparse_buffer_is_bounded_by_its_pages() -> None:
    memory = ElasticMemory(1 << 12, is_sparse=True)
    x = memory.add_buffer("x", FP32, floats(FP32, 5))
    with pytest.raises(AccessError, match="touches more than 4096 bytes of x"):
        memory.load(_at(x, *range(0, 8192, 1024)), None, FP32)
    with pytest.raises(AccessError, match="beyond"):
        memory.load(_at(x, 1 << 35), None, FP32)


def _shared() -> tuple[ElasticMemory, Address]:
    memory, x = _memory()
    assert memory.share_buffer(0) == x
    memory.begin_program()
    return memory, x


_FOUR = np.arange(4, dtype=np.float32)


def test_an_element_may_store_where_it_was_loaded() -> None:
    memory, x = _shared()
    memory.load(_at(x, 4, 5, 6, 7), None, FP32)
    memory.store(_at(x, 4, 5, 6, 7), _FOUR, None, FP32)
    memory.load(_at(x, 4, 5, 6, 7), None, FP32)
    assert not memory.crossed
    memory.begin_program()
    memory.load(_at(x, 7, 6, 5, 4), None, FP32)
    assert not memory.crossed


@pytest.mark.parametrize("stored_first", [False, True])
def test_overlapping_elements_are_reported(stored_first: bool) -> None:
    memory, x = _shared()
    aligned, shifted = _at(x, 4, 5, 6, 7), _at(x, 5, 6, 7, 8)
    if stored_first:
        memory.store(aligned, _FOUR, None, FP32)
        memory.load(shifted, None, FP32)
    else:
        memory.load(aligned, None, FP32)
        memory.store(shifted, _FOUR, None, FP32)
    assert memory.crossed == "x"


def test_an_element_loaded_by_two_programs_has_no_owner() -> None:
    memory, x = _shared()
    memory.load(_at(x, 4, 5, 6, 7), None, FP32)
    memory.load(_at(x, 5, 6, 7, 8), None, FP32)
    assert not memory.crossed
    memory.store(_at(x, 5, 6, 7, 8), _FOUR, None, FP32)
    assert memory.crossed == "x"


def test_an_atomic_conflicts_with_a_read_through_an_alias() -> None:
    memory, x = _shared()
    memory.load(_at(x, 4), None, FP32)
    memory.begin_program()
    with memory.atomic():
        memory.load(_at(x, 4), None, FP32)
        memory.store(_at(x, 4), _ONE, None, FP32)
    assert memory.conflict == "program 1 updates what another has read in x"


@pytest.mark.parametrize(("kinds", "conflicts"), [("xor xor", False), ("and xor", True)])
def test_atomics_of_two_kinds_through_two_pointers_conflict(kinds: str, conflicts: bool) -> None:
    memory, x = _shared()
    for kind in kinds.split():
        with memory.atomic("relaxed", kind):
            memory.load(_at(x, 4), None, FP32)
            memory.store(_at(x, 4), _ONE, None, FP32)
    assert ("another kind of atomic" in memory.conflict) == conflicts


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("updated_first", [False, True])
def test_an_atomic_conflicts_with_an_access_through_an_alias(
    updated_first: bool, loads: bool
) -> None:
    """As a gradient summed by programs meets one stored by each of them."""
    memory, x = _shared()

    def update() -> None:
        with memory.atomic("relaxed", "add"):
            memory.load(_at(x, 4), None, FP32)
            memory.store(_at(x, 4), _ONE, None, FP32)

    def access() -> None:
        if loads:
            memory.load(_at(x, 4), None, FP32)
        else:
            memory.store(_at(x, 4), _ONE * 2, None, FP32)

    first, second = (update, access) if updated_first else (access, update)
    first()
    second()
    assert not memory.conflict  # a program's own are in order
    memory.begin_program()
    second()
    assert memory.conflict.startswith("program 1 ")
    assert "what another has" in memory.conflict
