"""Devices, streams and graphs of the fake driver, and the current ones of a thread."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import device as Device  # noqa: N812

TOTAL_BYTES = 80 << 30
driver = ctypes.CDLL("libcuda.so.1")  # the driver found by the loader
driver.fake_cuda_launches.restype = ctypes.c_ulong
driver.fake_cuda_violation.restype = ctypes.c_char_p
driver.fake_cuda_retain_primary.restype = ctypes.c_void_p
driver.fake_cuda_create_stream.restype = ctypes.c_void_p


@atexit.register
def _report() -> None:
    violation = driver.fake_cuda_violation()
    sys.stderr.write(
        f"launches: {driver.fake_cuda_launches()},"
        f" live libraries: {driver.fake_cuda_live_libraries()},"
        f" violation: {violation.decode() if violation else 'none'}\n"
    )


class _Thread(threading.local):
    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, int] = {}
        self.captured: CUDAGraph | None = None


_thread = _Thread()


@lru_cache
def _context(ordinal: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(driver.fake_cuda_retain_primary(ordinal))


def _make_current(ordinal: int) -> None:
    _thread.device = ordinal
    driver.fake_cuda_set_current(_context(ordinal))


def device_count() -> int:
    return driver.fake_cuda_device_count()


def current_stream(ordinal: int) -> int:
    """Return the handle of this thread's current stream of a device, 0 for the default stream."""
    return _thread.streams.get(ordinal, 0)


def synchronize(device: Device) -> None:
    """Everything happens at once."""


def mem_get_info(device: Device) -> tuple[int, int]:
    """Return the free and the total bytes of a device."""
    from . import Tensor

    alive = [tensor for tensor in Tensor.alive.values() if tensor.device == device]
    return TOTAL_BYTES - sum(tensor.values.nbytes for tensor in alive), TOTAL_BYTES


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.cuda_stream = driver.fake_cuda_create_stream(_context(device.index))


@contextlib.contextmanager
def device(where: Device) -> Iterator[None]:
    before = _thread.device
    _make_current(where.index)
    yield
    _make_current(before)


@contextlib.contextmanager
def stream(current: Stream) -> Iterator[None]:
    ordinal = current.device.index
    before = current_stream(ordinal)
    _thread.streams[ordinal] = current.cuda_stream
    with device(current.device):
        yield
    _thread.streams[ordinal] = before


_stream = stream


class CUDAGraph:
    """Launches of one stream."""

    def __init__(self) -> None:
        self.stream = 0
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for launch in self.launches:
            launch()


@contextlib.contextmanager
def graph(captured: CUDAGraph, stream: Stream) -> Iterator[None]:
    """Capture in the global mode: an unsafe call is a violation in every thread."""
    captured.stream = stream.cuda_stream
    _thread.captured = captured
    driver.fake_cuda_begin_capture()
    with _stream(stream):
        yield
    _thread.captured = None
    if not driver.fake_cuda_end_capture():
        raise RuntimeError("the capture was invalidated")


def captured_graph(stream: int) -> CUDAGraph | None:
    """Return the graph of this thread's stream capture."""
    graph = _thread.captured
    return graph if graph is not None and graph.stream == stream else None
