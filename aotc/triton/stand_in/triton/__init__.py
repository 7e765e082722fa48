"""A stand-in for Triton: the names imported by modules with kernels, and launches from archives.

It has no compiler. Names of the language are placeholders, since kernels' code never runs. Host
functions are implemented: decorators, `cdiv`, `next_power_of_2`, dtypes, `tl.constexpr`.
"""

from __future__ import annotations

from typing import Any

from . import compiler, knobs, language, runtime, testing, tools
from .absent import Absent
from .compiler import CompilationError
from .runtime import (
    Autotuner,
    Config,
    Heuristics,
    JITFunction,
    KernelInterface,
    OutOfResources,
    autotune,
    heuristics,
)
from .runtime.jit import constexpr_function, jit

__version__ = (
    "3.6.0"  # the newest version with full support in aotc's compiler, for modules' version checks
)


def cdiv(x: Any, y: Any) -> Any:
    """Return the quotient, rounded up."""
    return (x + y - 1) // y


def next_power_of_2(n: Any) -> Any:
    """Return the smallest power of two >= `n`."""
    return 1 << (n - 1).bit_length() if n > 0 else 0


def set_allocator(allocator: Any) -> Any:
    """Ignore an allocator of scratch memory: launches use a pool."""


reinterpret = Absent("triton.reinterpret")
TensorWrapper = Absent("triton.TensorWrapper")


def must_use_result(value: Any, *_: Any, **__: Any) -> Any:
    """Return the decorated function, or a decorator."""
    return value if callable(value) else must_use_result


__all__ = [
    "Autotuner",
    "CompilationError",
    "Config",
    "Heuristics",
    "JITFunction",
    "KernelInterface",
    "OutOfResources",
    "TensorWrapper",
    "autotune",
    "cdiv",
    "compiler",
    "constexpr_function",
    "heuristics",
    "jit",
    "knobs",
    "language",
    "must_use_result",
    "next_power_of_2",
    "reinterpret",
    "runtime",
    "set_allocator",
    "testing",
    "tools",
]
