"""The state of `insert_barriers`: accesses to memory not yet ordered by a barrier.

A loop rotates a ring of stages by replacing a stage index by `gpu.next_stage` in every iteration. So stages
are told apart by their distance from the index, and stage `k` of an iteration is stage `k - 1` of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import arith, gpu, scf
from aotc.ir.effects import AccessKind, Resource, Trait
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import allocation_of, stage_of
from aotc.schedule.analysis.global_hazards import GlobalHazards
from aotc.schedule.analysis.tile_distance import Touch


@dataclass(frozen=True)
class Region:
    """The bytes of a buffer, or of one stage; `stage` None is any."""

    buffer: gpu.SharedAlloc
    start: int
    end: int
    stage: int | None = None

    def meets(self, regions: Iterable[Region]) -> bool:
        """Return whether it shares bytes with any of `regions`."""
        return any(self._overlaps(other) for other in regions)

    def _overlaps(self, other: Region) -> bool:
        if self.buffer is other.buffer:
            return self.stage is None or other.stage is None or self.stage == other.stage
        return self.start < other.end and other.start < self.end

    def rotated(self, rings: Mapping[gpu.SharedAlloc, None]) -> Region:
        """Return the region as seen by the next iteration of a loop rotating `rings`."""
        if self.stage is None:
            return self
        if self.buffer not in rings:
            return replace(self, stage=None)
        return replace(self, stage=(self.stage - 1) % self.buffer.num_stages)


Regions = dict[Region, None]


class AsyncRegions:
    """The shared-memory regions accessed by the async proxy anywhere in the kernel."""

    def __init__(self, ops: Iterable[Op]) -> None:
        started = (op for op in ops if op.effects_on(None, "start"))
        regions = (p for op in started for access in _ACCESSES for p in regions_of(op, access))
        self._regions = tuple(dict.fromkeys(replace(region, stage=None) for region in regions))
        self._meets: dict[gpu.SharedAlloc, bool] = {}

    def meet(self, region: Region) -> bool:
        """Return whether bytes of a region's buffer are among them."""
        if region.buffer not in self._meets:
            self._meets[region.buffer] = replace(region, stage=None).meets(self._regions)
        return self._meets[region.buffer]


_ACCESSES: tuple[AccessKind, ...] = ("read", "write")
_MAX_KEPT_ACCESSES = 1_000_000
_MAX_KEPT_WALKS = 3
Rule = Callable[[Op, "Pending"], None]


@dataclass(frozen=True)
class LoopWalk:
    """The states before a loop, at the start of each iteration, and after it."""

    entry: Pending
    start: Pending
    exit: Pending


class LoopWalks:
    """Walks of loops in other loops, valid until an op is inserted.

    The walk of an outer loop repeats the walks of its inner loops. Beginning at an earlier fixpoint, a
    repeated walk takes one iteration: with two at each level, `n` levels take `2**n`.
    """

    def __init__(self) -> None:
        self._walks: dict[Op, list[LoopWalk]] = {}
        self._size = 0

    def forget_around(self, op: Op) -> None:
        """Forget walks of the loops around an inserted op."""
        for loop in op.ancestors():
            self._walks.pop(loop, None)

    def exit_of(self, loop: Op, entry: Pending) -> Pending | None:
        """Return the state after a loop entered in this state, if known."""
        walks = self._walks.get(loop, ())
        return next((walk.exit for walk in walks if walk.entry == entry), None)

    def add_starts(self, loop: Op, pending: Pending) -> None:
        """Add the accesses of earlier iterations, as known from entries with fewer accesses."""
        for walk in self._walks.get(loop, ()):
            if pending.includes(walk.entry):
                pending.merge(walk.start)

    def keep(self, loop: Op, walk: LoopWalk) -> None:
        """Remember a walk, if the loop is in another."""
        if not any(outer.has(Trait.LOOP) for outer in loop.ancestors()):
            return
        self._size += walk.entry.size + walk.start.size + walk.exit.size
        if self._size > _MAX_KEPT_ACCESSES:
            self._walks.clear()
            self._size = 0
        self._walks[loop] = [*self._walks.get(loop, ())[-_MAX_KEPT_WALKS:], walk]


