"""Synchronisation through memory: what a release at a location hands to an acquire there.

A strong access (atomic, relaxed, volatile) orders nothing by itself. A release keeps what its
thread has done and seen at the location that it writes, for each scope that it reaches: its CTA,
its cluster, the GPU. So does a strong write after a fence, with what was done before the fence. An
acquire that reads there takes it over at once, a strong read at the next fence. Both must reach the
other: the scope of a pair is the least of the scopes of its accesses and fences.

Locations keep all that was ever released there, also where a plain write came between, and those of
shared memory are not told apart; there are `_MAX_PLACES` of them, and more share one. So a thread
may be taken to know more than it does, never less.

Invariant: what a location holds for a scope was released by threads of that scope alone.

Source: PTX ISA, "Memory Consistency Model": release and acquire patterns, causality order.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape
from aotc.verify.emulator.engine.context import Machine
from aotc.verify.emulator.memory.vector_clocks import (
    CLUSTER,
    CTA,
    GPU,
    Clocks,
    Ints,
    Lanes,
    lanes_array,
)

SHARED_PLACE = -1
"""Where all of shared memory is."""
_ANY_PLACE = -2
_MAX_PLACES = 256
_ROWS_AT_ONCE = 32


class MemoryOrder:
    """Hold what has been released through memory, and what fences have set apart."""

    def __init__(self, machine: Machine) -> None:
        self._order = machine.order
        self._scopes = machine.scopes or (GPU,)
        self._num_warps = machine.num_ctas * machine.warps_per_cta
        self._lanes_per_cta = machine.warps_per_cta * 32
        self._lanes_per_cluster = machine.cluster_size * self._lanes_per_cta
        columns = self._order.columns
        self._tokens = Clocks(0, columns)
        self._rows: dict[tuple[int, int, int], int] = {}  # by scope, who is in it, and place
        self._places: dict[int, int] = {_ANY_PLACE: 0, SHARED_PLACE: 1}
        # Of each scope and warp: what had been seen at the last fence, what has been read since.
        planes = len(self._scopes)
        self._fenced = Clocks(planes * self._num_warps, columns)
        self._pending = Clocks(planes * self._num_warps, columns)
        self._fenced_at = np.zeros((planes, self._num_warps * 32), np.int64)
        self._may_acquire = np.zeros((planes, self._num_warps * 32), np.bool_)
        self._has_fenced = False

    def fence(
        self, lanes: Lanes, scope: int, *, acquires: bool = True, releases: bool = True
    ) -> None:
        """Order what lanes (n,) have read before what follows, and what came before their writes."""
        numbers = lanes_array(lanes, self._num_warps * 32)
        if acquires:
            for plane in self._planes(scope):
                readers = numbers[self._may_acquire[plane, numbers]]
                if readers.size:
                    rows = plane * self._num_warps + (readers >> 5)
                    self._order.acquire(readers, self._pending, rows)
                    self._may_acquire[plane, readers] = False
        if releases:
            planes = len(self._planes(scope))
            self._fenced_at[:planes, numbers] = self._order.snapshot(numbers, self._fenced, planes)
            self._has_fenced = True

    def wrote(self, lanes: Lanes, places: Ints, scope: int, *, releases: bool) -> None:
        """Keep what lanes (n,) release by strong writes at places (n,)."""
        if not releases and not self._has_fenced:
            return
        numbers = lanes_array(lanes, self._num_warps * 32)
        for plane in self._planes(scope):
            limits = self._fenced_at[plane, numbers]
            chosen = slice(None) if releases else limits > 0
            writers = numbers[chosen]
            if not writers.size:
                continue
            rows = self._find(writers, places[chosen], self._scopes[plane], add=True)
            if releases:
                self._order.release(writers, self._tokens, rows)
            else:
                self._order.release_snapshot(
                    writers, self._fenced, plane, limits[chosen], self._tokens, rows
                )

    def release_fenced(self, lanes: Ints, tokens: Clocks, rows: Ints) -> None:
        """Put what lanes (n,) had done and seen at their last fence of the cluster into rows (n,)."""
        plane = next((at for at, scope in enumerate(self._scopes) if scope >= CLUSTER), None)
        if plane is None or not self._has_fenced:
            return
        limits = self._fenced_at[plane, lanes]
        chosen = limits > 0
        if chosen.any():
            kept = self._fenced, plane, limits[chosen]
            self._order.release_snapshot(lanes[chosen], *kept, tokens, rows[chosen])

    def read(self, lanes: Lanes, places: Ints, scope: int, *, acquires: bool) -> None:
        """Let lanes (n,) see what was released where their strong reads (n,) are, or a later fence."""
        if not self._rows:
            return
        numbers = lanes_array(lanes, self._num_warps * 32)
        anywhere = np.full(len(numbers), _ANY_PLACE)
        for plane in self._planes(scope):
            for where in (places, anywhere):
                rows = self._find(numbers, where, self._scopes[plane], add=False)
                found = rows >= 0
                readers, rows = numbers[found], rows[found]
                if not readers.size:
                    continue
                if acquires:
                    self._order.acquire(readers, self._tokens, rows)
                else:
                    self._clear_pending(plane, readers)
                    at = plane * self._num_warps
                    self._order.see_pending(readers, self._tokens, rows, self._pending, at)
                    self._may_acquire[plane, readers] = True

    def release_everywhere(self, lanes: Lanes, scope: int) -> None:
        """Let whoever of a scope acquires anything later, in any place, see what lanes have done."""
        numbers = lanes_array(lanes, self._num_warps * 32)
        self.wrote(numbers, np.full(len(numbers), _ANY_PLACE), scope, releases=True)

    def acquire_everything(self, lanes: Lanes, scope: int) -> None:
        """Let lanes see what threads of a scope have released everywhere."""
        numbers = lanes_array(lanes, self._num_warps * 32)
        self.read(numbers, np.full(len(numbers), _ANY_PLACE), scope, acquires=True)

    # ---- inside -----------------------------------------------------------------------------

    def _planes(self, scope: int) -> range:
        """Return which of the used scopes are within one."""
        return range(sum(each <= scope for each in self._scopes))

    def _clear_pending(self, plane: int, readers: Ints) -> None:
        """Forget what warps have read of which no lane can acquire anything any more."""
        waits = cast("npt.NDArray[np.bool_]", reshape(self._may_acquire[plane], -1, 32).any(axis=1))
        warps = np.unique(readers >> 5)
        self._pending.clear(plane * self._num_warps + warps[~waits[warps]])

    def _find(self, lanes: Ints, places: Ints, scope: int, *, add: bool) -> Ints:
        """Return the rows of places (n,) for the scopes that lanes (n,) are in, -1 for none."""
        if scope == CTA:
            groups = lanes // self._lanes_per_cta
        elif scope == CLUSTER:
            groups = lanes // self._lanes_per_cluster
        else:
            groups = np.zeros(len(lanes), np.int64)
        numbers = self._numbered(places, add=add)
        pairs = groups << 32 | (numbers & 0xFFFFFFFF)
        different, which = np.unique(pairs, return_inverse=True)
        rows = [
            self._row((scope, pair >> 32, pair & 0xFFFFFFFF), add=add)
            for pair in different.tolist()
        ]
        return np.array(rows, np.int64)[which]

    def _numbered(self, places: Ints, *, add: bool) -> npt.NDArray[np.int64]:
        """Return the numbers of places (n,): that of any place for those that are too many."""
        different, which = np.unique(places, return_inverse=True)
        if add:
            for place in different.tolist():
                if len(self._places) == _MAX_PLACES:
                    break
                self._places.setdefault(place, len(self._places))
        found = [self._places.get(place, 0) for place in different.tolist()]
        return np.array(found, np.int64)[which]

    def _row(self, key: tuple[int, int, int], *, add: bool) -> int:
        row = self._rows.get(key, -1)
        if row < 0 and add:
            row = self._rows[key] = len(self._rows)
            if row == self._tokens.seen.shape[1]:
                self._tokens.add_rows(_ROWS_AT_ONCE)
        return row
