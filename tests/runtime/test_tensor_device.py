"""Devices of tensors, their access, and the stream of a launch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotc.runtime import ArgumentError, Kernel, Library
from tests.support.array_makers import BUFFER, Maker, dlpack
from tests.support.fake_gpu import HOPPER, FakeGpu
from tests.support.gpu_arrays import (
    CPU,
    CUDA,
    CUDA_HOST,
    Content,
    CudaArray,
    DLPackArray,
    ExchangeArray,
    TorchTensor,
    torch,
)

Load = Callable[..., Library]

pytestmark = pytest.mark.usefixtures("frameworks")


# ----------------------------------------------------------------------------- devices, read-only


@pytest.mark.parametrize(
    "array",
    [
        ExchangeArray(BUFFER, device=(CPU, 0)),
        DLPackArray(Content(BUFFER, device=(CPU, 0))),
        TorchTensor(BUFFER, device=-1),
        np.zeros(4, np.float32),
    ],
)
def test_host_tensors(scale: Kernel, array: object) -> None:
    with pytest.raises(
        ArgumentError, match="'x_ptr': expected a tensor on the GPU, got one in host"
    ):
        scale(array, 16, 1.0, 1)


def test_tensors_of_other_devices(scale: Kernel) -> None:
    for array in (
        ExchangeArray(BUFFER, device=(10, 0)),
        DLPackArray(Content(BUFFER, device=(10, 0))),
    ):
        with pytest.raises(ArgumentError, match="DLPack device type 10"):
            scale(array, 16, 1.0, 1)


def test_pinned_memory_is_the_gpus_as_well(scale: Kernel, gpu: FakeGpu) -> None:
    for make in (ExchangeArray, dlpack):
        scale(make(BUFFER, device=(CUDA_HOST, 0)), make(BUFFER), 1.0, 1)
        assert gpu.last().unpack("Q") == (BUFFER,)


class PinnedExchange(ExchangeArray):
    """A tensor of torch in pinned memory, reported as the CPU's by its table."""

    answer: object = True

    def is_pinned(self) -> object:
        if self.answer is None:
            raise RuntimeError("no accelerator")
        return self.answer


class PinnedTensor(TorchTensor):
    answer: object = True

    def is_pinned(self) -> object:
        return PinnedExchange.is_pinned(self)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["exchange", "methods"])
def test_torch_says_whether_host_memory_is_pinned(scale: Kernel, gpu: FakeGpu, layout: str) -> None:
    if layout == "exchange":
        x: PinnedExchange | PinnedTensor = PinnedExchange(BUFFER, device=(CPU, 0))
    else:
        x = PinnedTensor(BUFFER, device=-1)
    scale(x, x, 1.0, 1)
    assert gpu.last().unpack("Q") == (BUFFER,)
    for x.answer in (False, 1, None):
        with pytest.raises(ArgumentError, match="expected a tensor on the GPU, got one in host"):
            scale(x, x, 1.0, 1)


@pytest.fixture
def two_gpus(gpu: FakeGpu) -> FakeGpu:
    gpu.reset(HOPPER, HOPPER)
    gpu.make_current(0)
    return gpu


@pytest.mark.parametrize("make", [ExchangeArray, dlpack])
def test_the_tensors_say_the_device(
    two_gpus: FakeGpu, load: Load, archives: Path, make: Maker
) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    for device in (1, 0, 1):
        x = make(BUFFER, device=(CUDA, device))
        scale(x, x, 1.0, 1)
        assert two_gpus.last().device == device
    scale((BUFFER, "fp32"), BUFFER, 1.0, 1)
    assert two_gpus.last().device == 0  # and the current context is the one it was


