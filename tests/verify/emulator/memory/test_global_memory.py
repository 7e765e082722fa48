"""Global memory against NumPy arrays."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.global_memory import GlobalMemory


def random_bytes(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def refused(kind, call, *args, lane=None, **options):
    with pytest.raises(Misuse) as caught:
        call(*args, **options)
    assert caught.value.kind == kind
    if lane is not None:
        assert caught.value.lane == lane
    return caught.value.message


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_reads_and_writes_by_address(size):
    array = random_bytes(size * 37)
    before = array.reshape(37, size).copy()
    memory = GlobalMemory()
    base = memory.add("x", array)
    index = np.random.default_rng(size).permutation(37)[:20]
    address = base + index * size
    assert (memory.read(address, size) == before[index]).all()
    data = random_bytes(20 * size, 1).reshape(20, size)
    memory.write(address, data)
    before[index] = data
    assert (array.reshape(37, size) == before).all()


def test_an_array_that_is_passed_twice_needs_no_masks():
    """A sparse array of gigabytes must not be filled."""
    array = random_bytes(64)
    memory = GlobalMemory()
    assert memory.add("x", array) == memory.add("map of x", array)
    assert memory._buffers[0].may_read.size == 0
    memory.add("part of x", array[16:32])
    assert (
        memory.read(np.array([memory._buffers[0].base + 60]), 4).tobytes() == array[60:].tobytes()
    )


def test_several_buffers_at_once():
    first, second = random_bytes(16), random_bytes(16, 1)
    memory = GlobalMemory()
    first_base, two = memory.add("first", first), memory.add("second", second)
    address = np.array([first_base, two + 4, first_base + 12])
    data = memory.read(address, 4)
    assert data.tobytes() == first[:4].tobytes() + second[4:8].tobytes() + first[12:].tobytes()
    memory.write(address, data[::-1])
    assert first[:4].tobytes() == data[2].tobytes()
    assert second[4:8].tobytes() == data[1].tobytes()


def test_an_empty_access():
    assert GlobalMemory().read(np.empty(0, np.int64), 4).shape == (0, 4)


@pytest.mark.parametrize("byte", [-4, 16, 1 << 33, -(1 << 33)])
def test_outside_names_the_buffer_and_the_lane(byte):
    memory = GlobalMemory()
    memory.add("other", np.zeros(64, np.uint8))
    base = memory.add("x", np.zeros(16, np.uint8))
    message = refused(
        "bounds", memory.read, np.array([base, base + byte]), 4, np.array([7, 9]), lane=9
    )
    assert f"byte {byte} of x (16 bytes)" in message


def test_last_bytes_of_a_buffer():
    memory = GlobalMemory()
    base = memory.add("x", np.arange(7, dtype=np.uint8))
    assert memory.read(np.array([base + 6]), 1)[0, 0] == 6
    refused("bounds", memory.read, np.array([base + 4]), 4)


@pytest.mark.parametrize("address", [0, 4096, -8])
def test_address_of_no_buffer(address):
    memory = GlobalMemory()
    memory.add("x", np.zeros(16, np.uint8))
    assert "in no buffer" in refused("bounds", memory.read, np.array([address]), 4)


def test_misaligned():
    memory = GlobalMemory()
    base = memory.add("x", np.zeros(64, np.uint8))
    address = np.array([base, base + 2])
    assert "multiple of 4" in refused("misaligned", memory.read, address, 4, slice(3, 5), lane=4)


def test_empty_array_has_an_address_and_no_bytes():
    memory = GlobalMemory()
    base = memory.add("x", np.zeros(0, np.float32))
    refused("bounds", memory.read, np.array([base]), 1)


def test_an_empty_view_of_memory_opens_none_of_it():
    owner = random_bytes(16).copy()
    memory = GlobalMemory()
    base = memory.add("x", owner[8:8])
    refused("bounds", memory.read, np.array([base]), 1)


def test_a_pointer_into_an_array_has_bytes_before_it():
    owner = random_bytes(16).copy()
    memory = GlobalMemory()
    readable = np.arange(16) >= 4
    pointer = memory.add("x", owner, readable, readable, 8)
    assert (memory.read(np.array([pointer - 4]), 4)[0] == owner[4:8]).all()
    assert "byte -8 of x" in refused("bounds", memory.read, np.array([pointer - 8]), 4)
    assert "byte 8 of x" in refused("bounds", memory.read, np.array([pointer + 8]), 4)


def test_views_share_bytes_and_each_opens_its_own():
    owner = random_bytes(64)
    memory = GlobalMemory()
    low = memory.add("low", owner[:8])
    refused("bounds", memory.read, np.array([low + 8]), 1)
    high = memory.add("high", owner[32:40])
    assert high - low == 32
    memory.write(np.array([high]), np.full((1, 8), 7, np.uint8))
    assert (owner[32:40] == 7).all()
    assert (memory.read(np.array([low]), 8)[0] == owner[:8]).all()
    assert "low/high" in refused("bounds", memory.read, np.array([low + 8]), 1)


def test_sliced_view_is_misaligned_as_it_lies():
    owner = np.zeros(64, np.uint8)
    memory = GlobalMemory()
    refused("misaligned", memory.read, np.array([memory.add("x", owner[3:])]), 4)


def test_reversed_view_starts_at_its_end():
    owner = np.arange(8, dtype=np.uint8)
    memory = GlobalMemory()
    base = memory.add("x", owner[::-1])
    assert memory.read(np.array([base, base - 7]), 1).tolist() == [[7], [0]]
    refused("bounds", memory.read, np.array([base + 1]), 1)


def test_read_only():
    array = np.arange(4, dtype=np.uint32)
    array.flags.writeable = False
    memory = GlobalMemory()
    base = memory.add("x", array)
    assert memory.read(np.array([base + 4]), 4).view(np.uint32)[0, 0] == 1
    refused("read-only", memory.write, np.array([base]), np.zeros((1, 4), np.uint8))
    assert array[0] == 0


def test_masks_select_accessible_elements():
    array = np.zeros((4, 6), np.uint32)[:, :5]
    readable = np.zeros((4, 5), bool)
    readable[1, 2] = True
    memory = GlobalMemory()
    base = memory.add("x", array, readable=readable, writable=readable.T[:1].T)
    address = base + (1 * 6 + 2) * 4
    assert memory.read(np.array([address]), 4).shape == (1, 4)
    refused("bounds", memory.read, np.array([address + 4]), 4)
    refused("bounds", memory.read, np.array([address]), 8)
    refused("read-only", memory.write, np.array([address]), np.zeros((1, 4), np.uint8))


def test_gaps_of_strides_are_open_without_masks_and_shut_with():
    owner = np.zeros((4, 6), np.uint32)
    gap = np.array([5 * 4])
    memory = GlobalMemory()
    assert memory.read(memory.add("x", owner[:, :5]) + gap, 4).shape == (1, 4)
    memory = GlobalMemory()
    base = memory.add("x", owner[:, :5], readable=np.True_)
    refused("bounds", memory.read, base + gap, 4)


def test_different_values_at_one_address_are_reported_and_equal_ones_not():
    memory = GlobalMemory()
    base = memory.add("x", np.zeros(16, np.uint8))
    address = np.array([base, base + 4, base])
    same = np.array([[1, 2, 3, 4], [9, 9, 9, 9], [1, 2, 3, 4]], np.uint8)
    memory.write(address, same)
    memory.check_stored(address, same)
    same[2, 3] = 5
    memory.write(address, same)
    refused("race", memory.check_stored, address, same, slice(0, 3), lane=0)


def test_update_takes_turns():
    array = np.array([10, 20], np.uint32)
    memory = GlobalMemory()
    base = memory.add("x", array)
    amount = np.array([1, 2, 4, 8], np.uint32)
    old = memory.update(
        base + np.array([0, 4, 0, 0]), 4, lambda cells, positions: cells + amount[positions]
    )
    assert old.tolist() == [10, 20, 11, 15]
    assert array.tolist() == [23, 22]


def test_owner_with_gaps_is_refused():
    array = np.ndarray((2, 2), np.uint8, bytearray(8), strides=(4, 1))
    with pytest.raises(ValueError, match="contiguous"):
        GlobalMemory().add("x", array)
