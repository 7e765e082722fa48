"""Count bank conflicts: extra wavefronts of shared-memory accesses.

Shared memory has 32 banks of 4 bytes. The lanes of a warp are served in phases of up to 128 bytes:
all 32 for up to 4 bytes each, 16 for 8, 8 for 16. A phase takes as many wavefronts as the busiest
bank has distinct words. CTAs run the same code, so only the first of a batch is counted.

Invariant: a conflict-free access has as many wavefronts as phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotc.verify.arrays import reshape
from aotc.verify.emulator.memory.vector_clocks import Ints, Lanes, lanes_array
from aotc.verify.emulator.syntax import Instruction

_BANKS = 32
_WORD_BYTES = 4


@dataclass
class BankCount:
    """Count one instruction's phases, and its wavefronts beyond one per phase."""

    phases: int = 0
    excess: int = 0


class BankConflicts:
    """Count wavefronts by line of the PTX text."""

    def __init__(self, lanes_per_cta: int) -> None:
        self.lines: dict[int, BankCount] = {}
        self._lanes_per_cta = lanes_per_cta

    @property
    def excess(self) -> int:
        """Wavefronts beyond the minimum, over all instructions."""
        return sum(count.excess for count in self.lines.values())

    def count(self, lanes: Lanes, address: Ints, size_bytes: int, instruction: Instruction) -> None:
        """Count an access of lanes (n,), ascending, to `size_bytes` at addresses (n,)."""
        numbers = lanes_array(lanes, self._lanes_per_cta)
        numbers = numbers[: np.searchsorted(numbers, self._lanes_per_cta)]
        if not numbers.size:
            return
        words_per_lane = max(size_bytes // _WORD_BYTES, 1)
        phase = numbers * words_per_lane // _BANKS
        words = address[: len(numbers), None] // _WORD_BYTES + np.arange(words_per_lane)
        touched = np.unique(phase[:, None] << 32 | words)
        _, phase_index = np.unique(touched >> 32, return_inverse=True)
        phases = int(phase_index[-1]) + 1
        busy = np.bincount(phase_index * _BANKS + touched % _BANKS, minlength=phases * _BANKS)
        wavefronts = int(reshape(busy, phases, _BANKS).max(axis=1).sum())
        counted = self.lines.setdefault(instruction.line, BankCount())
        counted.phases += phases
        counted.excess += wavefronts - phases
