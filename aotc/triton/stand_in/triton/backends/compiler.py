"""`GPUTarget`, compared by programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GPUTarget:
    """A backend, its architecture and the size of its warps."""

    backend: str
    arch: Any
    warp_size: int
