"""Warpgroups: four warps that meet at each start of a `wgmma.mma_async`.

The multiplication is one operation of the whole warpgroup, so a wait by one of its warps completes
it for all. Meeting orders no memory accesses.

Invariant: a warp is parked here only while another of its warpgroup has yet to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape
from aotc.verify.emulator.engine.barriers import Release, Waiter
from aotc.verify.emulator.engine.divergence import Ints, Lanes, as_lanes
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Batch
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.text.special_registers import WARP

WARPS = 4  # per warpgroup
_LANES = WARPS * WARP


class Warpgroups:
    """Hold warps that wait for the rest of their warpgroup."""

    def __init__(self, batch: Batch, release: Release) -> None:
        self._batch = batch
        self._release = release
        self._waiters: list[Waiter] = []

    def meet(self, context: LaneContext, waiter: Waiter, act: Callable[[Lanes], None]) -> bool:
        """Call `act` for complete warpgroups; park the lanes of the others.

        Returns whether all may continue, with none parked before.

        Raises: Misuse for warps at different instructions, and for a CTA without whole warpgroups.
        A warp whose warpgroup lacks warps waits forever.
        """
        context.require_whole_warps()
        if self._batch.warps_per_cta % WARPS:
            raise Misuse("wgmma", f"the CTA has {self._batch.warps_per_cta} warps, no warpgroup")
        if not self._waiters and self._are_whole(waiter.lanes):
            act(context.lanes)
            return True
        self._waiters.append(waiter)
        lanes = np.sort(np.concatenate([parked.lanes for parked in self._waiters]))
        complete = np.bincount(lanes // _LANES) == _LANES
        ready = lanes[complete[lanes // _LANES]]
        if len(ready):
            leaving = self._take_complete(complete)
            self._check_same(leaving)
            act(as_lanes(ready))
            self._release_parked(leaving)
        return False

    def waiting(self) -> Iterator[tuple[Waiter, str]]:
        """Yield each waiter and the reason it waits."""
        for waiter in self._waiters:
            yield waiter, "waits for the other warps of its warpgroup"

    def _are_whole(self, lanes: Ints) -> bool:
        """Return whether ascending lanes form whole warpgroups."""
        if len(lanes) % _LANES:
            return False
        groups = reshape(lanes, -1, _LANES) // _LANES
        return bool((groups[:, 0] == groups[:, -1]).all())

    def _take_complete(self, complete: npt.NDArray[np.bool_]) -> list[Waiter]:
        """Remove and return the waiters of complete warpgroups."""
        waiters, self._waiters = self._waiters, []
        leaving: list[Waiter] = []
        for waiter in waiters:
            is_leaving = complete[waiter.lanes // _LANES]
            if is_leaving.all():
                leaving.append(waiter)
            elif not is_leaving.any():
                self._waiters.append(waiter)
            else:
                going, staying = waiter.split(is_leaving)
                leaving.append(going)
                self._waiters.append(staying)
        return leaving

    def _release_parked(self, leaving: list[Waiter]) -> None:
        """Release all waiters, grouped by program counter and join, since they have just met."""
        alike: dict[tuple[int, int], list[Waiter]] = {}
        for waiter in leaving:
            alike.setdefault((waiter.pc, id(waiter.join)), []).append(waiter)
        for (pc, _), members in alike.items():
            lanes = np.concatenate([waiter.lanes for waiter in members])
            self._release(lanes, pc, members[0].join)

    def _check_same(self, waiters: list[Waiter]) -> None:
        """Check that the warps of each warpgroup are at one instruction."""
        line = np.zeros(self._batch.num_lanes // _LANES, np.int64)
        for waiter in waiters:
            groups = waiter.lanes // _LANES
            differs = (line[groups] != 0) & (line[groups] != waiter.instruction.line)
            if differs.any():
                raise Misuse(
                    "wgmma",
                    "the warps of a warpgroup start different multiplications: the others are at "
                    f"line {int(line[groups[differs]][0])}",
                    lane=int(waiter.lanes[np.argmax(differs)]),
                    instruction=waiter.instruction,
                )
            line[groups] = waiter.instruction.line
