"""The compiler's fallbacks for faults of the schedule and of ptxas, counted as failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aotc import gpu_stages
from aotc.backend import CrashError, ptxas
from aotc.backend.wgmma_registers import RegisterHazard
from aotc.ir.core import Kernel


class HazardError(AssertionError):
    """Report a kernel rescued by the second schedule, though its result is right."""


@contextmanager
def no_fallback() -> Iterator[None]:
    """Raise `HazardError` where a build would schedule a kernel again, or assemble it at a lower level."""

    def refuse(kernel: Kernel, hazard: RegisterHazard) -> str:
        raise HazardError(f"{kernel.loc}: {hazard}")

    def refuse_level(error: CrashError) -> str:
        raise HazardError(f"a lower level of ptxas hides that it crashes: {error.reason}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_stages, "fall_back", refuse)
        patch.setattr(ptxas, "fall_back", refuse_level)
        yield
