"""Insert the barriers that accesses to shared memory need, and no others.

Walking in program order, the pass keeps the places read and written since the last barrier.
An access that conflicts with an earlier one of another thread (a read after a write, a write after
either) gets a barrier before it. A loop's body is walked until its exit state adds nothing to
its entry state, so that an access conflicts with those of earlier iterations.

A ring of several stages is rotated by a loop: a stage index that every iteration replaces by
`gpu.next_stage`. So stages are told apart by their distance from the index, and what an iteration
accessed `k` ahead, the next one finds `k - 1` ahead. An asynchronous copy counts as written by
every wait after it, up to the one that leaves none in flight.

A tensor copy is issued by one thread. A load is visible to all threads that have waited at its
mbarrier, so what it writes needs no barrier; but no thread may issue into the next phase of a
mbarrier while another still waits for this one, so a wait counts as reading it and an issue as
writing it. A store has read its buffer when the issuing thread has waited for it; nothing may write
the buffer before, which is a fault of the schedule. Both see what threads wrote only after a
`gpu.proxy_fence` of the writers. So do loads and what threads read: a thread's read may still be in
flight when the barrier or mbarrier releases the next copy, unless the thread fenced it before that.

A buffer is *divided* if each warpgroup writes and stores boxes of its own, and nothing else shares
its bytes. Conflicts in it are ordered by a barrier of each warpgroup.

Accesses to global memory that conflict by `global_hazards` are ordered by the same barriers, or by
those of the cluster where a program has several CTAs; a tensor copy that reads what threads stored
there needs a fence of all memory as well.

A wgmma accesses memory through the async proxy, and reads its operands until a wait covers
it, whatever barriers there are. Nothing may write them before; that is a fault of the schedule.

How an op accesses shared memory is what it declares (`ir.effects`): by its threads themselves, or
by what it starts. How an op synchronizes is for this pass to know, so `_RULES` lists those ops. An
op with other effects on shared memory is refused: passing over it would be a race.

Invariant: between two accesses that overlap in bytes, one of them a write, there is a barrier on
every path. Both arms of a branch that is uniform across the CTA may hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, zip_longest

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, assembly, gpu, grid, roles, scf, tma, wgmma
from aotc.ir.effects import AccessKind, Resource, Trait
from aotc.ir.order import enclosing_in
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import allocation_of, stage_of
from aotc.schedule.analysis.global_hazards import GlobalHazards, Touch
from aotc.schedule.context import Schedule

_MAX_EXACT_TURNS = 16


@dataclass(frozen=True)
class _Place:
    """The bytes of a buffer, or one stage of it: None for any."""

    buffer: gpu.SharedAlloc
    start: int
    end: int
    stage: int | None = None

    def meets(self, others: Iterable[_Place]) -> bool:
        return any(self._overlaps(other) for other in others)

    def _overlaps(self, other: _Place) -> bool:
        if self.buffer is other.buffer:
            return self.stage is None or other.stage is None or self.stage == other.stage
        return self.start < other.end and other.start < self.end

    def turned(self, rotated: Mapping[gpu.SharedAlloc, None]) -> _Place:
        """Return the place as the next iteration of a loop that rotates some buffers sees it."""
        if self.stage is None:
            return self
        if self.buffer not in rotated:
            return replace(self, stage=None)
        return replace(self, stage=(self.stage - 1) % self.buffer.num_stages)


_Places = dict[_Place, None]


@dataclass
class _Pending:
    """The places accessed since the last barrier, and those that copies are in flight to.

    What threads wrote to `unfenced` places is not visible to the async proxy yet, whatever
    barriers there were; nor is it ordered after their `unfenced_reads`. `drains` and `products` are
    what each tensor store and each dot in flight reads, the newest first; stores older than
    `max_drains` are merged, so that a loop of them reaches a fixpoint. `divided` are the buffers
    that need barriers of warpgroups only.
    """

    reads: _Places = field(default_factory=_Places)
    writes: _Places = field(default_factory=_Places)
    copies: _Places = field(default_factory=_Places)
    unfenced: _Places = field(default_factory=_Places)
    unfenced_reads: _Places = field(default_factory=_Places)
    drains: tuple[_Places, ...] = ()
    products: tuple[_Places, ...] = ()
    divided: Mapping[gpu.SharedAlloc, None] = field(default_factory=dict[gpu.SharedAlloc, None])
    max_drains: int = 1
    hazards: GlobalHazards | None = None
    touched: dict[Touch, None] = field(default_factory=dict[Touch, None])
    """Accesses to global memory since the last barrier."""
    refilled: tuple[_Place, ...] = ()
    """Where copies in flight write."""
    arrived: _Places = field(default_factory=_Places)
    """Mbarriers initialized before the kernel arrived at the barrier of the cluster."""
    unproxied: dict[Touch, None] = field(default_factory=dict[Touch, None])
    """Writes of threads to global memory that are not visible to the async proxy yet."""
    rules: dict[Op, _Rule | None] = field(default_factory=dict["Op", "_Rule | None"])
    """How to visit each op that was visited before."""

    @property
    def all(self) -> tuple[_Places, ...]:
        return self.reads, self.writes, self.copies, self.unfenced, self.unfenced_reads

    def clear(self, *, warpgroup: bool = False) -> None:
        """Forget what a barrier orders: all accesses, or those to divided buffers."""
        for places in (self.reads, self.writes):
            for place in list(places):
                if not warpgroup or place.buffer in self.divided:
                    del places[place]
        is_alone = self.hazards is None or self.hazards.num_ctas == 1
        if not warpgroup and is_alone:
            self.touched.clear()

    def forget_proxies(self) -> None:
        """Forget what a proxy fence of all threads orders in shared memory."""
        self.unfenced.clear()
        self.unfenced_reads.clear()

    def read(self, place: _Place) -> None:
        """Remember what threads read themselves."""
        self.reads[place] = None
        if place.meets(self.refilled):
            self.unfenced_reads[place] = None

    def copy(self) -> _Pending:
        copied = _Pending(
            divided=self.divided,
            max_drains=self.max_drains,
            hazards=self.hazards,
            refilled=self.refilled,
            rules=self.rules,
        )
        copied.merge(self)
        return copied

    def merge(self, other: _Pending) -> None:
        for places, more in zip(self.all, other.all, strict=True):
            places.update(more)
        self.touched.update(other.touched)
        self.arrived.update(other.arrived)
        self.unproxied.update(other.unproxied)
        self.drains = _merged(self.drains, other.drains)
        self.products = _merged(self.products, other.products)

    def touch(self, op: Op) -> None:
        """Remember an access to global memory."""
        self.touched[Touch(op)] = None
        if self.hazards is not None and self.hazards.is_generic_write(op):
            self.unproxied[Touch(op)] = None

    def carry(self, loop: Op) -> None:
        """See accesses to global memory as the next iteration of a loop does."""
        self.touched = {touch.carried_by(loop): None for touch in self.touched}
        self.unproxied = {touch.carried_by(loop): None for touch in self.unproxied}

    def map(self, change: Callable[[_Place], _Place]) -> None:
        for places in self.all:
            changed = dict.fromkeys(map(change, places))
            places.clear()
            places.update(changed)
        self.drains = tuple(dict.fromkeys(map(change, places)) for places in self.drains)
        self.products = tuple(dict.fromkeys(map(change, places)) for places in self.products)


def _merged(some: tuple[_Places, ...], others: tuple[_Places, ...]) -> tuple[_Places, ...]:
    """Return what is in flight where two paths join: at least so many newer ones, on either."""
    paired = zip_longest(some, others, fillvalue=_Places())
    return tuple(mine | more for mine, more in paired)


def insert_barriers(kernel: Kernel, schedule: Schedule) -> None:
    """Insert `gpu.barrier` wherever shared-memory accesses need it."""
    del schedule
    # A wait distinguishes as many stores as it leaves in flight.
    left = [op.pending for op in kernel.walk() if isinstance(op, tma.TmaStoreWait)]
    max_drains = 1 + max(left, default=0)
    hazards = GlobalHazards(kernel)
    loads = [op for op in kernel.walk() if op.effects_on(Resource.MBARRIER, "start")]
    filled = (place for op in loads for place in _places(op, "write"))
    refilled = tuple(dict.fromkeys(replace(place, stage=None) for place in filled))
    pending = _Pending(
        divided=_divided(kernel), max_drains=max_drains, hazards=hazards, refilled=refilled
    )
    _visit(kernel.body, pending)
    _wait_before_barriers(kernel)


def _wait_before_barriers(kernel: Kernel) -> None:
    """Move the wait for an early arrival ahead of other barriers of the cluster, if there are any."""
    wait = next((op for op in kernel.body if isinstance(op, grid.ClusterWait)), None)
    if wait is None:
        return
    for op in kernel.walk():
        if op is wait:
            return
        if isinstance(op, grid.ClusterBarrier):
            wait.remove()
            kernel.body.insert(wait, enclosing_in(op, kernel.body))
            return


def _visit(block: Block, pending: _Pending) -> None:
    for op in block:
        is_global = pending.hazards is not None and op in pending.hazards.accesses
        if is_global:
            _order_global(op, pending)
        if op not in pending.rules:
            pending.rules[op] = rule_of(op)
        rule = pending.rules[op]
        if rule is not None:
            rule(op, pending)
        if is_global:
            pending.touch(op)


def rule_of(op: Op) -> _Rule | None:
    """Return how to visit an op, or None if it leaves shared memory alone.

    Raises: IRError if the op has effects on shared memory that nothing here orders.
    """
    rule = _visit_barrier if op.has(Trait.BARRIER) else _RULES.get(type(op))
    if rule is not None:
        return rule
    effects = [*op.effects_on(Resource.SHARED), *op.effects_on(Resource.MBARRIER)]
    effects = [effect for effect in effects if effect.access != "allocate"]
    if not effects:
        is_used = any(isinstance(value.type, SharedType) for value in op.operands)
        is_view = op.pure and all(isinstance(value.type, SharedType) for value in op.results)
        op.expect(not is_used or is_view, "accesses a buffer, but declares no effect on it")
        return None
    started = op.effects_on(None, "start")
    if started:
        return _STARTED[started[0].resource]
    for effect in effects:
        by_threads = effect.resource is Resource.SHARED and effect.proxy == "generic"
        op.expect(
            by_threads and effect.access in ("read", "write") and bool(effect.of),
            f"no barrier is known for its effect: {effect.access} {effect.resource.name.lower()}",
        )
    return _visit_access


# ---- global memory ----------------------------------------------------------------------------


def _order_global(op: Op, pending: _Pending) -> None:
    """Insert what has to precede an access to global memory."""
    hazards = pending.hazards
    assert hazards is not None
    met = any(hazards.meet(touch, op) for touch in pending.touched)
    unseen = hazards.is_async(op) and any(hazards.meet(each, op) for each in pending.unproxied)
    if not met and not unseen:
        return
    # In a branch that one CTA takes, no other CTA arrives at a barrier.
    needs_all = hazards.needs_all_ctas(op)
    branch = hazards.branch_of_cta(op) if needs_all else None
    if branch is not None and any(is_inside(touch.op, branch) for touch in pending.touched):
        needs_all, branch = False, None
    first = branch or op
    if unseen:
        with at(op.loc):
            Builder.before_op(first)(tma.ProxyFence(whole=True))
        pending.unproxied.clear()
        pending.forget_proxies()
    if not needs_all:
        _barrier_before(op, pending)
    else:
        with at(op.loc):
            Builder.before_op(first)(grid.ClusterBarrier())
    pending.touched.clear()


# ---- accesses ---------------------------------------------------------------------------------


def _pass_over(op: Op, pending: _Pending) -> None:
    """Do nothing: a fence orders accesses of one thread, in order here, and assembly has no buffers."""
    del op, pending


def _visit_barrier(op: Op, pending: _Pending) -> None:
    warpgroup = isinstance(op, gpu.Barrier) and op.warpgroup
    if not warpgroup:
        _fence_ahead(op, pending)
    pending.clear(warpgroup=warpgroup)
    if isinstance(op, grid.ClusterBarrier):
        pending.touched.clear()


def _visit_access(op: Op, pending: _Pending) -> None:
    """Order what threads read and write themselves."""
    written = _places(op, "write")
    read = [place for place in _places(op, "read") if place not in written]
    for place in written:
        _order_write(op, place, pending)
    if any(place.meets(pending.writes) for place in read):
        _barrier_before(op, pending)
    for place in written:
        pending.writes[place] = pending.unfenced[place] = None
    for place in read:
        pending.read(place)


def _visit_copy(op: Op, pending: _Pending) -> None:
    """Order a copy by threads, `cp.async`, that lands later."""
    for place in _places(op, "write"):
        _order_write(op, place, pending)
        pending.copies[place] = None


def _order_write(op: Op, place: _Place, pending: _Pending) -> None:
    _check_unread(op, place, pending)
    if place.meets(pending.reads) or place.meets(pending.writes):
        _barrier_before(op, pending, place)


def _check_unread(op: Op, place: _Place, pending: _Pending) -> None:
    if any(place.meets(read) for read in pending.products):
        op.error("writes what a dot in flight reads")
    if any(place.meets(read) for read in pending.drains):
        op.error("writes what a store in flight reads")


def _visit_wait(op: Op, pending: _Pending) -> None:
    assert isinstance(op, gpu.AsyncWait)
    pending.writes.update(pending.copies)
    pending.unfenced.update(pending.copies)
    if op.pending == 0:
        pending.copies.clear()
    # What arrives in a loop is read by the iteration, so a barrier will be needed. Here it
    # also orders the reads of the iteration before against the copies of this one.
    in_loop = isinstance(op.parent_op, scf.For)
    following = op.next
    while isinstance(following, tma.ProxyFence):
        following = following.next
    if pending.writes and in_loop and not isinstance(following, gpu.Barrier):
        # The barrier is visited next.
        with at(op.loc):
            Builder.after_op(op)(gpu.Barrier())


def _visit_tensor_load(op: Op, pending: _Pending) -> None:
    for place in _places(op, "write"):
        _check_unread(op, place, pending)
        if place.meets(pending.unfenced) or place.meets(pending.unfenced_reads):
            _fence_before(op, pending)
        elif place.meets(pending.reads) or place.meets(pending.writes):
            _barrier_before(op, pending)
    for effect in op.effects_on(Resource.MBARRIER, "start"):
        _order_write(op, _place(getattr(op, effect.of)), pending)


def _visit_arrival(op: Op, pending: _Pending) -> None:
    """Fence the reads before an arrival that releases a buffer to a copy."""
    if pending.unfenced_reads:
        with at(op.loc):
            Builder.before_op(op)(tma.ProxyFence())
        pending.forget_proxies()


def _visit_tensor_store(op: Op, pending: _Pending) -> None:
    places = _places(op, "read")
    for place in places:
        if place.meets(pending.unfenced):
            _fence_before(op, pending, place)
        elif place.meets(pending.writes):
            _barrier_before(op, pending, place)
    drains = (places, *pending.drains)
    if len(drains) > pending.max_drains:
        drains = (*drains[:-2], drains[-2] | drains[-1])
    pending.drains = drains


def _visit_store_wait(op: Op, pending: _Pending) -> None:
    assert isinstance(op, tma.TmaStoreWait)
    for places in pending.drains[op.pending :]:
        pending.reads.update(places)
    pending.drains = pending.drains[: op.pending]


def _visit_init(op: Op, pending: _Pending) -> None:
    assert isinstance(op, tma.MbarrierInit)
    place = _place(op.barrier)
    _order_write(op, place, pending)
    pending.writes[place] = None


def _visit_cluster_arrive(op: Op, pending: _Pending) -> None:
    """Remember what the cluster's barrier orders: the initialization of mbarriers."""
    barriers = {each.barrier.op for each in op.block or () if isinstance(each, tma.MbarrierInit)}
    others = [place for place in (*pending.reads, *pending.writes) if place.buffer not in barriers]
    op.expect(not others, "a buffer that is no mbarrier is accessed before it")
    pending.arrived.update(pending.writes)


