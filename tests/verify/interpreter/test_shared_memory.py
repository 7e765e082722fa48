"""Shared memory of the interpreter: placement, overlap, and races between warps."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.layout import LinearLayout
from aotc.verify.interpreter.memory import AccessError
from aotc.verify.interpreter.numerics import Poison
from aotc.verify.interpreter.shared_memory import (
    SharedMemory,
    check_shared_vectors,
    check_vectors,
    places_of,
)

# Four lanes to a warp are enough to tell registers, lanes and warps apart.
BY_ROW = LinearLayout(
    {"register": [(0, 1), (0, 2)], "lane": [(1, 0), (2, 0)], "warp": [(4, 0)]}, (8, 4)
)
BY_COLUMN = LinearLayout(
    {"register": [(1, 0), (2, 0)], "lane": [(4, 0), (0, 1)], "warp": [(0, 2)]}, (8, 4)
)
COPIES = LinearLayout(
    {"register": [(0, 1), (0, 2)], "lane": [(1, 0), (2, 0)], "warp": [(0, 0)]}, (4, 4)
)
ROW_MAJOR = LinearLayout({"offset": [(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)]}, (8, 4))
SWIZZLED = LinearLayout({"offset": [(0, 1), (0, 2), (1, 1), (2, 2), (4, 0)]}, (8, 4))
SMALL = LinearLayout({"offset": [(0, 1), (0, 2), (1, 0), (2, 0)]}, (4, 4))

TILE = np.arange(32, dtype=np.float32).reshape(8, 4)


def test_places_follow_the_layout() -> None:
    placement = places_of(BY_ROW)
    assert placement.elements.shape == (8, 4)
    assert placement.elements[5].tolist() == [20, 21, 22, 23]  # warp 1, lane 1: row 5
    assert placement.warps.tolist() == [0] * 4 + [1] * 4
    assert placement.first.all()


def test_only_the_first_holder_of_an_element_is_first() -> None:
    placement = places_of(COPIES)
    assert np.sort(placement.elements[placement.first]).tolist() == list(range(16))
    assert not placement.first[placement.warps == 1].any()


@pytest.mark.parametrize("buffer", [ROW_MAJOR, SWIZZLED])
@pytest.mark.parametrize("offset_bytes", [-1, 0, 256])
def test_a_store_is_loaded_under_another_layout(buffer: LinearLayout, offset_bytes: int) -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("buffer", buffer, 4, offset_bytes)
    shared.store(addresses, TILE, BY_ROW)
    shared.barrier()
    loaded = shared.load(addresses, TILE.dtype, BY_COLUMN)
    assert (loaded.reshape(TILE.shape) == TILE).all()


def test_fresh_memory_is_poison() -> None:
    first, second = (SharedMemory(Poison(seed)) for seed in (1, 2))
    loaded = [
        s.load(s.place("b", ROW_MAJOR, 4, 0), np.dtype(np.int32), BY_ROW) for s in (first, second)
    ]
    assert (loaded[0] != loaded[1]).any()


def test_buffers_that_overlap_share_bytes() -> None:
    shared = SharedMemory(Poison(0))
    low = shared.place("low", ROW_MAJOR, 4, 0)
    high = shared.place("high", ROW_MAJOR, 4, 64)
    shared.store(low, TILE, BY_ROW)
    shared.barrier()
    shared.store(high, -TILE, BY_ROW)
    shared.barrier()
    loaded = shared.load(low, TILE.dtype, BY_ROW).reshape(TILE.shape)
    assert (loaded[:4] == TILE[:4]).all()
    assert (loaded[4:] == -TILE[:4]).all()


def test_a_buffer_without_an_offset_overlaps_none_and_keeps_its_place() -> None:
    shared = SharedMemory(Poison(0))
    placed = shared.place("placed", ROW_MAJOR, 4, 0)
    first, second = (shared.place(name, ROW_MAJOR, 4, -1) for name in ("one", "two"))
    ranges = [set(addresses.tolist()) for addresses in (placed, first, second)]
    assert not ranges[0] & ranges[1]
    assert not ranges[1] & ranges[2]
    assert (shared.place("one", ROW_MAJOR, 4, -1) == first).all()


def test_a_remote_store_may_precede_the_receivers_allocation() -> None:
    sender, receiver = SharedMemory(Poison(0)), SharedMemory(Poison(0))
    receiver.join(sender)
    sender.place("first", SMALL, 4, -1)
    address = int(sender.place("buffer", SMALL, 4, -1)[3])
    transfer = receiver.start_remote(address, np.array(7, np.int32))
    receiver.land(transfer)
    receiver.store_remote(address + 4, np.array(8, np.int32))
    receiver.barrier()
    # It keeps its address in the sending CTA, even after later allocations.
    receiver.place("first", SMALL, 4, -1)
    addresses = receiver.place("buffer", SMALL, 4, -1)
    assert int(addresses[3]) == address
    assert receiver.load(addresses, np.dtype(np.int32), COPIES)[3:5].tolist() == [7, 8]


def test_reading_another_warps_writes_needs_a_barrier() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.store(addresses, TILE, BY_ROW)
    shared.load(addresses, TILE.dtype, BY_ROW)  # each warp its own: no race
    with pytest.raises(AccessError, match="warp 0 touches shared byte .* warp 1 touched"):
        shared.load(addresses, TILE.dtype, BY_COLUMN)


def test_overwriting_another_warps_reads_needs_a_barrier() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.load(addresses, TILE.dtype, BY_ROW)
    with pytest.raises(AccessError, match="since the last barrier"):
        shared.store(addresses, TILE, BY_COLUMN)
    shared.barrier()
    shared.store(addresses, TILE, BY_COLUMN)


def test_overwriting_another_warps_writes_needs_a_barrier() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.store(addresses, TILE, BY_ROW)
    shared.store(addresses, TILE, BY_ROW)
    with pytest.raises(AccessError, match="since the last barrier"):
        shared.store(addresses, TILE, BY_COLUMN)


def test_copies_are_written_once_and_read_by_all() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", SMALL, 4, 0)
    shared.store(addresses, TILE[:4], COPIES)
    with pytest.raises(AccessError, match="warp 1 touches shared byte 0, which warp 0"):
        shared.load(addresses, TILE.dtype, COPIES)
    shared.barrier()
    shared.load(addresses, TILE.dtype, COPIES)


# ---- vectors ----------------------------------------------------------------------------------

_ADDRESS = 4 * np.arange(32)


def test_vectors_along_registers() -> None:
    check_vectors(_ADDRESS, None, BY_ROW, 4, 4)
    check_vectors(_ADDRESS + 8, None, BY_ROW, 2, 4)
    check_vectors(_ADDRESS + 3, None, BY_COLUMN, 1, 4)  # one element at a time: no claim


@pytest.mark.parametrize(
    ("addresses", "layout", "vector", "message"),
    [
        (_ADDRESS, BY_COLUMN, 2, "not consecutive"),
        (_ADDRESS[::-1], BY_ROW, 2, "not consecutive"),
        (_ADDRESS + 4, BY_ROW, 2, "not aligned"),
        (_ADDRESS + 8, BY_ROW, 4, "not aligned"),
    ],
)
def test_false_claims_of_vectors(
    addresses: np.ndarray, layout: LinearLayout, vector: int, message: str
) -> None:
    with pytest.raises(AccessError, match=message):
        check_vectors(addresses, None, layout, vector, 4)


def test_a_vector_has_one_mask_value() -> None:
    mask = np.arange(32) < 30
    check_vectors(_ADDRESS, mask, BY_ROW, 2, 4)
    with pytest.raises(AccessError, match="masks differ"):
        check_vectors(_ADDRESS, mask, BY_ROW, 4, 4)


def test_shared_vectors_may_lie_in_any_registers() -> None:
    check_shared_vectors(_ADDRESS, BY_ROW, 4, 4)
    turned = LinearLayout(
        {"register": [(1, 0), (0, 1), (0, 2)], "lane": [(2, 0), (0, 0)], "warp": [(4, 0)]}, (8, 4)
    )
    check_shared_vectors(_ADDRESS, turned, 4, 4)
    check_shared_vectors(_ADDRESS + 4, BY_COLUMN, 1, 4)


@pytest.mark.parametrize(("addresses", "layout"), [(_ADDRESS, BY_COLUMN), (_ADDRESS + 4, BY_ROW)])
def test_shared_vectors_split_between_threads(addresses: np.ndarray, layout: LinearLayout) -> None:
    with pytest.raises(AccessError, match="holds a part of the 2 elements at shared byte"):
        check_shared_vectors(addresses, layout, 2, 4)


def test_masked_off_vectors_claim_nothing() -> None:
    addresses = np.where(np.arange(32) < 28, _ADDRESS, 7)
    check_vectors(addresses, np.arange(32) < 28, BY_ROW, 4, 4)


def test_a_copy_lands_at_the_wait_that_covers_it() -> None:
    shared = SharedMemory(Poison(0))
    first, second = (
        shared.place(name, ROW_MAJOR, 4, offset) for name, offset in (("a", 0), ("b", 128))
    )
    for addresses, value in ((first, TILE), (second, -TILE)):
        shared.copy(addresses, value, BY_ROW)
        shared.commit()
    shared.wait(1)
    shared.barrier()
    assert (shared.load(first, TILE.dtype, BY_COLUMN).reshape(TILE.shape) == TILE).all()
    with pytest.raises(AccessError, match="byte 128, where an asynchronous copy has not landed"):
        shared.load(second, TILE.dtype, BY_ROW)
    shared.wait(0)
    shared.barrier()
    assert (shared.load(second, TILE.dtype, BY_COLUMN).reshape(TILE.shape) == -TILE).all()


def test_a_copy_of_no_group_is_not_waited_for() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.copy(addresses, TILE, BY_ROW)
    shared.wait(0)
    with pytest.raises(AccessError, match="has not landed"):
        shared.store(addresses, TILE, BY_ROW)


def test_a_barrier_does_not_make_copies_land() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.copy(addresses, TILE, BY_ROW)
    shared.commit()
    shared.barrier()
    with pytest.raises(AccessError, match="has not landed"):
        shared.copy(addresses, TILE, BY_ROW)


def test_another_warps_copy_needs_a_barrier_after_the_wait() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.copy(addresses, TILE, BY_ROW)
    shared.commit()
    shared.wait(0)
    shared.load(addresses, TILE.dtype, BY_ROW)  # each warp its own: no race
    with pytest.raises(AccessError, match="since the last barrier"):
        shared.load(addresses, TILE.dtype, BY_COLUMN)


def test_copying_over_another_warps_reads_needs_a_barrier() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("b", ROW_MAJOR, 4, 0)
    shared.load(addresses, TILE.dtype, BY_COLUMN)
    with pytest.raises(AccessError, match="since the last barrier"):
        shared.copy(addresses, TILE, BY_ROW)


def test_slots_follow_each_other() -> None:
    shared = SharedMemory(Poison(0))
    first = shared.place("slots", ROW_MAJOR, 4, -1, total_bytes=3 * TILE.nbytes)
    other = shared.place("other", ROW_MAJOR, 4, -1)
    assert other.min() >= first.max() + 4 + 2 * 128


@pytest.mark.parametrize("touch", ["store", "load", "product", "tensor store", "copy"])
def test_a_producer_writes_only_after_known_accesses(touch: str) -> None:
    """The others' barrier tells it nothing; a mark it receives covers all earlier accesses."""
    shared = SharedMemory(Poison(0))
    addresses = shared.place("buffer", ROW_MAJOR, 4, 0)
    early = shared.mark()
    if touch == "store":
        shared.store(addresses, TILE, BY_ROW)
    elif touch == "load":
        shared.load(addresses, TILE.dtype, BY_ROW)
    elif touch == "product":
        shared.finish_read(shared.start_read(addresses, TILE.dtype)[0])
    elif touch == "tensor store":
        shared.finish_drain(shared.start_drain(addresses, TILE.dtype)[0])
    else:
        shared.copy(addresses, TILE, BY_ROW)
        shared.commit()
        shared.wait(0)
    late = shared.mark()
    shared.barrier(for_producer=False)
    for clock in (early, late):
        shared.learn(clock)
        if clock == late:
            shared.land(shared.start_fill(addresses, TILE, in_order=False))
        else:
            with pytest.raises(AccessError, match="other warps touched and did not say"):
                shared.start_fill(addresses, TILE, in_order=False)
    assert (shared.load(addresses, TILE.dtype, BY_ROW).reshape(TILE.shape) == TILE).all()


