"""Insert the barriers required between accesses to shared memory, and no others.

Walking in program order, the pass keeps the regions read and written since the last barrier
(`pending_accesses.py`). An access that conflicts with an earlier access of another thread (a read after a
write, a write after either) gets a barrier before it. A loop's body is walked until its exit state adds
nothing to its entry state, so conflicts with earlier iterations are seen too.

An asynchronous copy counts as written by every wait after it, up to the wait that leaves none in flight.

A tensor copy is issued by one thread. A load is visible to all threads after they wait at its mbarrier, so
its writes need no barrier. But no thread may issue into the next phase of a mbarrier while another still
waits for this one, so a wait counts as reading the mbarrier and an issue as writing it. A store has read
its buffer once the issuing thread has waited for it. Writing the buffer before is a fault of the schedule.
Both see threads' writes only after a `gpu.proxy_fence` of the writers. Threads' reads need the fence before
a load: a read may still be in flight when the barrier or mbarrier releases the next copy.

A buffer is *divided* if each warpgroup writes and stores boxes of its own, and nothing else shares its
bytes. Conflicts in it are ordered by a barrier of each warpgroup.

Conflicting accesses to global memory (`global_hazards`) are ordered by the same barriers, or by cluster
barriers if a program has several CTAs. A tensor copy reading threads' stores to global memory also needs a
fence of all memory.

A wgmma accesses memory through the async proxy, and reads its operands until a wait covers it, regardless
of barriers. Writing its operands before is a fault of the schedule.

Ops declare their accesses to shared memory (`ir.effects`): by their threads, or by copies they start.
`_RULES` lists the ops that synchronize; the rules of cluster barriers are in `cluster_barriers.py`. An op
with other effects on shared memory is refused: passing over it would be a race.

Invariant: between two accesses overlapping in bytes, one of them a write, there is a barrier on every path.
Both arms of a branch uniform across the CTA may hold a barrier.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import assembly, cluster, gpu, grid, mbarrier, roles, scf, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import SharedType
from aotc.ir.walks import users_through_views
from aotc.schedule.analysis.global_hazards import GlobalHazards
from aotc.schedule.analysis.tile_distance import Touch
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.cluster_barriers import (
    visit_cluster_arrive,
    visit_cluster_wait,
    visit_remote,
    visit_send,
    wait_before_barriers,
)
from aotc.schedule.shared_memory.pending_accesses import (
    AsyncRegions,
    LoopWalk,
    Pending,
    Region,
    Rule,
    region_of,
    regions_of,
    rotated_by,
)

_MAX_EXACT_WALKS = 16


def insert_barriers(kernel: Kernel, schedule: Schedule) -> None:
    """Insert `gpu.barrier` between conflicting accesses to shared memory."""
    del schedule
    # A wait distinguishes as many stores as it leaves in flight.
    waits = tma.TmaStoreWait, tma.TmaBufferWait
    left = [op.pending for op in kernel.walk() if isinstance(op, waits)]
    max_drains = 1 + max(left, default=0)
    hazards = GlobalHazards(kernel)
    loads = [op for op in kernel.walk() if op.effects_on(Resource.MBARRIER, "start")]
    filled = (region for op in loads for region in regions_of(op, "write"))
    refilled = tuple(dict.fromkeys(replace(region, stage=None) for region in filled))
    pending = Pending(
        divided=_divided(kernel),
        max_drains=max_drains,
        hazards=hazards,
        refilled=refilled,
        asynchronous=AsyncRegions(kernel.walk()),
    )
    _visit(kernel.body, pending)
    wait_before_barriers(kernel)


def _visit(block: Block, pending: Pending) -> None:
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


def rule_of(op: Op) -> Rule | None:
    """Return the rule to visit an op, or None if it does not access shared memory.

    Raises: IRError if no rule orders the op's effects on shared memory.
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


