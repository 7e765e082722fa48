"""Errors and classes of the compiler, which is not here."""

from __future__ import annotations

from ..absent import Absent  # noqa: TID252 - by its name it may be Triton's own
from .errors import CompilationError

ASTSource = Absent(f"{__name__}.ASTSource")
IRSource = Absent(f"{__name__}.IRSource")
compile = Absent(f"{__name__}.compile")  # noqa: A001 - as Triton has it
make_backend = Absent(f"{__name__}.make_backend")


class CompiledKernel:
    """What Triton's launches return; those of archives return nothing."""


__all__ = [
    "ASTSource",
    "CompilationError",
    "CompiledKernel",
    "IRSource",
    "compile",
    "make_backend",
]
