"""Where every warp stands, for the report of a program that does not end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.verify.emulator.engine.barriers import Waiter
from aotc.verify.emulator.engine.machine import Batch

_MAX_PLACES = 16


def places(batch: Batch, waits: Sequence[tuple[Waiter, str]]) -> list[str]:
    """Return a line for each warp and what it waits for, of the first CTAs that do."""
    lines: list[tuple[int, str]] = []
    for waiter, what in waits:
        for warp in np.unique(waiter.lanes >> 5).tolist():
            number, warp_in_cta = divmod(warp, batch.warps_per_cta)
            cta = ", ".join(str(int(axis)) for axis in batch.positions.ctas[number])
            place = waiter.instruction.place
            source = f" ({place.file}:{place.line})" if place else ""
            at = f"line {waiter.instruction.line}{source}: {waiter.instruction.text}"
            lines.append((warp, f"warp {warp_in_cta} of CTA ({cta}) {what}: {at}"))
    lines.sort()
    more = [f"and {len(lines) - _MAX_PLACES} more"] if len(lines) > _MAX_PLACES else []
    return [line for _, line in lines[:_MAX_PLACES]] + more
