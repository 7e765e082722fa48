"""Compile Triton's kernels in separate processes, before any launch.

Triton's frontend holds the interpreter's lock, so threads hardly help. Workers need no GPU: they
fill the cache at `TRITON_CACHE_DIR` with kernels and their launching stubs, for the measuring
process.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any


def jit_function(module: str, name: str) -> Any:
    """Return a function of a module below its decorators."""
    function = getattr(importlib.import_module(module), name)
    while type(function).__name__ != "JITFunction":
        function = function.fn
    return function


@contextlib.contextmanager
def workers(count: int, prepare: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """Yield processes with this process's module path, after a call of `prepare`."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, spawn, _prepared, (prepare,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def begin(
    pool: ProcessPoolExecutor, module: str, name: str, arguments: Mapping[str, Any]
) -> Future[None]:
    """Compile a function for arguments and options; of a tensor only the type counts."""
    types = {key: getattr(value, "dtype", value) for key, value in arguments.items()}
    return pool.submit(_compiled, module, name, types)


def _prepared(prepare: Callable[[], None]) -> None:
    importlib.import_module("triton_without_gpu").install()
    prepare()


def _compiled(module: str, name: str, arguments: Mapping[str, Any]) -> None:
    mocked = importlib.import_module("triton.runtime.jit").MockTensor.wrap_dtype
    mocked_args = {key: mocked(value) for key, value in arguments.items()}
    kernel = jit_function(module, name).warmup(**mocked_args, grid=(1,))
    launcher = importlib.import_module("triton.backends.nvidia.driver").CudaLauncher
    launcher(kernel.src, kernel.metadata)
