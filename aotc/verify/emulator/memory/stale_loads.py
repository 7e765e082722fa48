"""Loads that race with stores of their own CTA, to see whether anybody uses what they read.

Threads that hold a second copy of an element load it too, and where a kernel runs in place its
owner may have stored it by then. That is harmless as long as nothing depends on the second copy. So
such a launch is run again: races of loads with stores are noted, and each load that had one in the
run before reads random bits in that thread. If no load is new and the results are right, nobody
uses them.

Invariant: a thread's load that was noted in one run reads random bits in all later ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.syntax import Instruction


class StaleLoads:
    """Hold which lanes' loads race, by instruction; lanes are numbered through the launch."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._lanes: dict[int, Ints] = {}  # of each line of the text, ascending
        self._found: list[tuple[int, Ints]] = []

    def note(self, instruction: Instruction, lanes: Ints) -> bool:
        """Note that the loads of lanes (n,) race; say whether they are loads that can be stale."""
        if instruction.opcode != "ld":
            return False
        self._found.append((instruction.line, lanes))
        return True

    def take(self) -> bool:
        """Let what was noted read random bits from now on; say whether any of it is new."""
        found, self._found = self._found, []
        is_new = False
        for line, lanes in found:
            known = self._lanes.get(line, lanes[:0])
            both = np.union1d(known, lanes)
            is_new |= both.size > known.size
            self._lanes[line] = both
        return is_new

    def blur(self, instruction: Instruction, lanes: Ints, data: npt.NDArray[Any]) -> None:
        """Put random bits in place of what lanes (n,) read, bytes (n, size), where it is stale."""
        stale = self._lanes.get(instruction.line)
        if stale is not None:
            rows = np.flatnonzero(np.isin(lanes, stale))
            data[rows] = self._random.integers(0, 256, (rows.size, data.shape[1]), np.uint8)
