"""Who runs next: the groups of a batch, until all lanes have exited.

With seed 0 groups run in step: those of the cluster that is behind first, and of these those who are
themselves, in loops the ones that have gone round less often, else the ones at the lowest program
counter, so that they catch up and merge with those ahead. With another seed, groups are split, ordered
and preempted at random, so that a missing synchronisation shows as a different result; what is
deferred happens at random, too. Either way nobody starves: who goes through loops lets those go
first who do not.

Invariant: a batch that does not end is reported, as a deadlock or after `max_steps` instructions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from aotc.verify.emulator.engine.barriers import NamedBarriers, Waiter
from aotc.verify.emulator.engine.deadlock_report import places
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
_STAY_CHANCE = 0.75  # that whoever ran goes on: long runs of one warp show more than short ones
_APART_CHANCE = 0.5  # that groups which meet stay apart
_PENDING_CHANCE = 0.125
_MAX_ASKED = 64  # polls in vain, with nothing happening in between, that are no deadlock yet


class Scheduler:
    """Run one batch of CTAs; `seed` 0 is in step."""

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
        self._asked = 0  # how often all went on without an event, and after which
        self._asked_events = 0
        self._rounds = 0  # of the group that ran last
        self._trips: tuple[int, ...] = ()
        self._place = 0  # the instruction at which it is

    def run(self) -> None:
        """Run until all lanes have exited.

        Raises: Fault for what the program may not do.
        """
        batch = self.batch
        everyone = Group(0, as_lanes(np.flatnonzero(batch.alive)), None, 0)
        self._enqueue(everyone)
        if self._random is not None:
            # More than two parts: warps that depend on each other should not start together.
            for _ in range(_START_SPLITS):
                self._split(self._groups.pop(0))
        while True:
            if self._random is not None:
                self._disturb(self._random)
            if batch.events != self._seen_events:
                self._resume()
            if self._groups:
                if self._polling and self._random is None and self._happen(self._stalled()):
                    continue
                self._run(self._pick())
            elif not self._happen() and not self._ask_again():
                break
        if batch.num_alive:
            raise self._deadlock()
        while self._happen():
            pass

    def close(self) -> None:
        """Let go of the batch and of the barriers, which know this scheduler."""
        self.batch.close()
        del self.named_barriers, self.warp_barriers, self.cluster_barriers, self.warpgroups

    # ---- what ends of segments call -----------------------------------------

    def context(self, instruction: Instruction, group: Group) -> LaneContext:
        """Return the context of an instruction for all lanes of a group."""
        return LaneContext(self.batch, instruction, group.lanes)

    def go_on(self, group: Group, pc: int) -> None:
        """Let a group go on at `pc`, once its warps are complete there."""
        if pc <= group.pc:
            self._loop(group, pc)
        start = self._place if group.pc < 0 else group.pc
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
        """Return groups of the lanes of each way; warps that part are to meet at `meeting`."""
        join = group.join
        if (
            meeting < self._code.length
            and (join is None or join.pc != meeting)
            and self._part_warps(ways)
        ):
            join = Join(meeting, join, lane_array(group.lanes), self.batch.num_warps)
        pc, rounds, trips = group.pc, group.rounds, group.trips
        return [Group(pc, as_lanes(lanes), join, rounds, trips) for lanes in ways]

    def exit(self, group: Group) -> None:
        """Let all lanes of a group exit."""
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
        """Let lanes that were parked go on at `pc`."""
        self.go_on(Group(-1, as_lanes(np.sort(lanes)), join, self._rounds, self._trips), pc)

    # ---- inside -------------------------------------------------------------

    def _run(self, group: Group) -> None:
        batch = self.batch
        segment = self._code.segments[group.pc]
        batch.steps += segment.length
        if batch.steps > self._max_steps:
            raise self._endless(group)
        self.lane_instructions += segment.length * group.count
        self.warp_instructions += segment.length * group.warps
        self._rounds, self._trips = group.rounds, group.trips
        batch.poll = None
        lanes = group.lanes
        group.pc = self._place = segment.stop - 1
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
        # Who polls in vain is parked, and so keeps nobody from running.
        if rounds < SPIN_ROUNDS or batch.poll is None or not batch.polling[group.lanes].all():
            group.rounds += rounds
        join = group.join if rounds == SPIN_ROUNDS else None
        while join is not None:
            freed = join.spin()
            if freed is not None:
                self.release(freed, join.pc, join.parent)
            join = join.parent

    def _polls(self, group: Group) -> bool:
        """Say whether all lanes of a group wait for something that has not happened."""
        polling = self.batch.polling
        if polling[group.lanes].all():
            group.seen_events = self.batch.events
            group.poll = self.batch.poll
            return True
        polling[group.lanes] = False
        return False

    def _part_warps(self, ways: Sequence[Ints]) -> bool:
        touched = np.zeros(self.batch.num_warps, bool)
        for lanes in ways:
            warps = lanes >> 5
            if touched[warps].any():
                return True
            touched[warps] = True
        return False

    def _enqueue(self, group: Group) -> None:
        """Add a group to those that can run; it is merged with one at the same place."""
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
        places = [self._code.progress(group.pc, group.trips) for group in (*groups, *self._polling)]
        behind: dict[
            int, tuple[int, ...]
        ] = {}  # the warps of each cluster that are behind its others
        for place, group in sorted(
            zip(places, (*groups, *self._polling), strict=True), key=itemgetter(0), reverse=True
        ):
            behind.update(dict.fromkeys(self._clusters_of(group), place))
        best = min(
            range(len(groups)),
            key=lambda index: (
                groups[index].rounds // SPIN_ROUNDS,
                min(behind[each] for each in self._clusters_of(groups[index])),
                places[index],
            ),
        )
        return groups.pop(best)

    def _resume(self) -> None:
        """Let those poll again that have not polled since the last event."""
        events = self._seen_events = self.batch.events
        polling, self._polling = self._polling, []
        for group in polling:
            if group.seen_events < events:
                self.batch.polling[group.lanes] = False
                self._enqueue(group)
            else:
                self._polling.append(group)

    def _ask_again(self) -> bool:
        """Let all that polled in vain go on, though nothing has happened; say whether they may.

        `test_wait` may be a question that nobody waits for. Who keeps asking does wait.
        """
        if self.batch.events != self._asked_events:
            self._asked_events, self._asked = self.batch.events, 0
        self._asked += 1
        if not self._polling or self._asked > _MAX_ASKED:
            return False
        polling, self._polling = self._polling, []
        for group in polling:
            self.batch.polling[group.lanes] = False
            self._enqueue(group)
        return True

    def _happen(self, clusters: frozenset[int] | None = None) -> bool:
        """Let the oldest operations of each cluster happen that can; say whether there was one.

        Those of `clusters` alone, if they are given.

        It is as many as it takes until one of its warps may go on. What lets nobody go on but who
        waits for it happens then, or when nothing else can. Clusters know nothing of each other:
        each goes on when it would if it ran alone, and where they do the same they stay together.
        """
        every = self.batch.take_pending()
        if clusters is not None:
            every = [each for each in every if clusters.issuperset(each.clusters)]
        return any(
            self._happen_among([each for each in every if each.is_awaited == is_awaited])
            for is_awaited in (False, True)
        )

    def _stalled(self) -> frozenset[int]:
        """Return the clusters of which all warps wait, while others may go on.

        What they wait for happens before others get ahead: else launches that are in step would part.
        """
        waiting = frozenset[int]().union(*map(self._clusters_of, self._polling))
        return waiting.difference(*map(self._clusters_of, self._groups))

    def _clusters_of(self, group: Group) -> frozenset[int]:
        """Return the clusters of the batch that have lanes in a group."""
        if group.clusters is None:
            lanes = self.batch.cluster_size * self.batch.warps_per_cta * WARP
            warps = lane_array(group.lanes)[:: WARP if group.count == group.warps * WARP else 1]
            group.clusters = frozenset((warps // lanes).tolist())
        return group.clusters

    def _happen_among(self, every: Sequence[Deferred]) -> bool:
        served: dict[int, None] = {}
        is_any = False
        for pending in every:
            if pending.ready and served.keys().isdisjoint(pending.clusters):
                is_any = True
                if self._force(pending):
                    served.update(dict.fromkeys(pending.clusters))
        return is_any

    def _force(self, pending: Deferred) -> bool:
        """Let an operation happen; say whether warps that wait may go on for it."""
        events = self.batch.events
        pending.force()
        if not pending.is_silent:
            self.batch.note_event()
        return self.batch.events != events

    def _disturb(self, chance: random.Random) -> None:
        """Let operations happen early, and split a group, as the seed has it."""
        if self.batch.pending and chance.random() < _PENDING_CHANCE:
            ready = [pending for pending in self.batch.take_pending() if pending.ready]
            if ready:
                self._force(chance.choice(ready))
        groups = self._groups
        if groups and len(groups) < _MAX_RANDOM_GROUPS and chance.random() < _SPLIT_CHANCE:
            self._split(groups.pop(chance.randrange(len(groups))))

    def _split(self, group: Group) -> None:
        """Replace a group by two of random warps each, or by one if the coin has it."""
        lanes = lane_array(group.lanes)
        # Where the next that happens is that warps of a warpgroup meet, these need not part before.
        together = WARPS if self._code.segments[group.pc].meets else 1
        units = lanes // (WARP * together)
        goes = (self.batch.random.random(-(-self.batch.num_warps // together)) < 0.5)[units]
        for part in (lanes[goes], lanes[~goes]):
            if len(part):
                self._groups.append(
                    Group(group.pc, as_lanes(part), group.join, group.rounds, group.trips)
                )

    # ---- what went wrong ----------------------------------------------------

    def _deadlock(self) -> Fault:
        waits = list(self._waits())
        waiter, _ = waits[0]
        return self.batch.fault(
            "deadlock",
            "all warps wait, and nothing can happen any more",
            waiter.instruction,
            int(waiter.lanes[0]),
            places(self.batch, waits),
        )

    def _endless(self, group: Group) -> Fault:
        instruction = self._code.instructions[group.pc]
        waits = [*self._waits(), *((self._waiter(other), "runs") for other in self._groups)]
        return self.batch.fault(
            "steps",
            f"still running after {self._max_steps:,} instructions: an endless loop?",
            instruction,
            int(lane_array(group.lanes)[0]),
            places(self.batch, [(self._waiter(group), "runs"), *waits]),
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
