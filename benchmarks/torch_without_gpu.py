"""torch without a GPU: tensors of a `cuda` device that lie in host memory.

So a library's functions run on any machine: it asks for CUDA tensors, and gets them. Kernels do
nothing to them. Their results are whatever was in memory, and a branch on them may go another way
than on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

_PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    warp_size=32,
    gcnArchName="",
)
_DEVICE = torch.device("cuda", 0)


_FUNCTIONS = """
    arange as_tensor empty empty_like empty_strided eye from_dlpack full full_like linspace ones ones_like
    rand rand_like randint randint_like randn randn_like randperm tensor zeros zeros_like
"""
_METHODS = "to new_empty new_full new_ones new_tensor new_zeros"


def _replace_devices(owner: Any, name: str) -> None:
    """Let a function create its tensor in host memory if told a CUDA device."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **words: Any) -> Any:
        words = {name: _on_host(value) for name, value in words.items() if name != "pin_memory"}
        return original(*map(_on_host, args), **words)

    setattr(owner, name, replaced)


def _on_host(value: Any) -> Any:
    is_name = isinstance(value, str) and value.partition(":")[0] == "cuda"
    is_device = isinstance(value, torch.device) and str(value).startswith("cuda")
    return torch.device("cpu") if is_name or is_device else value


def install(fake_driver: str | None = None) -> None:
    """Let torch report an H100; launches of archives go to a fake driver, if any."""
    values: dict[str, Any] = {
        "current_device": 0,
        "current_stream": SimpleNamespace(cuda_stream=0, stream_id=0, device=_DEVICE),
        "device": contextlib.nullcontext(),
        "device_count": 1,
        "get_device_capability": (9, 0),
        "get_device_name": _PROPERTIES.name,
        "get_device_properties": _PROPERTIES,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "is_available": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "set_device": None,
        "synchronize": None,
        "_lazy_init": None,
    }
    for name, value in values.items():
        setattr(torch.cuda, name, _returns(value))
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it would trace true devices
    torch.version.cuda = torch.version.cuda or "12.8"
    tensor: Any = torch.Tensor
    tensor.device = property(lambda _: _DEVICE)
    tensor.is_cuda = property(lambda _: True)
    tensor.get_device = lambda _: 0
    tensor.cuda = lambda self, *_args, **_words: self
    # The loader would read the true device there.
    if hasattr(tensor, "__dlpack_c_exchange_api__"):
        del tensor.__dlpack_c_exchange_api__
    for owner, names in ((torch, _FUNCTIONS), (tensor, _METHODS)):
        for name in names.split():
            _replace_devices(owner, name)
    _register_for_host()
    if fake_driver is not None:
        driver = ctypes.CDLL(fake_driver)
        driver.fake_cuda_primary_context.restype = ctypes.c_void_p
        driver.fake_cuda_set_current(ctypes.c_void_p(driver.fake_cuda_primary_context(0)))


def _register_for_host() -> None:
    """Register the kernels of operators for CUDA devices as those of hosts."""
    library: Any = torch.library
    custom_op, implement = library.custom_op, library.impl

    def host_op(*args: Any, device_types: Any = None, **words: Any) -> Any:
        del device_types
        return custom_op(*args, **words)

    def host_implement(*args: Any, **words: Any) -> Any:
        return implement(*("CPU" if value == "CUDA" else value for value in args), **words)

    def host_kernel(self: Any, device_types: Any, *args: Any, **words: Any) -> Any:
        if device_types == "cpu":  # the one for CUDA tensors is meant
            return lambda function: function
        return register_kernel(self, device_types, *args, **words)

    library.custom_op, library.impl = host_op, host_implement
    definition: Any = importlib.import_module("torch._library.custom_ops").CustomOpDef
    register_kernel, definition.register_kernel = definition.register_kernel, host_kernel


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_words: value