def _visit_cluster_wait(op: Op, pending: _Pending) -> None:
    """Forget what was written before the arrival; what came after it is as it was."""
    del op
    for place in pending.arrived:
        pending.writes.pop(place, None)
    pending.arrived.clear()


def _visit_send(op: Op, pending: _Pending) -> None:
    """Order a store by other CTAs, which those that wait at the mbarrier see."""
    assert isinstance(op, grid.ClusterSend)
    for place in _places(op, "write"):
        op.expect(not place.meets(pending.reads), "what others send is read before it")
        op.expect(not place.meets(pending.writes), "what others send is written here as well")


def _visit_mbarrier_wait(op: Op, pending: _Pending) -> None:
    assert isinstance(op, tma.MbarrierWait)
    place = _place(op.barrier)
    if place.meets(pending.writes):
        _barrier_before(op, pending)
    pending.reads[place] = None


def _visit_fence(op: Op, pending: _Pending) -> None:
    assert isinstance(op, tma.ProxyFence)
    pending.forget_proxies()
    if op.whole:
        pending.unproxied.clear()


def _visit_product(op: Op, pending: _Pending) -> None:
    places = _places(op, "read")
    if any(place.meets(pending.unfenced) for place in places):
        _fence_before(op, pending)
    elif any(place.meets(pending.writes) for place in places):
        _barrier_before(op, pending)
    pending.products = (places, *pending.products)