@dataclass
class Pending:
    """The regions accessed since the last barrier, or the target of copies in flight.

    Threads' writes to `unfenced` regions, if the async proxy accesses them at all, are not visible to it yet,
    regardless of barriers. Nor is it ordered after their `unfenced_reads`. `drains` and `dots` are the regions
    read by each tensor store and dot in flight, newest first. Stores older than `max_drains` are merged, so
    that a loop of them reaches a fixpoint. `divided` are the buffers with warpgroup barriers only.
    """

    reads: Regions = field(default_factory=Regions)
    writes: Regions = field(default_factory=Regions)
    copies: Regions = field(default_factory=Regions)
    unfenced: Regions = field(default_factory=Regions)
    unfenced_reads: Regions = field(default_factory=Regions)
    drains: tuple[Regions, ...] = ()
    dots: tuple[Regions, ...] = ()
    divided: Mapping[gpu.SharedAlloc, None] = field(default_factory=dict[gpu.SharedAlloc, None])
    max_drains: int = 1
    hazards: GlobalHazards | None = None
    touched: dict[Touch, None] = field(default_factory=dict[Touch, None])
    """Accesses to global memory since the last barrier."""
    refilled: tuple[Region, ...] = ()
    """Where copies in flight write."""
    asynchronous: AsyncRegions = field(default_factory=lambda: AsyncRegions(()))
    arrived: Regions = field(default_factory=Regions)
    """Mbarriers initialized before the kernel arrived at the barrier of the cluster."""
    unproxied: dict[Touch, None] = field(default_factory=dict[Touch, None])
    """Threads' writes to global memory not visible to the async proxy yet."""
    is_probe: bool = field(default=False, compare=False)
    """Whether a walk with it is to find out if a barrier is missing, and to insert none."""
    rules: dict[Op, Rule | None] = field(default_factory=dict["Op", "Rule | None"], compare=False)
    """Cached rules of ops visited by a walk of a loop, shared by all paths."""
    silent: dict[Op, bool] = field(default_factory=dict["Op", bool], compare=False)
    """Whether nothing in a loop concerns this walk."""
    only_read: dict[Op, tuple[Op, ...]] = field(
        default_factory=dict["Op", "tuple[Op, ...]"], compare=False
    )
    """A loop's reads of global memory, if threads do nothing else there."""
    walks: LoopWalks = field(default_factory=LoopWalks, compare=False)

    @property
    def all(self) -> tuple[Regions, ...]:
        """All accesses of threads and copies to shared memory."""
        return self.reads, self.writes, self.copies, self.unfenced, self.unfenced_reads

    def clear(self, *, warpgroup: bool = False) -> None:
        """Forget accesses ordered by a barrier: all, or those to divided buffers."""
        for regions in (self.reads, self.writes):
            for region in list(regions):
                if not warpgroup or region.buffer in self.divided:
                    del regions[region]
        is_alone = self.hazards is None or self.hazards.num_ctas == 1
        if not warpgroup and is_alone:
            self.touched.clear()

    def forget_proxies(self) -> None:
        """Forget accesses to shared memory ordered by a proxy fence of all threads."""
        self.unfenced.clear()
        self.unfenced_reads.clear()

    def write(self, region: Region) -> None:
        """Record a write by threads, or by a landed copy."""
        self.writes[region] = None
        if self.asynchronous.meet(region):
            self.unfenced[region] = None

    def read(self, region: Region) -> None:
        """Record a read by threads."""
        self.reads[region] = None
        if region.meets(self.refilled):
            self.unfenced_reads[region] = None

    def copy(self) -> Pending:
        """Return an independent copy of the state."""
        copied = Pending(
            divided=self.divided,
            max_drains=self.max_drains,
            hazards=self.hazards,
            refilled=self.refilled,
            asynchronous=self.asynchronous,
            is_probe=self.is_probe,
            rules=self.rules,
            silent=self.silent,
            only_read=self.only_read,
            walks=self.walks,
        )
        copied.merge(self)
        return copied

    def become(self, other: Pending) -> None:
        """Take over another state."""
        vars(self).update(vars(other.copy()), is_probe=self.is_probe)

    def includes(self, other: Pending) -> bool:
        """Return whether every access pending in another state is pending in this."""
        both = self.copy()
        both.merge(other)
        return both == self

    @property
    def size(self) -> int:
        """The number of pending accesses."""
        regions = (*self.all, *self.drains, *self.dots, self.touched, self.unproxied)
        return sum(map(len, regions))

    def merge(self, other: Pending) -> None:
        """Add the pending accesses of a joining path."""
        for regions, more in zip(self.all, other.all, strict=True):
            regions.update(more)
        self.touched.update(other.touched)
        self.arrived.update(other.arrived)
        self.unproxied.update(other.unproxied)
        self.drains = _merged(self.drains, other.drains)
        self.dots = _merged(self.dots, other.dots)

    def touch(self, op: Op) -> None:
        """Remember an access to global memory."""
        self.touched[Touch(op)] = None
        if self.hazards is not None and self.hazards.is_generic_write(op):
            self.unproxied[Touch(op)] = None

    def carry(self, loop: Op) -> None:
        """Shift accesses to global memory to the next iteration of a loop."""
        self.touched = {touch.carried_by(loop): None for touch in self.touched}
        self.unproxied = {touch.carried_by(loop): None for touch in self.unproxied}

    def map(self, change: Callable[[Region], Region]) -> None:
        """Replace every region in shared memory."""
        for regions in self.all:
            changed = dict.fromkeys(map(change, regions))
            regions.clear()
            regions.update(changed)
        self.drains = tuple(dict.fromkeys(map(change, regions)) for regions in self.drains)
        self.dots = tuple(dict.fromkeys(map(change, regions)) for regions in self.dots)


