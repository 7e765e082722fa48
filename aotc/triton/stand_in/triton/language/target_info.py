"""Queries about the GPU, for hosts."""

from __future__ import annotations

from typing import Any

from ..runtime.driver import driver  # noqa: TID252 - by its name it may be Triton's own


def current_target() -> Any:
    """Return the current GPU's target."""
    return driver.active.get_current_target()


def is_cuda() -> bool:
    """Return whether the GPU is NVIDIA's, as those with archives are."""
    return True


def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Return whether the GPU has at least a compute capability."""
    return bool(current_target().arch >= 10 * major + minor)


def __getattr__(name: str) -> Any:
    """Return a query for another vendor's GPUs."""
    if name.startswith("__"):
        raise AttributeError(name)

    def is_other() -> bool:
        return False

    is_other.__name__ = name
    return is_other
