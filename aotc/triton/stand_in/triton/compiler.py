"""Errors and classes of the compiler, which is not here."""

from __future__ import annotations


class CompilationError(Exception):
    """A kernel does not compile."""


class CompiledKernel:
    """What Triton's launches return; those of archives return nothing."""