def _merged(left: tuple[Regions, ...], right: tuple[Regions, ...]) -> tuple[Regions, ...]:
    """Return the accesses in flight where two paths join, aligned at the newest."""
    paired = zip_longest(left, right, fillvalue=Regions())
    return tuple(mine | more for mine, more in paired)


def regions_of(op: Op, access: AccessKind) -> Regions:
    """Return the regions in shared memory that an op reads or writes."""
    values = [getattr(op, effect.of) for effect in op.effects_on(Resource.SHARED, access)]
    return {region_of(value): None for value in values if isinstance(value.type, SharedType)}


def region_of(buffer: Value) -> Region:
    """Return the region of a buffer or stage."""
    op, stage = allocation_of(buffer).op, stage_of(buffer)
    number = None if stage is None else _stage_number(stage)
    assert isinstance(op, gpu.SharedAlloc)
    assert isinstance(op.out.type, SharedType)
    return Region(op, op.offset_bytes, op.offset_bytes + op.out.type.size_bytes, number)


def _stage_number(op: gpu.SharedStage) -> int | None:
    """Return a stage's distance from the loop's index, or None without an index.

    Before a loop, a number counts from the initial index.
    """
    assert isinstance(op.buffer.type, SharedType)
    start = _counter_start(op.index)
    return None if start is None else (start + op.ahead) % op.buffer.type.num_stages


def _counter_start(index: Value) -> int | None:
    """Return a constant stage index, or the constant start of a loop's index."""
    if isinstance(index.op, arith.Constant):
        return int(index.op.value)
    block = index.owner
    loop = block.parent if isinstance(block, Block) else None
    if not isinstance(loop, scf.For) or index.index == 0:
        return None
    following = loop.body.terminator.operands[index.index - 1].op
    init = loop.init[index.index - 1].op
    counts = isinstance(following, gpu.NextStage) and following.index is index
    return int(init.value) if counts and isinstance(init, arith.Constant) else None


def rotated_by(loop: Op) -> dict[gpu.SharedAlloc, None]:
    """Return the rings rotated by a loop."""
    rotated: dict[gpu.SharedAlloc, None] = {}
    for counter in loop.carried if isinstance(loop, scf.For) else ():
        if _counter_start(counter) is None:
            continue
        for user in counter.users:
            if isinstance(user, gpu.SharedStage) and isinstance(user.buffer.op, gpu.SharedAlloc):
                rotated[user.buffer.op] = None
    return rotated
