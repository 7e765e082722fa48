"""Let torch see that there is no Triton to compile with, where a stand-in is imported as `triton`.

Torch's compiler asks whether there is Triton, and imports much of its inside if so; but whoever else
imports it means its kernels. So torch's answer is no, and the one module of its that tries the import
itself finds nothing.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ASKED = "torch.utils._triton"
_IMPORTS = "torch._inductor.runtime.triton_compat"


def hide_triton() -> None:
    """Hide the stand-in from torch, now or once torch is imported."""
    if _ASKED in sys.modules:
        _answer(sys.modules[_ASKED])
    sys.meta_path.insert(0, _Finder())


def _answer(module: ModuleType) -> None:
    module.__dict__["has_triton_package"] = lambda: False


class _Loader:
    """Load a module of torch's as its own loader does."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _ASKED:
            self._loader.exec_module(module)
            _answer(module)
            return
        modules: dict[str, Any] = sys.modules
        there = modules.pop("triton", None)
        modules["triton"] = None  # importing it is an ImportError
        try:
            self._loader.exec_module(module)
        finally:
            del modules["triton"]
            if there is not None:
                modules["triton"] = there


class _Finder:
    """Find the two modules by the finders that come after this one."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in (_ASKED, _IMPORTS):
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                loader: Any = _Loader(spec.loader)
                spec.loader = loader
                return spec
        return None
