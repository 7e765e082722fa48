"""Runs of compiled kernels on CPU tensors by the interpreter of tile IR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

import aotc
from aotc.ir.params import LAUNCH_SOURCES
from aotc.ir.text import parse_kernel
from aotc.verify.interpreter.run import run as interpret
from benchmarks.triton_tests.arguments import as_tensor

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
    """Yield arguments, and tuple elements as `name_0`, `name_1`."""
    for name, value in arguments:
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", range(len(value)))
            yield from _leaves(
                (f"{name}_{field}", item) for field, item in zip(fields, value, strict=True)
            )
        else:
            yield name, value


def _array(value: Any) -> Any:
    """Return the elements of a tensor, or of a `TensorWrapper` of one, as a view."""
    value = as_tensor(value)
    if not isinstance(value, torch.Tensor):
        return value
    raw = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy()
    dtype = np.dtype(_OTHERS.get(value.dtype) or str(value.dtype).rpartition(".")[2])
    strides = tuple(stride * dtype.itemsize for stride in value.stride())
    offset = value.storage_offset() * dtype.itemsize
    return np.ndarray(tuple(value.shape), dtype, raw.data, offset, strides)
