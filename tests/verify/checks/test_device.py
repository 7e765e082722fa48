"""Buffers on a GPU: round trips, the guard behind them, and a missing GPU."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from aotc.verify.checks.check import ExecutionFault, Unsuited
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.device import DeviceBuffers, Driver, NoDeviceError, NoRoomError
from aotc.verify.checks.inputs import Inputs
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import Reference, interpret
from aotc.verify.interpreter.numerics import Array
from tests.support.verify_subjects import kernel_of


class _HostDriver:
    """A driver with host memory as device memory, limited to so many allocations."""

    def __init__(self, max_allocations: int = 8) -> None:
        self.held: dict[int, Array] = {}
        self.max_allocations = max_allocations

    def allocate(self, size_bytes: int) -> int:
        if len(self.held) == self.max_allocations:
            raise NoRoomError
        address = (len(self.held) + 1) << 20
        self.held[address] = np.zeros(size_bytes, np.uint8)
        return address

    def free(self, address: int) -> None:
        del self.held[address]

    def write(self, address: int, content: Array) -> None:
        base = address >> 20 << 20
        self.held[base][address - base :][: content.size] = content

    def read(self, address: int, size_bytes: int) -> Array:
        base = address >> 20 << 20
        return self.held[base][address - base :][:size_bytes].copy()


@pytest.fixture
def reference() -> Reference:
    kernel = kernel_of("crowd")
    launch = Launch("over", {"n": 3}, (1,), 1, 4, misaligned=True)
    return interpret(kernel, roles_of(kernel, {}, is_inexact), launch, Inputs())


def test_buffers_go_there_and_back(reference: Reference) -> None:
    driver = _HostDriver()
    with DeviceBuffers(driver, reference) as buffers:  # type: ignore[arg-type]
        out = reference.buffers["out_ptr"]
        assert buffers.pointer(out) % 256 == 4
        driver.held[1 << 20][out.start_bytes] = 77
        back = buffers.fetch()["out_ptr"]
        assert back.size == out.initial.size
        assert np.flatnonzero(back != out.initial).tolist() == [out.start_bytes]
    assert driver.held == {}


def test_a_write_behind_the_buffer_is_found(reference: Reference) -> None:
    driver = _HostDriver()
    out = reference.buffers["out_ptr"]
    with DeviceBuffers(driver, reference) as buffers:  # type: ignore[arg-type]
        driver.held[1 << 20][out.initial.size + 8] = 0
        with pytest.raises(ExecutionFault, match="writes byte 20 of out_ptr, beyond all"):
            buffers.fetch()


def test_allocations_are_freed_if_buffers_do_not_fit() -> None:
    kernel = kernel_of("sum_rows")
    launch = Launch("over", {"stride": 32, "n_cols": 17}, (2,), 1, 4, misaligned=False)
    rows = interpret(kernel, roles_of(kernel, {}, is_inexact), launch, Inputs())
    driver = _HostDriver(max_allocations=1)
    with pytest.raises(Unsuited, match=r"^its buffers take 0\.0 GiB, which the GPU does not have"):
        DeviceBuffers(driver, rows).__enter__()  # type: ignore[arg-type]
    assert driver.held == {}


def test_running_out_of_device_memory_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    results = types.SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_OUT_OF_MEMORY=2)
    bindings = types.SimpleNamespace(
        CUresult=results,
        cuInit=lambda _flags: (0,),
        cuDeviceGet=lambda ordinal: (0, ordinal),
        cuDevicePrimaryCtxRetain=lambda _device: (0, 1),
        cuCtxSetCurrent=lambda _context: (0,),
        cuMemAlloc=lambda size: (2, 0) if size > 1024 else (0, 4096),
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    driver = Driver()
    assert driver.allocate(1024) == 4096
    with pytest.raises(NoRoomError):
        driver.allocate(1025)


def test_without_bindings_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)  # as if it was not installed
    with pytest.raises(NoDeviceError, match="^no cuda-python$") as raised:
        Driver()
    assert raised.value.remedy == "pip install 'aotc[device]' brings it"


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(flags: int) -> object:
        raise RuntimeError(f"libcuda.so.1 was not found, {flags=}")

    bindings = types.SimpleNamespace(cuInit=no_library)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    with pytest.raises(
        NoDeviceError, match=r"^no CUDA driver: libcuda\.so\.1 was not found"
    ) as raised:
        Driver()
    assert not raised.value.remedy
