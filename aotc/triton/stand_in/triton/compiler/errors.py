"""Errors caught by programs, never raised here."""

from __future__ import annotations


class TritonError(Exception):
    """Something of Triton's failed."""


class CompilationError(TritonError):
    """A kernel does not compile."""


class CompileTimeAssertionFailure(CompilationError):  # noqa: N818 - as Triton has it
    """A `tl.static_assert` does not hold."""


class UnsupportedLanguageConstruct(CompilationError):  # noqa: N818 - as Triton has it
    """A kernel uses an unsupported feature."""
