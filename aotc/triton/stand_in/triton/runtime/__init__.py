"""Launching classes, errors caught by programs, and queries to the driver."""

from __future__ import annotations

from .autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from .driver import driver
from .errors import AutotunerError, InterpreterError, OutOfResources, PTXASError
from .jit import JITFunction, KernelInterface

__all__ = [
    "Autotuner",
    "AutotunerError",
    "Config",
    "Heuristics",
    "InterpreterError",
    "JITFunction",
    "KernelInterface",
    "OutOfResources",
    "PTXASError",
    "autotune",
    "driver",
    "heuristics",
]