def _visit_product_wait(op: Op, pending: _Pending) -> None:
    assert isinstance(op, wgmma.WgmmaWait)
    for places in pending.products[op.pending :]:
        pending.reads.update(places)
    pending.products = pending.products[: op.pending]


def _fence_ahead(op: Op, pending: _Pending) -> None:
    """Fence ahead of a barrier what will need a fence, so that it needs no barrier of its own.

    That is what a dot will read, and what was read where a copy will write.
    """
    feeds = any(_feeds_product(place.buffer.out) for place in pending.unfenced)
    if feeds or pending.unfenced_reads:
        with at(op.loc):
            Builder.before_op(op)(tma.ProxyFence())
        pending.forget_proxies()


def _feeds_product(buffer: Value) -> bool:
    return any(
        user.effects_on(Resource.DOTS, "start")
        or (user.has(Trait.ALIAS) and _feeds_product(user.results[0]))
        for user in buffer.users
    )


def _fence_before(op: Op, pending: _Pending, place: _Place | None = None) -> None:
    """Make what all threads have written visible to a tensor copy."""
    with at(op.loc):
        Builder.before_op(op)(tma.ProxyFence())
    pending.forget_proxies()
    _barrier_before(op, pending, place)


def _barrier_before(op: Op, pending: _Pending, place: _Place | None = None) -> None:
    """Insert the barrier that orders an access to `place`."""
    warpgroup = place is not None and place.buffer in pending.divided
    if not warpgroup:
        _fence_ahead(op, pending)
    with at(op.loc):
        Builder.before_op(op)(gpu.Barrier(warpgroup=warpgroup))
    pending.clear(warpgroup=warpgroup)


