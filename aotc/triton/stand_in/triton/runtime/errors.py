"""Errors caught by programs, never raised here."""

from __future__ import annotations


class OutOfResources(Exception):  # noqa: N818 - as Triton has it
    """A kernel needs more than the GPU has."""


class PTXASError(Exception):
    """The assembler failed."""


class AutotunerError(Exception):
    """No config is left."""


class InterpreterError(Exception):
    """The interpreter failed."""
