"""Divergence and reconvergence: groups of lanes at one program counter.

When lanes of one warp diverge, all lanes of the group reconverge at a `Join`. A warp continues from
there as soon as all its own lanes have arrived or exited: it never waits for another warp. Groups
with the same program counter and the same join are merged.

Spinning lanes may be waiting for lanes parked at a join, which hardware would let run eventually.
So a join releases its lanes when others spin for long.

Invariant: every live lane is in one group, or parked at one join, barrier or poll.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import indices_in
from aotc.verify.emulator.syntax import Instruction

Ints: TypeAlias = npt.NDArray[np.int64]
Lanes: TypeAlias = "slice | Ints"

SPIN_PATIENCE = 256
"""Trips of a spinning loop before lanes parked at its join continue alone."""


class Join:
    """Park lanes at a reconvergence point until all of their warp have arrived."""

    __slots__ = ("_counts", "_left", "_parked", "_spins", "parent", "pc")

    def __init__(self, pc: int, parent: Join | None, lanes: Ints, num_warps: int) -> None:
        self.pc = pc
        self.parent = parent
        self._counts = np.bincount(lanes >> 5, minlength=num_warps)  # missing lanes per warp
        self._left = len(lanes)
        self._parked: list[Ints] = []
        self._spins = 0  # of missing lanes, since the first was parked

    def spin(self) -> Ints | None:
        """Count a spin of the missing lanes; return the parked lanes once over the limit."""
        self._spins += len(self._parked) > 0
        if self._spins < SPIN_PATIENCE:
            return None
        self._spins = 0
        parked, self._parked = self._parked, []
        return np.concatenate(parked)

    def arrive(self, lanes: Ints) -> Ints:
        """Park lanes; return the lanes now complete, ascending."""
        self._parked.append(lanes)
        return self._without(lanes)

    def exit(self, lanes: Ints) -> Ints:
        """Drop exited lanes; return the parked lanes now complete, ascending."""
        return self._without(lanes)

    def _without(self, lanes: Ints) -> Ints:
        self._left -= len(lanes)
        if not self._parked:
            self._counts -= np.bincount(lanes >> 5, minlength=len(self._counts))
            return lanes[:0]
        parked = self._parked[0] if len(self._parked) == 1 else np.concatenate(self._parked)
        if self._left == 0:
            self._parked = []
            return np.sort(parked)
        self._counts -= np.bincount(lanes >> 5, minlength=len(self._counts))
        complete = self._counts[parked >> 5] == 0
        self._parked = [parked[~complete]] if not complete.all() else []
        return np.sort(parked[complete])


@dataclass(frozen=True, slots=True)
class Poll:
    """Describe a failed poll; `why` gives the reason for a lane."""

    instruction: Instruction
    why: Callable[[int], str] | None


class Group:
    """Hold lanes that execute together: `lanes` is a slice if they are consecutive.

    `rounds` counts loop iterations, spinning ones weighted; the scheduler prefers lower counts, so
    no spinning group starves others. `trips` counts the iterations of each enclosing loop,
    outermost first.
    """

    __slots__ = (
        *("clusters", "count", "join", "lanes", "pc", "poll", "rounds", "seen_events", "trips"),
        "warps",
    )

    def __init__(
        self,
        pc: int,
        lanes: Lanes,
        join: Join | None,
        rounds: int,
        trips: tuple[int, ...] = (),
    ) -> None:
        self.trips = trips
        self.pc = pc
        self.lanes = lanes
        self.count = count_lanes(lanes)
        self.warps = _count_warps(lanes)
        self.join = join
        self.rounds = rounds
        self.seen_events = 0
        self.poll: Poll | None = None  # its pending poll
        self.clusters: frozenset[int] | None = None  # clusters of its lanes, computed on demand

    def merge(self, other: Group) -> None:
        """Absorb the lanes of another group."""
        lanes = np.concatenate((lane_array(self.lanes), lane_array(other.lanes)))
        lanes.sort()
        self.lanes = as_lanes(lanes)
        self.count = len(lanes)
        self.warps = _count_warps(self.lanes)
        self.rounds = max(self.rounds, other.rounds)
        self.trips = max(self.trips, other.trips)
        self.clusters = None


def as_lanes(lanes: Ints) -> Lanes:
    """Return ascending lanes as a slice if they are consecutive."""
    first, last = int(lanes[0]), int(lanes[-1])
    return slice(first, last + 1) if last - first + 1 == len(lanes) else lanes


def lane_array(lanes: Lanes) -> Ints:
    """Return lanes as an array."""
    return indices_in(lanes) if isinstance(lanes, slice) else lanes


def count_lanes(lanes: Lanes) -> int:
    """Return the number of lanes."""
    return lanes.stop - lanes.start if isinstance(lanes, slice) else len(lanes)


def _count_warps(lanes: Lanes) -> int:
    if isinstance(lanes, slice):
        return (lanes.stop - 1 >> 5) - (lanes.start >> 5) + 1
    warps = lanes >> 5
    return 1 + int(np.count_nonzero(warps[1:] != warps[:-1]))
