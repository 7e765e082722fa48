"""The schedule's fallback for registers of unfinished matrix instructions, counted as a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aotc import gpu_stages
from aotc.backend.wgmma_registers import RegisterHazard
from aotc.ir.core import Kernel


class HazardError(AssertionError):
    """Report a kernel that would be scheduled again, though the second schedule is right."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Raise `HazardError` where a build would schedule a kernel again."""

    def refuse(kernel: Kernel, hazard: RegisterHazard) -> str:
        raise HazardError(f"{kernel.loc}: {hazard}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_stages, "fall_back", refuse)
        yield
