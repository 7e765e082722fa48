"""Placeholders for names of `triton.testing`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: Any) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(f"triton.testing.{name} needs Triton, which is not installed")

    return missing
