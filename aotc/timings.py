"""Times of compile stages, for benchmarks alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Timings:
    """Collect the seconds of each compile stage, by a clock."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    clock: Callable[[], float] = time.perf_counter
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def lap(self, stage: str) -> None:
        """Charge the time since the last lap to `stage`."""
        now = self.clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
