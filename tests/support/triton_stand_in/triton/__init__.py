"""A stand-in for Triton: the launching classes under their real names, without compilation."""

from __future__ import annotations

from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.jit import JITFunction


def jit(function):
    return JITFunction(function)


def autotune(configs, key):
    return lambda function: Autotuner(function, configs, key)


def cdiv(a, b):
    return -(-a // b)


__all__ = ["Config", "autotune", "cdiv", "jit"]