def _order_global(op: Op, pending: Pending) -> None:
    """Insert the barriers and fences required before an access to global memory."""
    hazards = pending.hazards
    assert hazards is not None
    met = hazards.meet_any(reversed(pending.touched), op)
    unseen = hazards.is_async(op) and hazards.meet_any(reversed(pending.unproxied), op)
    if not met and not unseen:
        return
    _raise_if_probe(pending, None)
    # In a branch that one CTA takes, no other CTA arrives at a barrier.
    needs_all = hazards.needs_all_ctas(op)
    branch = hazards.branch_of_cta(op) if needs_all else None
    if branch is not None and any(is_inside(touch.op, branch) for touch in pending.touched):
        needs_all, branch = False, None
    first = branch or op
    if unseen:
        _insert(tma.ProxyFence(whole=True), op, pending, before=first)
        pending.unproxied.clear()
        pending.forget_proxies()
    if not needs_all:
        _barrier_before(op, pending)
    else:
        _insert(grid.ClusterBarrier(), op, pending, before=first)
    pending.touched.clear()


# ---- accesses ---------------------------------------------------------------------------------


def _pass_over(op: Op, pending: Pending) -> None:
    """Do nothing: a fence orders accesses of one thread, in order here, and assembly has no buffers."""
    del op, pending


def _visit_barrier(op: Op, pending: Pending) -> None:
    warpgroup = isinstance(op, gpu.Barrier) and op.warpgroup
    if not warpgroup:
        _fence_ahead(op, pending)
    pending.clear(warpgroup=warpgroup)
    if isinstance(op, grid.ClusterBarrier):
        pending.touched.clear()


def _visit_access(op: Op, pending: Pending) -> None:
    """Order reads and writes by threads."""
    written = regions_of(op, "write")
    read = [region for region in regions_of(op, "read") if region not in written]
    for region in written:
        _order_write(op, region, pending)
    if any(region.meets(pending.writes) for region in read):
        _barrier_before(op, pending)
    for region in written:
        pending.write(region)
    for region in read:
        pending.read(region)


def _visit_copy(op: Op, pending: Pending) -> None:
    """Order a copy by threads, `cp.async`, landing later."""
    for region in regions_of(op, "write"):
        _order_write(op, region, pending)
        pending.copies[region] = None


def _order_write(op: Op, region: Region, pending: Pending) -> None:
    _check_unread(op, region, pending)
    if region.meets(pending.reads) or region.meets(pending.writes):
        _barrier_before(op, pending, region)


def _check_unread(op: Op, region: Region, pending: Pending) -> None:
    if any(region.meets(read) for read in pending.dots):
        op.error("writes what a dot in flight reads")
    if any(region.meets(read) for read in pending.drains):
        op.error("writes what a store in flight reads")


def _visit_wait(op: Op, pending: Pending) -> None:
    assert isinstance(op, gpu.AsyncWait)
    for region in pending.copies:
        pending.write(region)
    if op.pending == 0:
        pending.copies.clear()
    # An iteration reads its arrived copies, so it needs a barrier anyway. Here the barrier
    # also orders the previous iteration's reads against this iteration's copies.
    in_loop = isinstance(op.parent_op, scf.For)
    following = op.next
    while isinstance(following, tma.ProxyFence):
        following = following.next
    if pending.writes and in_loop and not isinstance(following, gpu.Barrier):
        _raise_if_probe(pending, None)
        # The barrier is visited next.
        _insert(gpu.Barrier(), op, pending, before=op.next)


def _visit_tensor_load(op: Op, pending: Pending) -> None:
    for region in regions_of(op, "write"):
        _check_unread(op, region, pending)
        if region.meets(pending.unfenced) or region.meets(pending.unfenced_reads):
            _fence_before(op, pending)
        elif region.meets(pending.reads) or region.meets(pending.writes):
            _barrier_before(op, pending)
    for effect in op.effects_on(Resource.MBARRIER, "start"):
        _order_write(op, region_of(getattr(op, effect.of)), pending)


def _visit_arrival(op: Op, pending: Pending) -> None:
    """Fence reads before an arrival releasing a buffer to a copy."""
    if pending.unfenced_reads:
        _insert(tma.ProxyFence(), op, pending)
        pending.forget_proxies()