def test_a_producer_must_not_touch_copies_in_flight() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("buffer", ROW_MAJOR, 4, 0)
    shared.start_fill(addresses, TILE, in_order=False)
    with pytest.raises(AccessError, match="has not landed"):
        shared.start_fill(addresses, TILE, in_order=False)


def test_a_barrier_of_the_block_is_the_producers_too() -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("buffer", ROW_MAJOR, 4, 0)
    shared.store(addresses, TILE, BY_ROW)
    shared.barrier()
    shared.start_fill(addresses, TILE, in_order=False)


# ---- groups of warps --------------------------------------------------------------------------


def test_a_barrier_orders_its_groups_accesses() -> None:
    shared = SharedMemory(Poison(0))
    ours, theirs = (shared.place(name, ROW_MAJOR, 4, -1) for name in ("ours", "theirs"))
    for group, addresses in enumerate((ours, theirs)):
        shared.run_group(group, 4)
        shared.store(addresses, TILE, BY_ROW)
    shared.run_group(0, 4)
    shared.barrier(for_producer=False)
    shared.load(ours, TILE.dtype, BY_COLUMN)
    shared.run_group(1, 4)
    with pytest.raises(AccessError, match="in warp 4 touches .*, which warp 5 touched"):
        shared.load(theirs, TILE.dtype, BY_COLUMN)


