"""Errors and classes of Triton's compiler; the compiler itself is absent."""

from __future__ import annotations

from ..absent import Absent  # noqa: TID252 - by its name it may be Triton's own
from .errors import CompilationError

ASTSource = Absent(f"{__name__}.ASTSource")
IRSource = Absent(f"{__name__}.IRSource")
compile = Absent(f"{__name__}.compile")  # noqa: A001 - as Triton has it
make_backend = Absent(f"{__name__}.make_backend")


class CompiledKernel:
    """The result type of Triton's launches; launches from archives return None."""


__all__ = [
    "ASTSource",
    "CompilationError",
    "CompiledKernel",
    "IRSource",
    "compile",
    "make_backend",
]