def _visit_tensor_store(op: Op, pending: Pending) -> None:
    regions = regions_of(op, "read")
    for region in regions:
        if region.meets(pending.unfenced):
            _fence_before(op, pending, region)
        elif region.meets(pending.writes):
            _barrier_before(op, pending, region)
    drains = (regions, *pending.drains)
    if len(drains) > pending.max_drains:
        drains = (*drains[:-2], drains[-2] | drains[-1])
    pending.drains = drains


def _visit_store_wait(op: Op, pending: Pending) -> None:
    assert isinstance(op, tma.TmaStoreWait)
    for regions in pending.drains[op.pending :]:
        pending.reads.update(regions)
    pending.drains = pending.drains[: op.pending]


def _visit_buffer_wait(op: Op, pending: Pending) -> None:
    assert isinstance(op, tma.TmaBufferWait)
    buffer = region_of(op.buffer)
    for regions in pending.drains[op.pending :]:
        pending.reads.update(regions)
    drains: list[dict[Region, None]] = []
    for regions in pending.drains[: op.pending]:
        freed = [region for region in regions if buffer.meets([region])]
        pending.reads.update(dict.fromkeys(freed))
        drains.append(dict.fromkeys(region for region in regions if region not in freed))
    pending.drains = tuple(drains)


def _visit_init(op: Op, pending: Pending) -> None:
    assert isinstance(op, mbarrier.MbarrierInit)
    region = region_of(op.barrier)
    _order_write(op, region, pending)
    pending.writes[region] = None


def _visit_mbarrier_wait(op: Op, pending: Pending) -> None:
    assert isinstance(op, mbarrier.MbarrierWait)
    region = region_of(op.barrier)
    if region.meets(pending.writes):
        _barrier_before(op, pending)
    pending.reads[region] = None


def _visit_fence(op: Op, pending: Pending) -> None:
    assert isinstance(op, tma.ProxyFence)
    pending.forget_proxies()
    if op.whole:
        pending.unproxied.clear()


def _visit_dot(op: Op, pending: Pending) -> None:
    regions = regions_of(op, "read")
    if any(region.meets(pending.unfenced) for region in regions):
        _fence_before(op, pending)
    elif any(region.meets(pending.writes) for region in regions):
        _barrier_before(op, pending)
    pending.dots = (regions, *pending.dots)


def _visit_dot_wait(op: Op, pending: Pending) -> None:
    assert isinstance(op, wgmma.WgmmaWait)
    for regions in pending.dots[op.pending :]:
        pending.reads.update(regions)
    pending.dots = pending.dots[: op.pending]


def _fence_ahead(op: Op, pending: Pending) -> None:
    """Fence ahead of a barrier the accesses that need a fence later, to save a barrier then.

    These are writes read later by a dot, and reads of regions refilled later by a copy.
    """
    feeds = any(_feeds_dot(region.buffer.out) for region in pending.unfenced)
    if feeds or pending.unfenced_reads:
        _insert(tma.ProxyFence(), op, pending)
        pending.forget_proxies()


def _feeds_dot(buffer: Value) -> bool:
    return any(user.effects_on(Resource.DOTS, "start") for user in users_through_views(buffer))


def _fence_before(op: Op, pending: Pending, region: Region | None = None) -> None:
    """Make all threads' writes visible to a tensor copy."""
    _raise_if_probe(pending, region)
    _insert(tma.ProxyFence(), op, pending)
    pending.forget_proxies()
    _barrier_before(op, pending, region)


def _barrier_before(op: Op, pending: Pending, region: Region | None = None) -> None:
    """Insert the barrier that orders an access to `region`."""
    _raise_if_probe(pending, region)
    warpgroup = region is not None and region.buffer in pending.divided
    if not warpgroup:
        _fence_ahead(op, pending)
    _insert(gpu.Barrier(warpgroup=warpgroup), op, pending)
    pending.clear(warpgroup=warpgroup)


