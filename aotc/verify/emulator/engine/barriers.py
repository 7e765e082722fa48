"""Named barriers of a CTA: `bar.sync`, `bar.arrive`, `bar.red` and `barrier.cta`.

A barrier counts warps, 32 threads each. Without an explicit count it expects exited warps too: they
can never arrive, so waiting for them is a deadlock. All CTAs of the batch are handled at once.

A barrier for part of a CTA goes by number alone, so it counts any warp that arrives. The set must
be unambiguous: an arriving warp must be ordered after the earlier arrivals of other, already
released warps.

Invariant: an idle barrier has no arrivals, no expected count and no waiter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape
from aotc.verify.emulator.engine.divergence import Ints, Join
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Batch
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.memory.vector_clocks import Clocks
from aotc.verify.emulator.syntax import Instruction
from aotc.verify.emulator.text.special_registers import WARP

Release: TypeAlias = Callable[[Ints, int, "Join | None"], None]
NUM_BARRIERS = 16


@dataclass(frozen=True, slots=True)
class Waiter:
    """Hold waiting lanes, their next instruction, and their values for a reduction."""

    lanes: Ints
    pc: int
    join: Join | None
    instruction: Instruction
    values: npt.NDArray[np.bool_] | None = None

    def split(self, mask: npt.NDArray[np.bool_]) -> tuple[Waiter, Waiter]:
        """Split into the lanes of `mask` and the rest."""
        values = self.values
        return (
            replace(self, lanes=self.lanes[mask], values=None if values is None else values[mask]),
            replace(
                self, lanes=self.lanes[~mask], values=None if values is None else values[~mask]
            ),
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """Describe an arrival: the barrier, its expected threads, and the instruction's kind."""

    barrier: int
    threads: int
    aligned: bool
    waits: bool


