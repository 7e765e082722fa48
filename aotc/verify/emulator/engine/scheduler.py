"""The scheduler: choose the next group of a batch, until all lanes have exited.

With seed 0, groups run in step. Pick the cluster furthest behind; within it, the group with the
fewest loop trips, then the lowest program counter, so that it catches up and merges with those
ahead. With another seed, groups are split, ordered and preempted at random, so that a missing
synchronisation shows as a different result; deferred operations run at random times, too. Either
way no group starves: one in loops yields to one outside.

Invariant: a batch that does not end is reported, as a deadlock or after `max_steps` instructions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from aotc.verify.emulator.engine.barriers import NamedBarriers, Waiter
from aotc.verify.emulator.engine.deadlock_report import warp_locations
from aotc.verify.emulator.engine.divergence import Group, Ints, Join, as_lanes, lane_array
from aotc.verify.emulator.engine.lane_context import LaneContext
from aotc.verify.emulator.engine.machine import Batch, Deferred
from aotc.verify.emulator.engine.segments import SPIN_ROUNDS, Code
from aotc.verify.emulator.engine.warp_barriers import ClusterBarriers, WarpBarriers
from aotc.verify.emulator.engine.warpgroups import WARPS, Warpgroups
from aotc.verify.emulator.errors import Fault, Misuse
from aotc.verify.emulator.syntax import Instruction
from aotc.verify.emulator.text.special_registers import WARP

_MAX_RANDOM_GROUPS = 12
_START_SPLITS = 3
_SPLIT_CHANCE = 0.25
_STAY_CHANCE = 0.75  # that the last group continues: long runs of one warp show more faults
_APART_CHANCE = 0.5  # that groups at one place stay apart
_PENDING_CHANCE = 0.125
_MAX_RETRIES = 64  # failed polls without an event, before a deadlock is reported


class Scheduler:
    """Run one batch of CTAs; `seed` 0 runs in step."""

    def __init__(self, batch: Batch, code: Code, seed: int, max_steps: int) -> None:
        self.batch = batch
        self.named_barriers = NamedBarriers(batch, self.release)
        self.warp_barriers = WarpBarriers(batch, self.release)
        self.cluster_barriers = ClusterBarriers(batch, self.release)
        self.warpgroups = Warpgroups(batch, self.release)
        self.lane_instructions = 0
        self.warp_instructions = 0
        self._code = code
        self._random = random.Random(seed) if seed else None  # noqa: S311 - not cryptography
        self._max_steps = max_steps
        self._groups: list[Group] = []
        self._polling: list[Group] = []
        self._seen_events = 0
        self._retries = 0  # retries of all polls since the last event, and its number
        self._retry_events = 0
        self._rounds = 0  # of the last group
        self._trips: tuple[int, ...] = ()
        self._pc = 0  # its instruction

    def run(self) -> None:
        """Run until all lanes have exited.

        Raises: Fault for an illegal act of the program.
        """
        batch = self.batch
        everyone = Group(0, as_lanes(np.flatnonzero(batch.alive)), None, 0)
        self._enqueue(everyone)
        if self._random is not None:
            # More than two parts: interdependent warps should not start together.
            for _ in range(_START_SPLITS):
                self._split(self._groups.pop(0))
        while True:
            if self._random is not None:
                self._perturb(self._random)
            if batch.events != self._seen_events:
                self._resume()
            if self._groups:
                if self._polling and self._random is None and self._run_deferred(self._stalled()):
                    continue
                self._run(self._pick())
            elif not self._run_deferred() and not self._retry_polls():
                break
        if batch.num_alive:
            raise self._deadlock()
        while self._run_deferred():
            pass

    def close(self) -> None:
        """Drop the batch and the barriers, which reference this scheduler."""
        self.batch.close()
        del self.named_barriers, self.warp_barriers, self.cluster_barriers, self.warpgroups

    # ---- called by ends of segments -----------------------------------------

    def context(self, instruction: Instruction, group: Group) -> LaneContext:
        """Return the context of an instruction for all lanes of a group."""
        return LaneContext(self.batch, instruction, group.lanes)

    def continue_at(self, group: Group, pc: int) -> None:
        """Continue a group at `pc`, once its warps are complete there."""
        if pc <= group.pc:
            self._loop(group, pc)
        start = self._pc if group.pc < 0 else group.pc
        group.trips = self._code.trips(group.trips, start, pc)
        group.pc = pc
        while group.join is not None and group.join.pc == pc:
            join = group.join
            lanes = join.arrive(lane_array(group.lanes))
            if not len(lanes):
                return
            group = Group(pc, as_lanes(lanes), join.parent, group.rounds, group.trips)
        if self.batch.poll is not None and self._polls(group):
            self._polling.append(group)
        else:
            self._enqueue(group)

    def fork(self, group: Group, ways: Sequence[Ints], meeting: int) -> list[Group]:
        """Return a group for the lanes of each way; diverging warps reconverge at `meeting`."""
        join = group.join
        if (
            meeting < self._code.length
            and (join is None or join.pc != meeting)
            and self._splits_a_warp(ways)
        ):
            join = Join(meeting, join, lane_array(group.lanes), self.batch.num_warps)
        pc, rounds, trips = group.pc, group.rounds, group.trips
        return [Group(pc, as_lanes(lanes), join, rounds, trips) for lanes in ways]

    def exit(self, group: Group) -> None:
        """Exit all lanes of a group."""
        batch = self.batch
        lanes = lane_array(group.lanes)
        batch.exit(lanes)
        join = group.join
        while join is not None:
            freed = join.exit(lanes)
            if len(freed):
                self.release(freed, join.pc, join.parent)
            join = join.parent
        if batch.num_alive:
            for barriers in (self.named_barriers, self.warp_barriers, self.cluster_barriers):
                barriers.exited(lanes)

    def release(self, lanes: Ints, pc: int, join: Join | None) -> None:
        """Continue parked lanes at `pc`."""
        self.continue_at(Group(-1, as_lanes(np.sort(lanes)), join, self._rounds, self._trips), pc)

    # ---- inside -------------------------------------------------------------

    def _run(self, group: Group) -> None:
        batch = self.batch
        segment = self._code.segments[group.pc]
        batch.steps += segment.length
        if batch.steps > self._max_steps:
            raise self._step_limit(group)
        self.lane_instructions += segment.length * group.count
        self.warp_instructions += segment.length * group.warps
        self._rounds, self._trips = group.rounds, group.trips
        batch.poll = None
        lanes = group.lanes
        group.pc = self._pc = segment.stop - 1
        for step in segment.steps:
            step(lanes)
        try:
            segment.end(self, group)
        except Misuse as misuse:
            instruction = self._code.instructions[segment.stop - 1]
            raise batch.fault_of(misuse, instruction) from None

    def _loop(self, group: Group, pc: int) -> None:
        """Account for a jump back to `pc`."""
        batch = self.batch
        rounds = self._code.rounds(pc, group.pc)
        # A failed poll parks the group, so it keeps no other from running.
        if rounds < SPIN_ROUNDS or batch.poll is None or not batch.polling[group.lanes].all():
            group.rounds += rounds
        join = group.join if rounds == SPIN_ROUNDS else None
        while join is not None:
            freed = join.spin()
            if freed is not None:
                self.release(freed, join.pc, join.parent)
            join = join.parent

    def _polls(self, group: Group) -> bool:
        """Return whether all lanes of a group poll without success."""
        polling = self.batch.polling
        if polling[group.lanes].all():
            group.seen_events = self.batch.events
            group.poll = self.batch.poll
            return True
        polling[group.lanes] = False
        return False

    def _splits_a_warp(self, ways: Sequence[Ints]) -> bool:
        touched = np.zeros(self.batch.num_warps, bool)
        for lanes in ways:
            warps = lanes >> 5
            if touched[warps].any():
                return True
            touched[warps] = True
        return False

    def _enqueue(self, group: Group) -> None:
        """Add a runnable group, or merge it with one at the same place."""
        chance = self._random
        apart = len(self._groups) < _MAX_RANDOM_GROUPS
        if chance is None or not apart or chance.random() > _APART_CHANCE:
            for other in self._groups:
                if other.pc == group.pc and other.join is group.join:
                    other.merge(group)
                    return
        self._groups.append(group)

    def _pick(self) -> Group:
        groups = self._groups
        if len(groups) == 1:
            return groups.pop()
        chance = self._random
        if chance is not None:
            stays = chance.random() < _STAY_CHANCE
            return groups.pop(-1 if stays else chance.randrange(len(groups)))
        progresses = [
            self._code.progress(group.pc, group.trips) for group in (*groups, *self._polling)
        ]
        least_progress: dict[
            int, tuple[int, ...]
        ] = {}  # by cluster: the progress of its rearmost warps
        for progress, group in sorted(
            zip(progresses, (*groups, *self._polling), strict=True), key=itemgetter(0), reverse=True
        ):
            least_progress.update(dict.fromkeys(self._clusters_of(group), progress))
        best = min(
            range(len(groups)),
            key=lambda index: (
                groups[index].rounds // SPIN_ROUNDS,
                min(least_progress[cluster] for cluster in self._clusters_of(groups[index])),
                progresses[index],
            ),
        )
        return groups.pop(best)

    def _resume(self) -> None:
        """Retry the polls that have not run since the last event."""
        events = self._seen_events = self.batch.events
        polling, self._polling = self._polling, []
        for group in polling:
            if group.seen_events < events:
                self.batch.polling[group.lanes] = False
                self._enqueue(group)
            else:
                self._polling.append(group)

    def _retry_polls(self) -> bool:
        """Retry all failed polls without an event; return whether any may.

        A single `test_wait` may be a question without a wait. A repeated one is a wait.
        """
        if self.batch.events != self._retry_events:
            self._retry_events, self._retries = self.batch.events, 0
        self._retries += 1
        if not self._polling or self._retries > _MAX_RETRIES:
            return False
        polling, self._polling = self._polling, []
        for group in polling:
            self.batch.polling[group.lanes] = False
            self._enqueue(group)
        return True

    def _run_deferred(self, clusters: frozenset[int] | None = None) -> bool:
        """Run the oldest possible operations of each cluster, or of `clusters` alone.

        Returns whether there was one. Operations run until one of the cluster's warps can continue.
        An awaited operation unblocks only a warp that forces it, so it runs then, or when nothing
        else can. Clusters are independent: each continues when it would if it ran alone, and
        clusters doing the same stay together.
        """
        operations = self.batch.take_pending()
        if clusters is not None:
            operations = [
                pending for pending in operations if clusters.issuperset(pending.clusters)
            ]
        return any(
            self._run_deferred_among(
                [pending for pending in operations if pending.is_awaited == is_awaited]
            )
            for is_awaited in (False, True)
        )

    def _stalled(self) -> frozenset[int]:
        """Return the clusters with all warps waiting, while others can run.

        Their operations run before others get ahead; else launches in step would drift apart.
        """
        waiting = frozenset[int]().union(*map(self._clusters_of, self._polling))
        return waiting.difference(*map(self._clusters_of, self._groups))

    def _clusters_of(self, group: Group) -> frozenset[int]:
        """Return the clusters of the batch with lanes in a group."""
        if group.clusters is None:
            lanes = self.batch.cluster_size * self.batch.warps_per_cta * WARP
            warps = lane_array(group.lanes)[:: WARP if group.count == group.warps * WARP else 1]
            group.clusters = frozenset((warps // lanes).tolist())
        return group.clusters

    def _run_deferred_among(self, every: Sequence[Deferred]) -> bool:
        served: dict[int, None] = {}
        is_any = False
        for pending in every:
            if pending.ready and served.keys().isdisjoint(pending.clusters):
                is_any = True
                if self._force(pending):
                    served.update(dict.fromkeys(pending.clusters))
        return is_any

    def _force(self, pending: Deferred) -> bool:
        """Run an operation; return whether waiting warps may continue."""
        events = self.batch.events
        pending.force()
        if not pending.is_silent:
            self.batch.note_event()
        return self.batch.events != events

    def _perturb(self, chance: random.Random) -> None:
        """Run operations early, and split a group, as the seed decides."""
        if self.batch.pending and chance.random() < _PENDING_CHANCE:
            ready = [pending for pending in self.batch.take_pending() if pending.ready]
            if ready:
                self._force(chance.choice(ready))
        groups = self._groups
        if groups and len(groups) < _MAX_RANDOM_GROUPS and chance.random() < _SPLIT_CHANCE:
            self._split(groups.pop(chance.randrange(len(groups))))

    def _split(self, group: Group) -> None:
        """Split a group into two of random warps, or leave it whole by chance."""
        lanes = lane_array(group.lanes)
        # Warps of a warpgroup about to meet need not split before.
        together = WARPS if self._code.segments[group.pc].meets else 1
        units = lanes // (WARP * together)
        first_half = (self.batch.random.random(-(-self.batch.num_warps // together)) < 0.5)[units]
        for part in (lanes[first_half], lanes[~first_half]):
            if len(part):
                self._groups.append(
                    Group(group.pc, as_lanes(part), group.join, group.rounds, group.trips)
                )

    # ---- faults -------------------------------------------------------------

    def _deadlock(self) -> Fault:
        waits = list(self._waits())
        waiter, _ = waits[0]
        return self.batch.fault(
            "deadlock",
            "all warps wait, and nothing can happen any more",
            waiter.instruction,
            int(waiter.lanes[0]),
            warp_locations(self.batch, waits),
        )

    def _step_limit(self, group: Group) -> Fault:
        instruction = self._code.instructions[group.pc]
        waits = [*self._waits(), *((self._waiter(other), "runs") for other in self._groups)]
        return self.batch.fault(
            "steps",
            f"still running after {self._max_steps:,} instructions: an endless loop?",
            instruction,
            int(lane_array(group.lanes)[0]),
            warp_locations(self.batch, [(self._waiter(group), "runs"), *waits]),
        )

    def _waits(self) -> Iterator[tuple[Waiter, str]]:
        yield from self.named_barriers.waiting()
        yield from self.warp_barriers.waiting()
        yield from self.cluster_barriers.waiting()
        yield from self.warpgroups.waiting()
        for group in self._polling:
            poll, waiter = group.poll, self._waiter(group)
            assert poll is not None
            why = poll.why and poll.why(int(waiter.lanes[0]))
            yield replace(waiter, instruction=poll.instruction), why or "waits for what never comes"

    def _waiter(self, group: Group) -> Waiter:
        instruction = self._code.instructions[group.pc]
        return Waiter(lane_array(group.lanes), group.pc, group.join, instruction)
