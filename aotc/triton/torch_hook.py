"""Hide the stand-in for Triton from torch's compiler, but not from libraries.

Torch's compiler generates Triton code, so it asks for Triton and imports many of its internals.
Libraries call the same functions before enabling their own kernels, present in the archives. So the
answer depends on the caller. `torch.compile` returns its argument unchanged, with a warning.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_QUESTIONS = "torch.utils._triton"
_IMPORTS = "torch._inductor.runtime.triton_compat"
_PREFIX = "has_triton"
_GENERATING_BACKENDS = (None, "inductor")


def hide_triton() -> None:
    """Hide the stand-in from torch's compiler, now or once torch is imported."""
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


# ---- questions for Triton ----------------------------------------------------------------------


def _is_torch_asking() -> bool:
    """Return whether one of torch's questions was asked by torch itself."""
    frame: Any = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, _QUESTIONS):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name == "torch" or name.startswith("torch.")


def _by_caller(question: Callable[..., Any]) -> Callable[..., bool]:
    uncached = getattr(question, "__wrapped__", question)

    @functools.wraps(uncached)
    def answer(*args: Any, **kwargs: Any) -> bool:
        return not _is_torch_asking() and bool(uncached(*args, **kwargs))

    return answer


def _answer_by_caller(module: ModuleType) -> None:
    for name, value in list(vars(module).items()):
        if name.startswith(_PREFIX) and callable(value):
            setattr(module, name, _by_caller(value))


# ---- torch.compile -----------------------------------------------------------------------------


def _unchanged(function: Any) -> Any:
    return function


def _run_eagerly(torch: ModuleType) -> None:
    compile_ = getattr(torch, "compile", None)
    if compile_ is None:
        return

    @functools.wraps(compile_)
    def eager(model: Any = None, **options: Any) -> Any:
        if options.get("backend") not in _GENERATING_BACKENDS:
            return compile_(model, **options)
        warnings.warn(
            "torch.compile needs Triton, which is not installed: the function runs eagerly",
            RuntimeWarning,
            stacklevel=2,
        )
        return _unchanged if model is None else model

    torch.__dict__["compile"] = eager


# ---- imports -----------------------------------------------------------------------------------

_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "torch": _run_eagerly,
    _QUESTIONS: _answer_by_caller,
}


class _Loader:
    """Load a module of torch with its own loader, then patch it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in _CHANGES:
            self._loader.exec_module(module)
            _CHANGES[module.__name__](module)
            return
        modules: dict[str, Any] = sys.modules
        stand_in = modules.pop("triton", None)
        modules["triton"] = None  # importing it is an ImportError
        try:
            self._loader.exec_module(module)
        finally:
            del modules["triton"]
            if stand_in is not None:
                modules["triton"] = stand_in


class _Finder:
    """Find the patched modules of torch, through the other finders."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in (*_CHANGES, _IMPORTS):
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                loader: Any = _Loader(spec.loader)
                spec.loader = loader
                return spec
        return None
