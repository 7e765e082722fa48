"""Names of Triton's language: dtypes and `constexpr` for hosts, placeholders for all others.

Invariant: any name of the language, present or future, can be referenced. Calling it on the host is
an error, except as a decorator.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ..modules import provide  # noqa: TID252 - by its name it may be Triton's own
from .types import DTYPES, block_type, constexpr, dtype, pointer_type, tensor

__all__ = ["block_type", "constexpr", "dtype", "pointer_type", "tensor"]

globals().update(DTYPES)


def cdiv(x: Any, y: Any) -> Any:
    """Return the quotient, rounded up."""
    return (x + y - 1) // y


class Name:
    """A name of the language, meaningful only in kernels."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # a decorator
        raise RuntimeError(f"{self._path} is for kernels; on the host it needs Triton")

    def __instancecheck__(self, value: object) -> bool:
        return False  # a host has no value of the language's own types

    __subclasscheck__ = __instancecheck__

    def __mro_entries__(self, bases: Any) -> Any:
        return ()

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return self._path


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return Name(f"{__name__}.{name}")


_MODULES = ("core", "extra", "math", "random", "semantic", "standard", "target_info")


class _Module(ModuleType):
    """A module below the language: the language's own names, and all others as names."""

    def __getattr__(self, name: Any) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return globals().get(name) or Name(f"{self.__name__}.{name}")


# Whichever lie below the language: `math`, `extra.cuda.libdevice`.
provide(lambda fullname: fullname.startswith(f"{__name__}."), _Module)
