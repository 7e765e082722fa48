"""Barriers of threads rather than warps: `bar.warp.sync` and `barrier.cluster`.

Invariant: a thread is parked here only while a live thread has yet to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape
from aotc.verify.emulator.engine.barriers import Release, Waiter
from aotc.verify.emulator.engine.divergence import Ints
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Batch
from aotc.verify.emulator.memory.vector_clocks import Clocks
from aotc.verify.emulator.text.special_registers import WARP

_BITS: npt.NDArray[np.uint32] = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))


class WarpBarriers:
    """Hold the lanes waiting at a `bar.warp.sync`."""

    def __init__(self, batch: Batch, release: Release) -> None:
        self._batch = batch
        self._release = release
        self._arrived = np.zeros(batch.num_lanes, bool)
        self._masks = np.zeros(batch.num_warps, np.uint32)
        self._waiters: list[Waiter] = []

    def passes_at_once(self, context: LaneContext, masks: npt.NDArray[np.uint32]) -> bool:
        """Pass the barrier if all lanes of the masks arrive together; return whether they do."""
        lanes = context.lane_indices()
        is_member = masks >> (lanes & 31).astype(np.uint32) & 1
        if not is_member.all():
            lane = int(lanes[int(np.argmin(is_member))])
            raise context.fault("the thread is not in its own mask", lane)
        if self._waiters:
            return False
        warps = context.warps()
        first = np.searchsorted(lanes, warps * WARP)
        expected = (masks[first][:, None] & _BITS != 0) & reshape(self._batch.alive, -1, WARP)[
            warps
        ]
        if (expected & ~context.active()).any():
            return False
        self._batch.order.warp_sync(warps)
        return True

    def arrive(self, waiter: Waiter, masks: npt.NDArray[np.uint32]) -> None:
        """Park lanes, and release the warps now complete."""
        warps = waiter.lanes >> 5
        has_arrivals = reshape(self._arrived, -1, WARP)[warps].any(axis=1)
        differs = has_arrivals & (self._masks[warps] != masks)
        if differs.any():
            lane = int(waiter.lanes[int(np.argmax(differs))])
            raise self._batch.fault(
                "barrier", "threads of one warp give different masks", waiter.instruction, lane
            )
        self._masks[warps] = masks
        self._arrived[waiter.lanes] = True
        self._waiters.append(waiter)
        self._release_ready(np.unique(warps))

    def exited(self, lanes: Ints) -> None:
        """Release lanes that waited for lanes now exited."""
        if self._waiters:
            self._release_ready(np.unique(lanes >> 5))

    def waiting(self) -> Iterator[tuple[Waiter, str]]:
        """Yield each waiter and the reason it waits."""
        for waiter in self._waiters:
            yield waiter, "waits at bar.warp.sync for other lanes of its warp"

    def _release_ready(self, warps: Ints) -> None:
        arrived = reshape(self._arrived, -1, WARP)
        alive = reshape(self._batch.alive, -1, WARP)[warps]
        expected = (self._masks[warps][:, None] & _BITS != 0) & alive
        ready = warps[(arrived[warps] | ~expected).all(axis=1) & arrived[warps].any(axis=1)]
        if not len(ready):
            return
        arrived[ready] = False
        waiters, self._waiters = self._waiters, []
        self._batch.order.warp_sync(ready)
        leaving: list[Waiter] = []
        for waiter in waiters:
            released, parked = waiter.split(np.isin(waiter.lanes >> 5, ready))
            leaving += [released] if len(released.lanes) else []
            self._waiters += [parked] if len(parked.lanes) else []
        for waiter in leaving:
            self._release(waiter.lanes, waiter.pc, waiter.join)


class ClusterBarriers:
    """Hold the barrier of every cluster: each thread arrives, then waits for all arrivals."""

    def __init__(self, batch: Batch, release: Release) -> None:
        self._batch = batch
        self._release = release
        self._lanes_per_cluster = batch.cluster_size * batch.warps_per_cta * WARP
        clusters = batch.num_lanes // self._lanes_per_cluster
        self._phase = np.zeros(clusters, np.int64)
        self._arrival_phase = np.full(
            batch.num_lanes, -1, np.int64
        )  # the phase of a lane's pending arrival
        self._tokens = Clocks(2 * clusters, batch.order.columns)  # by cluster and parity of phase
        self._waiters: list[Waiter] = []

    def arrive(self, context: LaneContext, release: Callable[[Ints, Clocks, Ints], None]) -> None:
        """Count lanes in; each releases its writes to the waiters."""
        again = self._arrival_phase[context.lanes] >= 0
        if again.any():
            lane = int(context.lane_indices()[int(np.argmax(again))])
            raise context.fault("the thread arrives twice without a wait in between", lane)
        lanes = context.lane_indices()
        clusters = lanes // self._lanes_per_cluster
        release(lanes, self._tokens, 2 * clusters + self._phase[clusters] % 2)
        self._arrival_phase[lanes] = self._phase[clusters]
        self._advance(np.unique(clusters))

    def wait(self, context: LaneContext, waiter: Waiter) -> None:
        """Continue the lanes of complete clusters; park the others."""
        late = self._arrival_phase[context.lanes] < 0
        if late.any():
            lane = int(context.lane_indices()[int(np.argmax(late))])
            raise context.fault("the thread waits without having arrived", lane)
        lanes = waiter.lanes
        ready = self._arrival_phase[lanes] < self._phase[lanes // self._lanes_per_cluster]
        released, parked = waiter.split(ready)
        if len(parked.lanes):
            self._waiters.append(parked)
        if len(released.lanes):
            self._pass(released)

    def exited(self, lanes: Ints) -> None:
        """Stop expecting exited lanes."""
        self._arrival_phase[lanes] = -1
        self._advance(np.unique(lanes // self._lanes_per_cluster))

    def waiting(self) -> Iterator[tuple[Waiter, str]]:
        """Yield each waiter and the reason it waits."""
        for waiter in self._waiters:
            yield waiter, "waits at the barrier of its cluster"

    def _advance(self, clusters: Ints) -> None:
        arrived = self._arrival_phase == np.repeat(self._phase, self._lanes_per_cluster)
        complete = cast(
            "npt.NDArray[np.bool_]",
            reshape(arrived | ~self._batch.alive, len(self._phase), -1).all(axis=1),
        )
        complete &= reshape(arrived, len(self._phase), -1).any(axis=1)
        advancing = clusters[complete[clusters]]
        if not len(advancing):
            return
        self._phase[advancing] += 1
        self._tokens.clear(2 * advancing + self._phase[advancing] % 2)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            released, parked = waiter.split(
                np.isin(waiter.lanes // self._lanes_per_cluster, advancing)
            )
            self._waiters += [parked] if len(parked.lanes) else []
            if len(released.lanes):
                self._pass(released)

    def _pass(self, waiter: Waiter) -> None:
        lanes = waiter.lanes
        clusters = lanes // self._lanes_per_cluster
        self._batch.order.acquire(
            lanes, self._tokens, 2 * clusters + self._arrival_phase[lanes] % 2
        )
        self._arrival_phase[lanes] = -1
        self._release(lanes, waiter.pc, waiter.join)