class NamedBarriers:
    """Hold the sixteen barriers of every CTA of a batch."""

    def __init__(self, batch: Batch, release: Release) -> None:
        self._batch = batch
        self._release = release
        shape = (NUM_BARRIERS, batch.num_ctas)
        self._threads = batch.launched_warps * WARP
        self._arrived = np.zeros(shape, np.int64)  # threads
        self._expected = np.zeros(shape, np.int64)  # threads; 0 while idle
        self._warps = np.zeros((NUM_BARRIERS, batch.num_warps), bool)  # arrived
        # The latest stamp at each warp's arrival, for barriers of part of a CTA.
        self._arrival_stamps = np.zeros((NUM_BARRIERS, batch.num_warps), np.int64)
        self._partial_arrivals = np.full(
            batch.num_lanes, -1, np.int8
        )  # arrived lanes of incomplete warps
        self._waiters: list[list[Waiter]] = [[] for _ in range(NUM_BARRIERS)]
        self._tokens: Clocks | None = None

    def passes_at_once(self, context: LaneContext, arrival: Arrival) -> bool:
        """Pass the barrier if all threads of the batch arrive together; return whether they do."""
        batch = self._batch
        if not (
            context.count == batch.num_alive == batch.num_threads
            and arrival.threads == self._threads
            and arrival.waits
            and not self._waiters[arrival.barrier]
            and not self._expected[arrival.barrier].any()
        ):
            return False
        warps = reshape(np.arange(batch.num_warps), batch.num_ctas, batch.warps_per_cta)
        batch.order.join(warps)
        return True

    def arrive(self, context: LaneContext, waiter: Waiter, arrival: Arrival) -> None:
        """Count the warps of a context; release the waiters of completed barriers."""
        batch = self._batch
        number, limit = arrival.barrier, batch.order.limit()
        if arrival.aligned:
            context.require_whole_warps()
            warps = context.warps()
        else:
            warps = self._complete_warps(context, number)
        if arrival.waits:
            self._waiters[number].append(waiter)
        elif len(warps):
            if self._tokens is None:
                self._tokens = Clocks(NUM_BARRIERS * batch.num_ctas, batch.order.columns)
            lanes = context.lane_indices()
            rows = number * batch.num_ctas + context.cta_indices()
            batch.order.release(lanes, self._tokens, rows)
        self._count(context, arrival, warps, limit)

    def exited(self, lanes: Ints) -> None:
        """Count warps in, now complete because their missing lanes have exited."""
        if not (self._partial_arrivals >= 0).any():
            return
        for number in range(NUM_BARRIERS):
            for waiter in list(self._waiters[number]):
                touched = np.isin(waiter.lanes >> 5, lanes >> 5) & (
                    self._partial_arrivals[waiter.lanes] == number
                )
                if touched.any():
                    context = LaneContext(self._batch, waiter.instruction, waiter.lanes[touched])
                    warps = self._complete_warps(context, number)
                    threads = int(self._expected[number].max()) or self._threads
                    arrival = Arrival(number, threads, aligned=False, waits=True)
                    self._count(context, arrival, warps, self._batch.order.limit())

    def waiting(self) -> Iterator[tuple[Waiter, str]]:
        """Yield each waiter and the reason it waits."""
        for number, waiters in enumerate(self._waiters):
            for waiter in waiters:
                cta = int(self._batch.cta_of_lane[waiter.lanes[0]])
                arrived = int(self._arrived[number, cta])
                expected = int(self._expected[number, cta])
                yield (
                    waiter,
                    f"waits at barrier {number}, where {arrived} of {expected} threads are",
                )

    # ---- inside -------------------------------------------------------------

    def _complete_warps(self, context: LaneContext, number: int) -> Ints:
        """Record lanes that arrive individually; return the warps now complete."""
        self._partial_arrivals[context.lanes] = number
        warps = context.warps()
        arrived = reshape(self._partial_arrivals == number, -1, WARP)[warps]
        alive = reshape(self._batch.alive, -1, WARP)[warps]
        complete = warps[(arrived | ~alive).all(axis=1)]
        reshape(self._partial_arrivals, -1, WARP)[complete] = -1
        return complete

    def _count(self, context: LaneContext, arrival: Arrival, warps: Ints, limit: int) -> None:
        """Count warps in; `limit` bounds the stamps of their last accesses."""
        batch = self._batch
        number = arrival.barrier
        ctas = warps // batch.warps_per_cta
        again = self._warps[number, warps]
        if again.any():
            raise self._misuse(
                context,
                int(warps[int(np.argmax(again))]),
                f"the warp arrives at barrier {number} again before the barrier is complete",
            )
        expected = self._expected[number]
        differs = (expected[ctas] != 0) & (expected[ctas] != arrival.threads)
        if differs.any():
            warp = int(warps[int(np.argmax(differs))])
            other = int(expected[warp // batch.warps_per_cta])
            raise self._misuse(
                context,
                warp,
                f"barrier {number} is to count {arrival.threads} threads here, "
                f"and {other} where others have arrived",
            )
        if arrival.threads < self._threads:
            self._require_order(context, number, warps)
            self._arrival_stamps[number, warps] = limit
        self._warps[number, warps] = True
        expected[ctas] = arrival.threads
        np.add.at(self._arrived[number], ctas, WARP)
        touched = np.unique(ctas)
        over = touched[self._arrived[number, touched] > arrival.threads]
        if over.size:
            message = f"more than {arrival.threads} threads arrive at barrier {number} at once"
            warp = int(warps[int(np.argmax(ctas == over[0]))])
            raise self._misuse(context, warp, f"{message}, where so many are to be counted")
        complete = touched[self._arrived[number, touched] == arrival.threads]
        if len(complete):
            self._complete(number, complete)

    def _require_order(self, context: LaneContext, number: int, warps: Ints) -> None:
        """Raise a fault if a warp may arrive before warps the barrier has released.

        In another order of warps, it would have been counted in place of one of them.
        """
        batch, size = self._batch, self._batch.warps_per_cta
        cta_warps = (warps // size * size)[:, None] + np.arange(size)
        early = ~batch.order.have_seen(
            warps, batch.order.columns_of_warps(cta_warps), self._arrival_stamps[number, cta_warps]
        )
        early &= (cta_warps != warps[:, None]) & ~self._warps[number, cta_warps]
        if early.any():
            row, other = np.argwhere(early)[0].tolist()  # columns follow the CTA's warp order
            raise self._misuse(
                context,
                int(warps[row]),
                f"the warp arrives at barrier {number}, where warp {other} of its CTA has been, "
                "with nothing between that orders the two",
            )

    def _complete(self, number: int, ctas: Ints) -> None:
        batch = self._batch
        is_complete = np.zeros(batch.num_ctas, bool)
        is_complete[ctas] = True
        self._arrived[number, ctas] = 0
        self._expected[number, ctas] = 0
        reshape(self._warps[number], batch.num_ctas, -1)[ctas] = False
        leaving: list[Waiter] = []
        staying: list[Waiter] = []
        for waiter in self._waiters[number]:
            released, parked = waiter.split(is_complete[batch.cta_of_lane[waiter.lanes]])
            leaving += [released] if len(released.lanes) else []
            staying += [parked] if len(parked.lanes) else []
        self._waiters[number] = staying
        if not leaving:
            return
        self._synchronise(number, np.sort(np.concatenate([waiter.lanes for waiter in leaving])))
        self._reduce([waiter for waiter in leaving if waiter.values is not None])
        for waiter in leaving:
            self._release(waiter.lanes, waiter.pc, waiter.join)

    def _synchronise(self, number: int, lanes: Ints) -> None:
        batch = self._batch
        if self._tokens is not None:
            rows = number * batch.num_ctas + batch.cta_of_lane[lanes]
            batch.order.acquire(lanes, self._tokens, rows)
            self._tokens.clear(np.unique(rows))
        warps = np.unique(lanes >> 5)
        ctas = warps // batch.warps_per_cta
        counts = np.bincount(ctas, minlength=batch.num_ctas)
        for count in np.unique(counts[counts > 0]).tolist():
            batch.order.join(reshape(warps[counts[ctas] == count], -1, count))

    def _reduce(self, waiters: list[Waiter]) -> None:
        """Write each `bar.red` result from the values of all threads of its CTA."""
        batch = self._batch
        true = np.zeros(batch.num_ctas, np.int64)
        total = np.zeros(batch.num_ctas, np.int64)
        for waiter in waiters:
            ctas = batch.cta_of_lane[waiter.lanes]
            assert waiter.values is not None
            np.add.at(true, ctas, waiter.values)
            np.add.at(total, ctas, 1)
        for waiter in waiters:
            ctas = batch.cta_of_lane[waiter.lanes]
            results: dict[str, npt.NDArray[Any]] = {
                "popc": true[ctas],
                "and": true[ctas] == total[ctas],
                "or": true[ctas] > 0,
            }
            kind = next(name for name in results if name in waiter.instruction.modifiers)
            context = LaneContext(batch, waiter.instruction, waiter.lanes)
            context.write(waiter.instruction.operands[0], results[kind])

    def _misuse(self, context: LaneContext, warp: int, message: str) -> Fault:
        return self._batch.fault("barrier", message, context.instruction, warp * WARP)
