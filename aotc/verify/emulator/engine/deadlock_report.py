"""The position of every warp, for the report of a program that does not end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.verify.emulator.engine.barriers import Waiter
from aotc.verify.emulator.engine.machine import Batch

_MAX_LOCATIONS = 16


def warp_locations(batch: Batch, waits: Sequence[tuple[Waiter, str]]) -> list[str]:
    """Return a line per waiting warp with its reason, for the first CTAs."""
    lines: list[tuple[int, str]] = []
    for waiter, reason in waits:
        for warp in np.unique(waiter.lanes >> 5).tolist():
            number, warp_in_cta = divmod(warp, batch.warps_per_cta)
            cta = ", ".join(str(int(axis)) for axis in batch.positions.ctas[number])
            location = waiter.instruction.location
            source = f" ({location.file}:{location.line})" if location else ""
            position = f"line {waiter.instruction.line}{source}: {waiter.instruction.text}"
            lines.append((warp, f"warp {warp_in_cta} of CTA ({cta}) {reason}: {position}"))
    lines.sort()
    more = [f"and {len(lines) - _MAX_LOCATIONS} more"] if len(lines) > _MAX_LOCATIONS else []
    return [line for _, line in lines[:_MAX_LOCATIONS]] + more
