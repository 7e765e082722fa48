"""Modules without a file, for the import system."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Finder:
    """Find modules accepted by `has` (by full name), created by `make`."""

    def __init__(self, has: Callable[[str], bool], make: Callable[[str], ModuleType]) -> None:
        self._has, self._make = has, make

    def find_spec(self, fullname: Any, _path: Any = None, _target: Any = None) -> Any:
        """Return a spec for a module without a file."""
        loader: Any = self
        return ModuleSpec(fullname, loader, is_package=True) if self._has(fullname) else None

    def create_module(self, spec: Any) -> Any:
        """Return the module."""
        return self._make(spec.name)

    def exec_module(self, module: Any) -> Any:
        """Do nothing: there is no code."""


def provide(has: Callable[[str], bool], make: Callable[[str], ModuleType]) -> None:
    """Make modules without a file importable."""
    sys.meta_path.append(_Finder(has, make))
