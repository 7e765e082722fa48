"""A launch on the fake driver, with memory on the host: contents, resets, times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aotc import runtime
from aotc.package.archive.file import decode
from aotc.package.tuning.shapes import Launch
from aotc.tuning.buffers import BufferPlan, described_buffers
from aotc.tuning.device_launch import DeviceLaunch
from aotc.tuning.gpu import Gpu, NoGpuError
from aotc.verify.checks.contents import HEAD_BYTES
from tests.support.fake_gpu import build
from tests.support.tuned_archive import scale_archive


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("fake_cuda")))


@pytest.fixture
def gpu(driver: str, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setenv("FAKE_CUDA_KERNELS", "scale_0_=12;scale_1_=wrong;scale_2_=30")
    return Gpu(driver)


def launch(n: int) -> Launch:
    return Launch("scale", {}, {}, {"n": n}, sizes={"out_ptr": n, "x_ptr": n})


@pytest.fixture
def library(driver: str, gpu: Gpu) -> Iterator[runtime.Library]:
    del gpu  # its context is current
    with runtime.load(scale_archive(), device=0, driver=driver) as opened:
        yield opened


def opened(gpu: Gpu, library: runtime.Library, n: int) -> tuple[DeviceLaunch, list[BufferPlan]]:
    (kernel,) = decode(scale_archive()).kernels
    plans = list(described_buffers(launch(n), kernel, seed=9))
    return DeviceLaunch(gpu, library, kernel, launch(n)).fill(plans), plans


@pytest.mark.parametrize("n", [1, 1031, (1 << 20) + 5, (1 << 21) + 77])
def test_buffers_hold_what_is_planned(gpu: Gpu, library: runtime.Library, n: int) -> None:
    launch, (_, x) = opened(gpu, library, n)
    with launch:
        address = launch.addresses["x_ptr"]
        values = np.frombuffer(gpu.read(address, x.room_bytes).tobytes(), np.float32)
        period = (1 << 20) - 3
        expected = x.contents.elements(0, min(values.size, period))
        assert np.array_equal(values[:period], expected)
        assert np.array_equal(values[period:], values[: max(0, values.size - period)])
    assert x.room_bytes == HEAD_BYTES + 4 * n


def test_outputs_are_of_fresh_buffers(gpu: Gpu, library: runtime.Library) -> None:
    launch, _ = opened(gpu, library, 100)
    with launch:
        (first,) = launch.outputs(0)
        (wrong,) = launch.outputs(1)
        (again,) = launch.outputs(0)
    assert (first.name, first.element, first.content.size) == ("out_ptr", "fp32", 400)
    assert np.array_equal(first.content, again.content)
    differ = np.flatnonzero(first.content != wrong.content)
    assert differ.size
    assert differ.max() < 64  # the fake's kernel writes less


def test_large_outputs_are_sampled_at_their_ends_and_between(
    gpu: Gpu, library: runtime.Library
) -> None:
    n = 1 << 20
    launch, (out, _) = opened(gpu, library, n)
    with launch:
        (output,) = launch.outputs(3)
        address = launch.addresses["out_ptr"]
        whole = gpu.read(address + HEAD_BYTES, out.size_bytes - HEAD_BYTES)
    assert output.content.size == 1 << 20
    piece = output.content.size // 16
    assert np.array_equal(output.content[:piece], whole[:piece])
    assert np.array_equal(output.content[-piece:], whole[-piece:])


@pytest.mark.parametrize("is_cold", [True, False])
def test_times_are_those_of_the_configs(
    gpu: Gpu, library: runtime.Library, *, is_cold: bool
) -> None:
    launch, _ = opened(gpu, library, 100)
    with launch:
        assert launch.misfits() == {}
        times = launch.times([2, 0, 2], is_cold=is_cold, repeats=3)
    assert times == pytest.approx([30e-6, 12e-6, 30e-6], rel=1e-3)
    assert gpu.clock_mhz() == 1980


def test_configs_are_refused_by_their_guards(gpu: Gpu, library: runtime.Library) -> None:
    launch, _ = opened(gpu, library, 101)
    with launch:
        assert list(launch.misfits()) == [3]


def test_what_is_no_driver_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoGpuError, match="cannot open shared object"):
        Gpu(str(tmp_path / "libcuda.so.1"))