def test_torch_tensors_say_device_and_stream(
    two_gpus: FakeGpu, load: Load, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    stream = two_gpus.stream(1)
    x = TorchTensor(BUFFER, device=1)
    for current in (stream, 0):
        monkeypatch.setattr(torch._C, "current", {1: current})
        scale(x, x, 1.0, 1)
        assert (two_gpus.last().device, two_gpus.last().stream) == (1, current)


def test_a_device_without_the_library(two_gpus: FakeGpu, load: Load, archives: Path) -> None:
    library = load(archives / "loader.aotc")
    x = ExchangeArray(BUFFER, device=(CUDA, 1))
    with pytest.raises(ArgumentError, match=r"'x_ptr'.*got one on device 1; call load\(device=1\)"):
        library["scale"](x, 16, 1.0, 1)
    library.load(device=1)
    library["scale"](x, 16, 1.0, 1)
    assert two_gpus.last().device == 1


@pytest.mark.parametrize("count", [2, 4])
def test_a_device_leaves_and_comes_back(
    gpu: FakeGpu, load: Load, archives: Path, count: int
) -> None:
    gpu.reset(*[HOPPER] * count)
    gpu.make_current(0)
    devices = range(count)
    library = load(archives / "loader.aotc", device=devices)
    scale = library["scale"]
    arrays = [ExchangeArray(BUFFER, device=(CUDA, device)) for device in devices]
    for leaving in devices:
        library.unload(leaving)
        assert gpu.retained_contexts == count - 1
        for device, x in enumerate(arrays):
            if device == leaving:
                with pytest.raises(ArgumentError, match=rf"call load\(device={leaving}\)"):
                    scale(x, x, 1.0, 1)
                continue
            scale(x, x, 1.0, 1)
            assert gpu.last().device == device
        library.load(leaving)
        scale(arrays[leaving], arrays[leaving], 1.0, 1)
        assert gpu.last().device == leaving
    library.unload(devices)
    assert (gpu.live_libraries, gpu.retained_contexts) == (0, 0)
    with pytest.raises(ArgumentError, match=f"expected 0 to {count - 1}, got {count}"):
        library.unload(count)
    with pytest.raises(ArgumentError, match="device: expected an ordinal, from 0 on, got str"):
        library.unload("0")  # type: ignore[arg-type]


def test_tensors_on_two_devices(two_gpus: FakeGpu, load: Load, archives: Path) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    x, out = (ExchangeArray(BUFFER, device=(CUDA, device)) for device in (0, 1))
    with pytest.raises(
        ArgumentError, match="'out_ptr': expected a tensor on device 0, as 'x_ptr', got device 1"
    ):
        scale(x, out, 1.0, 1)


def test_a_stream_of_another_device(two_gpus: FakeGpu, load: Load, archives: Path) -> None:
    scale = load(archives / "loader.aotc", device=(0, 1))["scale"]
    x = ExchangeArray(BUFFER, device=(CUDA, 1))
    with pytest.raises(
        ArgumentError, match="'x_ptr': expected a tensor on device 0, as the stream"
    ):
        scale(x, x, 1.0, 1, stream=two_gpus.stream(0))


def test_threads_have_no_context(scale: Kernel, gpu: FakeGpu) -> None:
    """As in a worker thread of a server: the driver has no current context there."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            x = ExchangeArray(BUFFER)
            scale(x, x, 1.0, 1)
            scale((BUFFER, "fp32"), BUFFER, 1.0, 1)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
    assert gpu.launches == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: CudaArray(BUFFER, read_only=True),
        lambda: DLPackArray(Content(BUFFER), flags=1),
    ],
)
def test_read_only_arrays(scale: Kernel, gpu: FakeGpu, make: Maker) -> None:
    scale(make(), BUFFER, 1.0, 1)
    assert gpu.launches == 1
    with pytest.raises(ArgumentError, match="'out_ptr': expected an array that may be written"):
        scale((BUFFER, "fp32"), make(), 1.0, 1)


# ----------------------------------------------------------------------------------------- streams


def test_exchange_launches_on_the_current_stream(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.stream()
    monkeypatch.setattr(ExchangeArray, "current", stream)
    monkeypatch.setattr(ExchangeArray, "asked", 0)
    x = ExchangeArray(BUFFER)
    scale(x, x, 1.0, 1)
    assert gpu.last().stream == stream
    assert ExchangeArray.asked == 1
    scale(x, x, 1.0, 1, stream=0)
    assert gpu.last().stream == 0
    assert ExchangeArray.asked == 1


def test_torch_launches_on_the_current_stream(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.stream()
    monkeypatch.setattr(torch._C, "current", {0: stream})
    x = TorchTensor(BUFFER)
    scale(x, x, 1.0, 1)
    assert gpu.last().stream == stream


def test_cuda_arrays_name_their_stream(scale: Kernel, gpu: FakeGpu) -> None:
    stream = gpu.stream()
    scale(CudaArray(BUFFER, stream=stream), CudaArray(BUFFER, stream=None), 1.0, 1)
    assert gpu.last().stream == stream
    scale(CudaArray(BUFFER, stream=1), CudaArray(BUFFER), 1.0, 1)  # the legacy default stream
    assert gpu.last().stream == 0
    for wrong in ("s", -1, 1 << 64):
        with pytest.raises(ArgumentError, match="an array whose stream is a number"):
            scale(CudaArray(BUFFER, stream=wrong), BUFFER, 1.0, 1)


def test_streams_that_differ_are_the_callers_to_order(scale: Kernel, gpu: FakeGpu) -> None:
    first, second = gpu.stream(), gpu.stream()
    x, out = CudaArray(BUFFER, stream=first), CudaArray(BUFFER, stream=second)
    with pytest.raises(
        ArgumentError, match=f"'out_ptr': expected an array of stream {first:#x}, as"
    ):
        scale(x, out, 1.0, 1)
    scale(x, out, 1.0, 1, stream=second)
    assert gpu.last().stream == second
    # torch's default stream and the number 1 are the same stream.
    scale(ExchangeArray(BUFFER), CudaArray(BUFFER, stream=1), 1.0, 1)
    assert gpu.last().stream == 0


def test_dlpack_is_told_the_stream(
    scale: Kernel, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.stream()
    for flags in (0, None):
        array = DLPackArray(Content(BUFFER), flags=flags)
        scale(array, BUFFER, 1.0, 1)
        scale(array, BUFFER, 1.0, 1, stream=stream)
        # Another argument decides, though it comes later.
        scale(array, CudaArray(BUFFER, stream=stream), 1.0, 1)
        monkeypatch.setattr(ExchangeArray, "current", stream)
        scale(array, ExchangeArray(BUFFER), 1.0, 1)
        assert array.streams == [1, stream, stream, stream]
        assert gpu.last().stream == stream