def _divided(kernel: Kernel) -> dict[gpu.SharedAlloc, None]:
    """Return the buffers in which warpgroups access only boxes of their own."""
    allocs = [op for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)]
    found: dict[gpu.SharedAlloc, None] = {}
    for alloc in allocs:
        copies = [op for op in alloc.out.users if isinstance(op, tma.TensorStore)]
        others = [op for op in alloc.out.users if op not in copies]
        by_warpgroup = bool(copies) and all(copy.issuers for copy in copies)
        written = all(isinstance(op, gpu.SharedStore) for op in others)
        mine = _place(alloc.out)
        alone = not mine.meets(_place(each.out) for each in allocs if each is not alloc)
        if by_warpgroup and written and alone:
            found[alloc] = None
    return found


def _places(op: Op, access: AccessKind) -> _Places:
    """Return the places in shared memory that an op reads or writes."""
    values = [getattr(op, each.of) for each in op.effects_on(Resource.SHARED, access)]
    return {_place(value): None for value in values if isinstance(value.type, SharedType)}


def _place(buffer: Value) -> _Place:
    op, stage = allocation_of(buffer).op, stage_of(buffer)
    number = None if stage is None else _stage_number(stage)
    assert isinstance(op, gpu.SharedAlloc)
    assert isinstance(op.out.type, SharedType)
    return _Place(op, op.offset_bytes, op.offset_bytes + op.out.type.size_bytes, number)


