"""Kernels given as Python functions: their sources and their captured variables."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from aotc.ir.diagnostics import CompileError
from aotc.source_snapshot import add_text


def locate(kernel: str | Callable[..., object], source: str | None = None) -> tuple[str, str]:
    """Return the file of a kernel, or the name of its text, and its name there. Raises: CompileError."""
    return _locate(kernel) if source is None else _in_text(kernel, source)


def captured(kernel: object) -> tuple[tuple[str, object], ...]:
    """Return the constants and functions a kernel captures from enclosing functions."""
    function = inspect.unwrap(getattr(kernel, "fn", kernel))  # type: ignore[arg-type]
    if not inspect.isfunction(function):
        return ()
    nonlocals = inspect.getclosurevars(function).nonlocals
    # `tl.constexpr(…)` has its value in `value`.
    plain: dict[str, Any] = {
        name: value if dtype_name(value) else getattr(value, "value", value)
        for name, value in nonlocals.items()
    }
    return tuple(
        (name, named_constant(value))
        for name, value in plain.items()
        if type(value) in _CONSTANTS
        or dtype_name(value)
        or inspect.isfunction(getattr(value, "fn", value))
    )


_CONSTANTS = (bool, int, float, str, tuple, type(None))


def named_constant(constant: object) -> object:
    """Return a constant as it is, or the name of a function or dtype, in tuples too."""
    if type(constant) is tuple:
        return tuple(map(named_constant, cast("tuple[object, ...]", constant)))
    name = dtype_name(constant)
    if name or not inspect.isfunction(getattr(constant, "fn", constant)):
        return name or constant
    return _language_function(constant) or ":".join(_locate(constant))  # type: ignore[arg-type]


def _language_function(value: Any) -> str:
    """Return the name of a public function of the language, "" for anything else.

    Triton's source of it calls internals of Triton's compiler.
    """
    function = inspect.unwrap(getattr(value, "fn", value))
    module, name = function.__module__ or "", function.__qualname__
    in_language = module.startswith(("triton.language", "aotc.language"))
    return f"{module}.{name}" if in_language and not name.startswith("_") else ""


def dtype_name(value: object) -> str:
    """Return the name of a dtype of `triton.language` or `aotc.language`, "" for anything else."""
    kind = type(value)
    if kind.__module__.partition(".")[0] not in ("triton", "aotc"):
        return ""
    dtype = cast("Any", value)
    if kind.__name__ == "pointer_type":
        return f"*{dtype_name(dtype.element_ty)}"
    return str(dtype.name) if kind.__name__ == "dtype" else ""


def _in_text(kernel: object, source: object) -> tuple[str, str]:
    if not isinstance(source, str) or not isinstance(kernel, str):
        raise CompileError(
            f"expected the source as text and the name of a kernel in it, got {source!r} and {kernel!r}"
        )
    return add_text(source), kernel


def _locate(kernel: str | Callable[..., object]) -> tuple[str, str]:
    if isinstance(kernel, str):
        source, separator, name = kernel.rpartition(":")
        if not separator or not source:
            raise CompileError(f"expected 'path/to/source.py:kernel', got {kernel!r}")
        return source, name
    # Triton's and our own decorators keep the function under `fn`.
    function = inspect.unwrap(getattr(kernel, "fn", kernel))
    try:
        path = inspect.getsourcefile(function) or ""
    except TypeError:
        path = ""
    lines = [] if not path or Path(path).is_file() else linecache.getlines(path)
    if lines:
        return add_text("".join(lines)), function.__qualname__
    if not path or path.startswith("<"):
        raise CompileError(
            f"expected 'path/to/source.py:kernel' or a function, got {kernel!r}",
            remedy="the source of a function must be in a file, or be given as text: source=…",
        )
    return path, function.__qualname__