@pytest.mark.parametrize("first", ["store", "load", "drain"])
def test_no_barrier_orders_two_groups(first: str) -> None:
    shared = SharedMemory(Poison(0))
    addresses = shared.place("buffer", ROW_MAJOR, 4, 0)
    shared.run_group(1, 4)
    if first == "store":
        shared.store(addresses, TILE, BY_ROW)
    elif first == "load":
        shared.load(addresses, TILE.dtype, BY_ROW)
    else:
        shared.finish_drain(shared.start_drain(addresses, TILE.dtype)[0])
    shared.run_group(0, 4)
    shared.barrier(for_producer=False)
    with pytest.raises(AccessError, match="in warp 0 touches .*, which warp 4 touched"):
        shared.store(addresses, TILE, BY_ROW)


def test_a_group_waits_for_copies_of_its_own() -> None:
    shared = SharedMemory(Poison(0))
    buffers = [shared.place(name, ROW_MAJOR, 4, -1) for name in ("first", "second")]
    for group, addresses in enumerate(buffers):
        shared.run_group(group, 4)
        shared.copy(addresses, TILE, BY_ROW)
        shared.commit()
    shared.wait(0)
    shared.load(buffers[1], TILE.dtype, BY_ROW)
    shared.run_group(0, 4)
    with pytest.raises(AccessError, match="has not landed"):
        shared.load(buffers[0], TILE.dtype, BY_ROW)
    shared.wait(0)
    shared.load(buffers[0], TILE.dtype, BY_ROW)


def test_a_mark_covers_its_groups_accesses() -> None:
    """Another group's earlier accesses may still be running, as far as the producer knows."""
    shared = SharedMemory(Poison(0))
    addresses = shared.place("buffer", ROW_MAJOR, 4, 0)
    other = shared.place("other", ROW_MAJOR, 4, 1024)
    marks: list[int] = []
    for group, touched in ((1, addresses), (0, other)):
        shared.run_group(group, 4)
        shared.load(touched, TILE.dtype, BY_ROW)
        marks.append(shared.mark())
    shared.learn(marks[1])
    with pytest.raises(AccessError, match="did not say"):
        shared.start_fill(addresses, TILE, in_order=False)
    shared.learn(marks[0])
    shared.start_fill(addresses, TILE, in_order=False)
