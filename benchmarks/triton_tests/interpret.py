"""Runs of compiled kernels on CPU tensors by the interpreter of tile IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from triton.runtime.jit import TensorWrapper

import aotc
from aotc.ir.text import parse_kernel
from aotc.verify.interpreter.run import run as interpret

_TRITON_DTYPES = {
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    **{
        f"{kind}int{bits}": np.dtype(f"{kind}int{bits}")
        for kind in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
_OTHERS = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.bool: np.bool_,
}


def run(kernel: aotc.LaunchableKernel, arguments: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    """Run a launch; the tensors are changed in place."""
    module = parse_kernel(kernel.asm["tile"])
    interpret(module, grid, [_array(value) for value in arguments.values()])


def _array(value: Any) -> Any:
    """Return the elements of a tensor, a `TensorWrapper` of one included, as a view."""
    if isinstance(value, TensorWrapper):
        return _array(value.base).view(_TRITON_DTYPES[str(value.dtype)])
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    name = str(value.dtype).rpartition(".")[2]
    dtype = np.dtype(_OTHERS.get(value.dtype) or name)
    items = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = tuple(stride * dtype.itemsize for stride in value.stride())
    return np.lib.stride_tricks.as_strided(
        items[value.storage_offset() :], tuple(value.shape), strides
    )
