"""Synchronisation through memory: releases and acquires at a location.

A strong access (atomic, relaxed, volatile) orders nothing by itself. A release stores its thread's
clocks at its location, for each scope it reaches: the CTA, the cluster, the GPU. A strong write
after a fence does so with the clocks at the fence. An acquire that reads the location takes them
over at once, a strong read at the next fence. Each must reach the other: the scope of a pair is the
least of the scopes of its accesses and fences.

Locations keep all clocks ever released there, even across a plain write. All of shared memory is
one location, and beyond `_MAX_LOCATIONS` the rest share one. So a thread may seem to know more than
it does, never less.

Invariant: a location's clocks for a scope were released by threads of that scope alone.

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

SHARED_LOCATION = -1
"""The location of all shared memory."""
_ANY_LOCATION = -2
_MAX_LOCATIONS = 256
_ROWS_AT_ONCE = 32


class MemoryOrder:
    """Hold the clocks released through memory, and the state of fences."""

    def __init__(self, machine: Machine) -> None:
        self._order = machine.order
        self._scopes = machine.scopes or (GPU,)
        self._num_warps = machine.num_ctas * machine.warps_per_cta
        self._lanes_per_cta = machine.warps_per_cta * 32
        self._lanes_per_cluster = machine.cluster_size * self._lanes_per_cta
        columns = self._order.columns
        self._tokens = Clocks(0, columns)
        self._rows: dict[tuple[int, int, int], int] = {}  # by scope, group and location
        self._locations: dict[int, int] = {_ANY_LOCATION: 0, SHARED_LOCATION: 1}
        # By scope and warp: the clocks at the last fence, and those read since.
        planes = len(self._scopes)
        self._fenced = Clocks(planes * self._num_warps, columns)
        self._pending = Clocks(planes * self._num_warps, columns)
        self._fenced_at = np.zeros((planes, self._num_warps * 32), np.int64)
        self._may_acquire = np.zeros((planes, self._num_warps * 32), np.bool_)
        self._has_fenced = False

    def fence(
        self, lanes: Lanes, scope: int, *, acquires: bool = True, releases: bool = True
    ) -> None:
        """Fence lanes (n,): acquire their earlier reads, and let their later writes release."""
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

    def record_write(self, lanes: Lanes, locations: Ints, scope: int, *, releases: bool) -> None:
        """Record releases by strong writes of lanes (n,) at locations (n,)."""
        if not releases and not self._has_fenced:
            return
        numbers = lanes_array(lanes, self._num_warps * 32)
        for plane in self._planes(scope):
            limits = self._fenced_at[plane, numbers]
            chosen = slice(None) if releases else limits > 0
            writers = numbers[chosen]
            if not writers.size:
                continue
            rows = self._find(writers, locations[chosen], self._scopes[plane], add=True)
            if releases:
                self._order.release(writers, self._tokens, rows)
            else:
                self._order.release_snapshot(
                    writers, self._fenced, plane, limits[chosen], self._tokens, rows
                )

    def release_fenced(self, lanes: Ints, tokens: Clocks, rows: Ints) -> None:
        """Release lanes' (n,) clocks, as of their last cluster fence, into rows (n,)."""
        plane = next((index for index, scope in enumerate(self._scopes) if scope >= CLUSTER), None)
        if plane is None or not self._has_fenced:
            return
        limits = self._fenced_at[plane, lanes]
        chosen = limits > 0
        if chosen.any():
            snapshot = self._fenced, plane, limits[chosen]
            self._order.release_snapshot(lanes[chosen], *snapshot, tokens, rows[chosen])

    def read(self, lanes: Lanes, locations: Ints, scope: int, *, acquires: bool) -> None:
        """Acquire, now or at a later fence, the releases at lanes' strong reads (n,)."""
        if not self._rows:
            return
        numbers = lanes_array(lanes, self._num_warps * 32)
        anywhere = np.full(len(numbers), _ANY_LOCATION)
        for plane in self._planes(scope):
            for where in (locations, anywhere):
                rows = self._find(numbers, where, self._scopes[plane], add=False)
                has_row = rows >= 0
                readers, rows = numbers[has_row], rows[has_row]
                if not readers.size:
                    continue
                if acquires:
                    self._order.acquire(readers, self._tokens, rows)
                else:
                    self._clear_pending(plane, readers)
                    first_row = plane * self._num_warps
                    self._order.see_pending(readers, self._tokens, rows, self._pending, first_row)
                    self._may_acquire[plane, readers] = True

    def release_everywhere(self, lanes: Lanes, scope: int) -> None:
        """Release lanes' clocks to any later acquire of the scope, at any location."""
        numbers = lanes_array(lanes, self._num_warps * 32)
        self.record_write(numbers, np.full(len(numbers), _ANY_LOCATION), scope, releases=True)

    def acquire_everything(self, lanes: Lanes, scope: int) -> None:
        """Acquire everything that threads of a scope have released everywhere."""
        numbers = lanes_array(lanes, self._num_warps * 32)
        self.read(numbers, np.full(len(numbers), _ANY_LOCATION), scope, acquires=True)

    # ---- inside -----------------------------------------------------------------------------

    def _planes(self, scope: int) -> range:
        """Return the planes of the used scopes within a scope."""
        return range(sum(used <= scope for used in self._scopes))

    def _clear_pending(self, plane: int, readers: Ints) -> None:
        """Clear pending reads of warps with no lane left to acquire them."""
        waits = cast("npt.NDArray[np.bool_]", reshape(self._may_acquire[plane], -1, 32).any(axis=1))
        warps = np.unique(readers >> 5)
        self._pending.clear(plane * self._num_warps + warps[~waits[warps]])

    def _find(self, lanes: Ints, locations: Ints, scope: int, *, add: bool) -> Ints:
        """Return the rows of locations (n,) in the lanes' groups of a scope, -1 for none."""
        if scope == CTA:
            groups = lanes // self._lanes_per_cta
        elif scope == CLUSTER:
            groups = lanes // self._lanes_per_cluster
        else:
            groups = np.zeros(len(lanes), np.int64)
        numbers = self._numbered(locations, add=add)
        pairs = groups << 32 | (numbers & 0xFFFFFFFF)
        different, inverse = np.unique(pairs, return_inverse=True)
        rows = [
            self._row((scope, pair >> 32, pair & 0xFFFFFFFF), add=add)
            for pair in different.tolist()
        ]
        return np.array(rows, np.int64)[inverse]

    def _numbered(self, locations: Ints, *, add: bool) -> npt.NDArray[np.int64]:
        """Return the numbers of locations (n,); excess ones share a number."""
        different, inverse = np.unique(locations, return_inverse=True)
        if add:
            for location in different.tolist():
                if len(self._locations) == _MAX_LOCATIONS:
                    break
                self._locations.setdefault(location, len(self._locations))
        numbers = [self._locations.get(location, 0) for location in different.tolist()]
        return np.array(numbers, np.int64)[inverse]

    def _row(self, key: tuple[int, int, int], *, add: bool) -> int:
        row = self._rows.get(key, -1)
        if row < 0 and add:
            row = self._rows[key] = len(self._rows)
            if row == self._tokens.seen.shape[1]:
                self._tokens.add_rows(_ROWS_AT_ONCE)
        return row