def _stage_number(op: gpu.SharedStage) -> int | None:
    """Return how many stages after the loop's index this one is, or None if there is no index.

    Before a loop, a number counts from the initial index.
    """
    assert isinstance(op.buffer.type, SharedType)
    start = _counter_start(op.index)
    return None if start is None else (start + op.ahead) % op.buffer.type.num_stages


def _counter_start(index: Value) -> int | None:
    """Return the constant that a stage index is, or that the index of a loop begins with."""
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


# ---- control flow -----------------------------------------------------------------------------


def _visit_branch(op: Op, pending: _Pending) -> None:
    assert isinstance(op, scf.If)
    other = pending.copy()
    _visit(op.then, pending)
    _visit(op.orelse, other)
    pending.merge(other)


def _visit_roles(op: Op, pending: _Pending) -> None:
    """Visit the consumers; mbarriers order them with the producer."""
    assert isinstance(op, roles.Specialize)
    _visit(op.consumers, pending)


def _visit_loop(op: Op, pending: _Pending) -> None:
    """Walk the body until its exit state adds nothing to its entry state."""
    rotated = _rotated_by(op)
    entry = pending.copy()
    for turn in count():
        start = pending.copy()
        for block in op.blocks:
            _visit(block, pending)
        pending.map(lambda place: place.turned(rotated))
        if pending.hazards is not None and pending.hazards.is_over_programs(op):
            pending.touched.clear()
        pending.carry(op)
        pending.merge(entry)
        if pending == start:
            break
        if turn > _MAX_EXACT_TURNS:
            pending.merge(start)  # a growing state reaches a fixpoint
    # After the loop its stage indices are not known.
    pending.map(lambda place: replace(place, stage=None))


