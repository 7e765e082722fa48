"""`driver.active`: programs' queries about the GPU, answered by torch."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from ..backends.compiler import GPUTarget  # noqa: TID252 - by its name it may be Triton's own


def _torch() -> Any:
    return importlib.import_module("torch")  # it need not be there


class _Utils:
    @staticmethod
    def get_device_properties(device: Any) -> Any:
        """Return the properties used by programs to size grids and tiles."""
        properties = _torch().cuda.get_device_properties(device)
        return {
            "multiprocessor_count": properties.multi_processor_count,
            "max_shared_mem": getattr(properties, "shared_memory_per_block_optin", 49152),
            "warpSize": 32,
            "max_num_regs": 65536,
            # In kHz and bits; an older torch does not say them.
            "sm_clock_rate": getattr(properties, "clock_rate", 0),
            "mem_clock_rate": getattr(properties, "memory_clock_rate", 0),
            "mem_bus_width": getattr(properties, "memory_bus_width", 0),
        }


class _Active:
    utils = _Utils()

    @staticmethod
    def get_current_device() -> Any:
        """Return the current device's ordinal."""
        return _torch().cuda.current_device()

    @staticmethod
    def get_current_target() -> Any:
        """Return the backend and the compute capability."""
        major, minor = _torch().cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, 32)

    @staticmethod
    def get_current_stream(device: Any = None) -> Any:
        """Return the handle of torch's current stream."""
        return _torch().cuda.current_stream(device).cuda_stream

    @staticmethod
    def get_active_torch_device() -> Any:
        """Return torch's current device."""
        return _torch().device("cuda", _torch().cuda.current_device())


driver = SimpleNamespace(active=_Active())
