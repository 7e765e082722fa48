"""The same names as `triton.compiler`, and all others of this module as names."""

from __future__ import annotations

from typing import Any

from ..absent import absent  # noqa: TID252 - by its name it may be Triton's own
from . import ASTSource, CompiledKernel, IRSource, compile, make_backend  # noqa: A004

__all__ = ["ASTSource", "CompiledKernel", "IRSource", "compile", "make_backend"]


def __getattr__(name: str) -> Any:
    return absent(__name__, name)