def _rotated_by(loop: Op) -> dict[gpu.SharedAlloc, None]:
    """Return the rings whose stages a loop rotates."""
    rotated: dict[gpu.SharedAlloc, None] = {}
    for counter in loop.carried if isinstance(loop, scf.For) else ():
        if _counter_start(counter) is None:
            continue
        for user in counter.users:
            if isinstance(user, gpu.SharedStage) and isinstance(user.buffer.op, gpu.SharedAlloc):
                rotated[user.buffer.op] = None
    return rotated


_Rule = Callable[[Op, _Pending], None]

_RULES: dict[type[Op], _Rule] = {
    gpu.Fence: _pass_over,
    assembly.VolatileAsm: _pass_over,
    gpu.AsyncWait: _visit_wait,
    tma.TmaStoreWait: _visit_store_wait,
    tma.ProxyFence: _visit_fence,
    tma.MbarrierInit: _visit_init,
    tma.MbarrierWait: _visit_mbarrier_wait,
    grid.ClusterArrive: _visit_cluster_arrive,
    grid.ClusterWait: _visit_cluster_wait,
    grid.ClusterSend: _visit_send,
    tma.MbarrierArrive: _visit_arrival,
    wgmma.WgmmaWait: _visit_product_wait,
    roles.Specialize: _visit_roles,
    scf.If: _visit_branch,
    scf.For: _visit_loop,
    scf.While: _visit_loop,
}
"""How ops synchronize, and control flow."""

_STARTED: dict[Resource, _Rule] = {
    Resource.COPIES: _visit_copy,
    Resource.MBARRIER: _visit_tensor_load,
    Resource.STORES: _visit_tensor_store,
    Resource.DOTS: _visit_product,
}
"""How to order what accesses shared memory until an op that orders the resource waits for it."""
