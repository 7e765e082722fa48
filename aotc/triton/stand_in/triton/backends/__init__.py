"""Description of the GPU; there is no compiler for it here."""

from __future__ import annotations

from typing import Any

from . import compiler

backends: dict[str, Any] = {}

__all__ = ["backends", "compiler"]
