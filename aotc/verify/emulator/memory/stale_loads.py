"""Loads that race with stores of their own CTA, to see whether their values matter.

Threads with a second copy of an element load it too; in a kernel run in place, the owner may have
stored it by then. That is harmless as long as the second copy affects nothing. So such a launch is
run again: races of loads with stores are recorded, and a load with a race in an earlier run reads
random bits in that thread. If no new load races and the results are right, the values are unused.

Invariant: a thread's load recorded in one run reads random bits in all later ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.syntax import Instruction


class StaleLoads:
    """Hold the racing lanes of each load; lanes are numbered across the launch."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._lanes: dict[int, Ints] = {}  # by line of the text, ascending
        self._races: list[tuple[int, Ints]] = []

    def note(self, instruction: Instruction, lanes: Ints) -> bool:
        """Record racing loads of lanes (n,); return whether the instruction is a plain load."""
        if instruction.opcode != "ld":
            return False
        self._races.append((instruction.line, lanes))
        return True

    def take(self) -> bool:
        """Make recorded loads read random bits from now on; return whether any is new."""
        races, self._races = self._races, []
        is_new = False
        for line, lanes in races:
            stale = self._lanes.get(line, lanes[:0])
            merged = np.union1d(stale, lanes)
            is_new |= merged.size > stale.size
            self._lanes[line] = merged
        return is_new

    def blur(self, instruction: Instruction, lanes: Ints, data: npt.NDArray[Any]) -> None:
        """Overwrite the stale rows of bytes (n, size), read by lanes (n,), with random bits."""
        stale = self._lanes.get(instruction.line)
        if stale is not None:
            rows = np.flatnonzero(np.isin(lanes, stale))
            data[rows] = self._random.integers(0, 256, (rows.size, data.shape[1]), np.uint8)