def _insert(new: Op, op: Op, pending: Pending, before: Op | None = None) -> None:
    """Insert a barrier or fence for `op`, just before it or before another op."""
    new.loc = op.loc
    Builder.before_op(before or op)(new)
    pending.walks.forget_around(new)


def _raise_if_probe(pending: Pending, region: Region | None) -> None:
    if pending.is_probe:
        raise _MissingBarrierError(region)


def _divided(kernel: Kernel) -> dict[gpu.SharedAlloc, None]:
    """Return the buffers with disjoint boxes for each warpgroup."""
    allocs = [op for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)]
    divided: dict[gpu.SharedAlloc, None] = {}
    for alloc in allocs:
        copies = [op for op in alloc.out.users if isinstance(op, tma.TensorStore)]
        accesses = [op for op in alloc.out.users if not isinstance(op, tma.TmaBufferWait)]
        accesses_by_threads = [op for op in accesses if op not in copies]
        by_warpgroup = bool(copies) and all(copy.issuers for copy in copies)
        written = all(isinstance(op, gpu.SharedStore) for op in accesses_by_threads)
        if not (by_warpgroup and written):
            continue
        mine = region_of(alloc.out)
        if not mine.meets(region_of(other.out) for other in allocs if other is not alloc):
            divided[alloc] = None
    return divided


# ---- control flow -----------------------------------------------------------------------------


def _visit_branch(op: Op, pending: Pending) -> None:
    assert isinstance(op, scf.If)
    other = pending.copy()
    _visit(op.then, pending)
    _visit(op.orelse, other)
    pending.merge(other)


def _visit_roles(op: Op, pending: Pending) -> None:
    """Visit the consumers; mbarriers order them with the producer."""
    assert isinstance(op, roles.Specialize)
    _visit(op.consumers, pending)


def _visit_loop(op: Op, pending: Pending) -> None:
    """Walk a loop; a barrier needed only for earlier accesses goes ahead of the loop."""
    if _is_silent(op, pending):
        pending.map(lambda region: replace(region, stage=None))
        return
    if _meets_nothing(op, pending):
        for access in _reads_of(op, pending):
            pending.touched[Touch(access).carried_by(op)] = None
        pending.map(lambda region: replace(region, stage=None))
        return
    if _meets_earlier(op, pending):
        pending_in_loop = pending.copy()
        pending_in_loop.clear()
        _walk_loop(op, pending_in_loop)  # barriers required between iterations
        for _ in ("warpgroup", "CTA"):
            missing = _missing_barrier(op, pending)
            if missing is None:
                break
            _barrier_before(op, pending, missing.region)
    _walk_loop(op, pending)


def _is_silent(loop: Op, pending: Pending) -> bool:
    """Return whether a loop has no access that needs ordering, and no op that orders accesses."""
    if loop not in pending.silent:
        accesses = pending.hazards.accesses if pending.hazards is not None else {}
        inside = (op for block in loop.blocks for op in block.walk())
        pending.silent[loop] = all(
            op not in accesses and (op.has(Trait.CONTROL_FLOW) or rule_of(op) is None)
            for op in inside
        )
    return pending.silent[loop]


def _meets_nothing(loop: Op, pending: Pending) -> bool:
    """Return whether a loop and all pending accesses only read global memory.

    Without this, the state after each of many loops in a row would be copied for every walk of the next.
    """
    hazards = pending.hazards
    return (
        hazards is not None
        and bool(_reads_of(loop, pending))
        and not hazards.is_over_programs(loop)
        and not hazards.any_writes(pending.touched)
    )


def _reads_of(loop: Op, pending: Pending) -> tuple[Op, ...]:
    """Return a loop's reads of global memory, or () if threads do anything else there."""
    hazards = pending.hazards
    if loop not in pending.only_read and hazards is not None:
        inside = [op for block in loop.blocks for op in block.walk()]
        reads = [op for op in inside if op in hazards.accesses]
        is_plain = not any(op.has(Trait.LOOP) for op in inside) and all(
            rule_of(op) is None or op.has(Trait.CONTROL_FLOW) for op in inside
        )
        if not is_plain or any(op.writes(Resource.GLOBAL) or hazards.is_async(op) for op in reads):
            reads = []
        pending.only_read[loop] = tuple(reads)
    return pending.only_read[loop]


