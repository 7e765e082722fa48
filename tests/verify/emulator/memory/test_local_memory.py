"""Local memory of threads."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.local_memory import LOCAL_BASE_ADDRESS, LocalMemory


def refused(kind, call, *args, lane):
    with pytest.raises(Misuse) as caught:
        call(*args)
    assert (caught.value.kind, caught.value.lane) == (kind, lane)


def test_each_lane_has_its_own():
    memory = LocalMemory(4, 16)
    lanes = np.array([0, 3])
    address = np.array([LOCAL_BASE_ADDRESS + 4, LOCAL_BASE_ADDRESS + 8])
    data = np.random.default_rng(0).integers(0, 256, (2, 4), dtype=np.uint8)
    memory.write(lanes, address, data)
    assert (memory.read(lanes, address, 4) == data).all()
    refused("uninitialised", memory.read, lanes, address[::-1], 4, lane=0)
    refused("uninitialised", memory.read, slice(3, 4), np.array([LOCAL_BASE_ADDRESS]), 16, lane=3)


@pytest.mark.parametrize("byte", [-4, 16])
def test_ends(byte):
    memory = LocalMemory(2, 16)
    address = np.array([LOCAL_BASE_ADDRESS + byte])
    refused("bounds", memory.write, slice(1, 2), address, np.zeros((1, 4), np.uint8), lane=1)


def test_misaligned():
    memory = LocalMemory(1, 16)
    refused("misaligned", memory.read, slice(0, 1), np.array([LOCAL_BASE_ADDRESS + 2]), 4, lane=0)
