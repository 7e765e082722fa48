"""Runs of compiled kernels on CPU tensors by the interpreter of tile IR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from triton.runtime.jit import TensorWrapper

import aotc
from aotc.ir.params import LAUNCH_SOURCES
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
    program = parse_kernel(kernel.asm["tile"])
    passed = {name: _array(value) for name, value in _leaves(arguments.items())}
    names = dict.fromkeys(
        info.argument for info in program.params if info.source not in LAUNCH_SOURCES
    )
    interpret(program, grid, [passed[name] for name in names])


def _leaves(arguments: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield arguments, and those in tuples as `name_0`, `name_1`."""
    for name, value in arguments:
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", range(len(value)))
            yield from _leaves(
                (f"{name}_{field}", item) for field, item in zip(fields, value, strict=True)
            )
        else:
            yield name, value


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
