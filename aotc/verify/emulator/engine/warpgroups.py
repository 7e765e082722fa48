"""Warpgroups: four warps that meet wherever they start a `wgmma.mma_async`.

The multiplication is one operation of the whole warpgroup, so that what any of its warps then waits
for is done by all of them. Meeting orders no memory accesses.

Invariant: a warp is parked here only while another of its warpgroup has yet to come.
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

WARPS = 4  # of a warpgroup
_LANES = WARPS * WARP


class Warpgroups:
    """Hold the warps that wait for the others of their warpgroup."""

    def __init__(self, batch: Batch, release: Release) -> None:
        self._batch = batch
        self._release = release
        self._waiters: list[Waiter] = []

    def meet(self, context: LaneContext, waiter: Waiter, act: Callable[[Lanes], None]) -> bool:
        """Let `act` happen for the warpgroups that are complete; park the others' lanes.

        Returns whether all may go on, none having been parked before.

        Raises: Misuse for warps that come to different instructions, and for a CTA of fewer warps
        than a warpgroup has. A warp whose warpgroup lacks warps waits for ever.
        """
        context.require_whole_warps()
        if self._batch.warps_per_cta % WARPS:
            raise Misuse("wgmma", f"the CTA has {self._batch.warps_per_cta} warps, no warpgroup")
        if not self._waiters and self._are_whole(waiter.lanes):
            act(context.lanes)
            return True
        self._waiters.append(waiter)
        lanes = np.sort(np.concatenate([each.lanes for each in self._waiters]))
        complete = np.bincount(lanes // _LANES) == _LANES
        ready = lanes[complete[lanes // _LANES]]
        if len(ready):
            leaving = self._take(complete)
            self._check_same(leaving)
            act(as_lanes(ready))
            self._let_go(leaving)
        return False

    def waiting(self) -> Iterator[tuple[Waiter, str]]:
        """Yield who waits, and for what."""
        for waiter in self._waiters:
            yield waiter, "waits for the other warps of its warpgroup"

    def _are_whole(self, lanes: Ints) -> bool:
        """Say whether ascending lanes make whole warpgroups."""
        if len(lanes) % _LANES:
            return False
        groups = reshape(lanes, -1, _LANES) // _LANES
        return bool((groups[:, 0] == groups[:, -1]).all())

    def _take(self, complete: npt.NDArray[np.bool_]) -> list[Waiter]:
        """Return those who wait in complete warpgroups, and keep the others."""
        waiters, self._waiters = self._waiters, []
        leaving: list[Waiter] = []
        for waiter in waiters:
            goes = complete[waiter.lanes // _LANES]
            if goes.all():
                leaving.append(waiter)
            elif not goes.any():
                self._waiters.append(waiter)
            else:
                going, staying = waiter.split(goes)
                leaving.append(going)
                self._waiters.append(staying)
        return leaving

    def _let_go(self, leaving: list[Waiter]) -> None:
        """Let all go on, those that are at one place together: they have just met."""
        alike: dict[tuple[int, int], list[Waiter]] = {}
        for each in leaving:
            alike.setdefault((each.pc, id(each.join)), []).append(each)
        for (pc, _), members in alike.items():
            lanes = np.concatenate([each.lanes for each in members])
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
