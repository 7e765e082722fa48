"""Real Triton without a GPU: kernels are compiled for sm_90, and launches do nothing.

So a library's launches can be recorded on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_without_gpu
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver


class _Binaries:
    """Load nothing: a module, a function, registers, spills and threads are made up."""

    def load_binary(self, *_args: Any) -> tuple[int, int, int, int, int]:
        return 1, 1, 32, 0, 1024

    def unload_module(self, _module: int) -> None:
        pass

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 2_619_000,
            "mem_bus_width": 5120,
        }


class _Launch:
    def __init__(self, *_args: Any) -> None:
        pass

    def __call__(self, *_args: Any) -> None:
        pass


class _Driver:
    utils = _Binaries()
    launcher_cls = _Launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _device: int) -> None:
        pass

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, _cache: Any) -> None:
        pass

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return _bench


def _bench(
    call: Callable[[], object], *, quantiles: Sequence[float] = (), **_words: Any
) -> list[float]:
    call()
    return [1.0] * max(len(quantiles), 1)


def install() -> None:
    """Let torch report an H100, and Triton launch nothing on it."""
    torch_without_gpu.install()
    driver.set_active(_Driver())
