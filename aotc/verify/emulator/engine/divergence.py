"""Lanes on their way through the code: groups at one program counter, and where they meet again.

When lanes of one warp part, all lanes of the group are to meet at a `Join`. A warp goes on from
there as soon as all its own lanes have arrived or exited: it never waits for another warp. Groups
with the same program counter and the same join are merged when they happen to meet.

Lanes that spin may be waiting for lanes that a join holds back, which hardware lets go on in the
end. So a join loses patience with lanes that keep spinning.

Invariant: every lane that is alive is in one group, or parked at one join, barrier or poll.
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
"""Trips through a loop that spins before who waits for its end goes on alone."""


class Join:
    """Hold back lanes at an instruction until all of their warp are there."""

    __slots__ = ("_counts", "_left", "_parked", "_spins", "parent", "pc")

    def __init__(self, pc: int, parent: Join | None, lanes: Ints, num_warps: int) -> None:
        self.pc = pc
        self.parent = parent
        self._counts = np.bincount(lanes >> 5, minlength=num_warps)  # lanes to come, a warp
        self._left = len(lanes)
        self._parked: list[Ints] = []
        self._spins = 0  # by lanes to come, since the first parked

    def spin(self) -> Ints | None:
        """Note that lanes to come are spinning; return the lanes that give up waiting for them."""
        self._spins += len(self._parked) > 0
        if self._spins < SPIN_PATIENCE:
            return None
        self._spins = 0
        parked, self._parked = self._parked, []
        return np.concatenate(parked)

    def arrive(self, lanes: Ints) -> Ints:
        """Take lanes in; return the lanes that may go on now, ascending."""
        self._parked.append(lanes)
        return self._without(lanes)

    def exit(self, lanes: Ints) -> Ints:
        """Expect lanes no longer; return the lanes that may go on now, ascending."""
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
    """Say what polls in vain; `why` says for what, given a lane."""

    instruction: Instruction
    why: Callable[[int], str] | None


class Group:
    """Hold lanes that execute together: `lanes` is a slice where they are consecutive.

    `rounds` grows with the loops that the group has gone through; the scheduler lets those with
    less go first, so that nobody who spins keeps others from running. `trips` count how often it
    has gone round each loop that it is in, the outermost first.
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
        self.poll: Poll | None = None  # what it waits for
        self.clusters: frozenset[int] | None = (
            None  # that its lanes are of, once somebody has asked
        )

    def merge(self, other: Group) -> None:
        """Take the lanes of another group in."""
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
    """Return how many lanes there are."""
    return lanes.stop - lanes.start if isinstance(lanes, slice) else len(lanes)


def _count_warps(lanes: Lanes) -> int:
    if isinstance(lanes, slice):
        return (lanes.stop - 1 >> 5) - (lanes.start >> 5) + 1
    warps = lanes >> 5
    return 1 + int(np.count_nonzero(warps[1:] != warps[:-1]))
