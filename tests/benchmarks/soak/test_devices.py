"""Memory kept for the next launch: fitting sizes are used again, up to a limit."""

from __future__ import annotations

import pytest

from aotc.verify.checks.device import NoRoomError
from benchmarks.calibration.gpu import Gpu
from benchmarks.soak import devices
from benchmarks.soak.devices import ReusingGpu, rounded_size

_ROOM = 64 << 30


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Return the allocated sizes by address on a fake GPU."""
    sizes: dict[int, int] = {}
    addresses = iter(range(1 << 32, 1 << 62, 1 << 40))

    def allocate(_self: Gpu, size_bytes: int) -> int:
        if sum(sizes.values()) + size_bytes > _ROOM:
            raise NoRoomError
        address = next(addresses)
        sizes[address] = size_bytes
        return address

    monkeypatch.setattr(Gpu, "__init__", lambda _self: None)
    monkeypatch.setattr(Gpu, "allocate", allocate)
    monkeypatch.setattr(Gpu, "free", lambda _self, address: sizes.pop(address))
    return sizes


@pytest.mark.parametrize(
    "size", [0, 1, 4095, 4096, 4097, 65_536, 65_537, 1_000_003, (1 << 31) - 1, 1 << 31, 3 << 30]
)
def test_sizes_are_rounded_up_by_at_most_an_eighth(size: int) -> None:
    rounded = rounded_size(size)
    assert max(size, 1) <= rounded <= max(size + size // 8 + 1, size + 4096)
    assert rounded % 4096 == 0
    assert rounded_size(rounded) == rounded


def test_memory_of_about_the_size_is_used_again(allocated: dict[int, int]) -> None:
    gpu = ReusingGpu()
    first = gpu.allocate(1_000_000)
    other = gpu.allocate(1_000_000)
    gpu.free(first)
    assert gpu.allocate(1_000_100) == first
    assert gpu.allocate(300) not in (first, other)
    assert len(allocated) == 3


def test_no_more_than_the_limit_is_kept_and_the_newest_sizes_are(allocated: dict[int, int]) -> None:
    gpu = ReusingGpu(num_processes=4)
    small = gpu.allocate(5000)
    gpu.free(small)
    large = [gpu.allocate(2 << 30), gpu.allocate(2 << 30), gpu.allocate(2 << 30)]
    for address in large[:2]:
        gpu.free(address)
    assert set(allocated) == {*large}  # the small one was kept for longest
    gpu.free(large[2])
    assert sum(allocated.values()) <= 4 << 30
    # An allocation over the whole limit is freed at once.
    huge = gpu.allocate((5 << 30) + 1)
    assert allocated[huge] == (5 << 30) + 1
    gpu.free(huge)
    assert huge not in allocated


def test_what_is_kept_makes_room_and_others_are_waited_for(
    allocated: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = ReusingGpu(num_processes=2)
    spare = gpu.allocate(8 << 30)
    gpu.free(spare)
    assert gpu.allocate(60 << 30) in allocated
    assert spare not in allocated
    allocated[1] = 10 << 30  # another process's
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        allocated.pop(1, None)
        allocated.pop(next(iter(allocated)))

    monkeypatch.setattr(devices.time, "sleep", sleep)
    assert gpu.allocate(30 << 30) in allocated
    assert len(waited) == 1
    monkeypatch.setattr(devices, "_ROOM_SECONDS", 0.0)
    with pytest.raises(NoRoomError):
        gpu.allocate(60 << 30)