def _meets_earlier(loop: Op, pending: Pending) -> bool:
    """Return whether a loop conflicts with accesses since the last barrier."""
    written, accessed = pending.writes, {*pending.reads, *pending.writes}
    ops = [op for block in loop.blocks for op in block.walk()] if accessed else []
    ops = [op for op in ops if not isinstance(op, assembly.VolatileAsm)]  # it has no buffers
    reads, writes = (
        [replace(region, stage=None) for op in ops for region in regions_of(op, access)]
        for access in ("read", "write")
    )
    return any(region.meets(accessed) for region in writes) or any(
        region.meets(written) for region in reads
    )


def _missing_barrier(loop: Op, pending: Pending) -> _MissingBarrierError | None:
    """Return the error for a barrier missing in a loop entered in this state, or None."""
    probe = pending.copy()
    probe.is_probe = True
    try:
        _walk_loop(loop, probe)
    except _MissingBarrierError as missing:
        return missing
    return None


class _MissingBarrierError(Exception):
    """A probing walk needs a barrier, for a region or for any."""

    def __init__(self, region: Region | None) -> None:
        super().__init__()
        self.region = region


def _walk_loop(op: Op, pending: Pending) -> None:
    """Walk the body until its exit state adds nothing to its entry state."""
    after = pending.walks.exit_of(op, pending)
    if after is not None:
        pending.become(after)
        return
    rotated = rotated_by(op)
    entry = start = pending.copy()
    pending.walks.add_starts(op, pending)
    for walk in count():
        start = pending.copy()
        for block in op.blocks:
            _visit(block, pending)
        pending.map(lambda region: region.rotated(rotated))
        if pending.hazards is not None and pending.hazards.is_over_programs(op):
            pending.touched.clear()
        pending.carry(op)
        pending.merge(entry)
        if pending == start:
            break
        if walk > _MAX_EXACT_WALKS:
            pending.merge(start)  # a growing state reaches a fixpoint
    # After the loop its stage indices are not known.
    pending.map(lambda region: replace(region, stage=None))
    pending.walks.keep(op, LoopWalk(entry, start, pending.copy()))


_RULES: dict[type[Op], Rule] = {
    gpu.Fence: _pass_over,
    assembly.VolatileAsm: _pass_over,
    gpu.AsyncWait: _visit_wait,
    tma.TmaStoreWait: _visit_store_wait,
    tma.TmaBufferWait: _visit_buffer_wait,
    tma.ProxyFence: _visit_fence,
    mbarrier.MbarrierInit: _visit_init,
    mbarrier.MbarrierWait: _visit_mbarrier_wait,
    grid.ClusterArrive: visit_cluster_arrive,
    grid.ClusterWait: visit_cluster_wait,
    grid.ClusterSend: visit_send,
    cluster.SendTile: visit_remote,
    cluster.SendParts: visit_remote,
    cluster.RemoteLoad: visit_remote,
    cluster.RemoteArrive: _visit_arrival,
    mbarrier.MbarrierArrive: _visit_arrival,
    wgmma.WgmmaWait: _visit_dot_wait,
    roles.Specialize: _visit_roles,
    scf.If: _visit_branch,
    scf.For: _visit_loop,
    scf.While: _visit_loop,
}
"""Rules of ops for synchronization and control flow."""

_STARTED: dict[Resource, Rule] = {
    Resource.COPIES: _visit_copy,
    Resource.MBARRIER: _visit_tensor_load,
    Resource.STORES: _visit_tensor_store,
    Resource.DOTS: _visit_dot,
}
"""Rules for asynchronous accesses to shared memory, by the resource a later wait orders."""
