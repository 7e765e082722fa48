"""Placeholders for names of Triton's host needing its compiler or its sources.

Modules import many names used by few programs. A placeholder can be imported, passed on and asked
for attributes. Calling it, or testing its truth, raises an error naming Triton.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from .modules import provide

# Triton's modules without a file in the stand-in, and packages (ending with a dot) of such modules.
_MODULES = (
    "_C", "_C.libtriton", "compiler.code_generator", "experimental", "profiler", "runtime.build", "runtime.interpreter",
    "tools.build_extern", "tools.compile", "tools.disasm", "tools.link", "tools.mxfp", "tools.ragged_tma",
)  # fmt: skip
_PACKAGES = ("experimental.", "profiler.")
_DECORATORS = ("jit", "constexpr_function", "aggregate", "must_use_result")


class Absent:
    """A placeholder; using it is an error."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def __getattr__(self, name: Any) -> Any:
        return absent(self._path, name)

    def _fail(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{self._path} needs Triton, which is not installed")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function for a decorator of kernels; otherwise fail."""
        name = self._path.rpartition(".")[2]
        if name in _DECORATORS and len(args) == 1 and callable(args[0]):
            return args[0]
        return self._fail(*args, **kwargs)

    def __instancecheck__(self, value: object) -> bool:
        return False  # an absent class has no instances

    __subclasscheck__ = __instancecheck__

    def __mro_entries__(self, bases: Any) -> Any:
        return ()  # subclassing is allowed, and inherits nothing

    def __or__(self, other: Any) -> Any:
        return self  # as in an annotation

    __ror__ = __or__
    __bool__ = __iter__ = __len__ = __getitem__ = __enter__ = __index__ = _fail

    def __repr__(self) -> str:
        return self._path


def absent(path: str, name: str) -> Absent:
    """Return a name below a path. Raises: AttributeError for Python's special names."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{path}.{name}")


class _Module(ModuleType):
    """A module of names."""

    def __getattr__(self, name: str) -> Any:
        return absent(self.__name__, name)


def _has(fullname: str) -> bool:
    package, _, below = fullname.partition(".")
    return package == __package__ and (below in _MODULES or below.startswith(_PACKAGES))


provide(_has, _Module)
