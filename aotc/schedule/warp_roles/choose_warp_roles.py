"""Decide whether to specialize warps, and give tensor loads rings of buffers.

A kernel with tensor loads in loops is faster if a producer warp issues them: it runs ahead across
the ends of loops and of tiles of work, and costs the consumer warps nothing. The loads of an
innermost loop get a ring with a buffer for every stage, as far as there is shared memory; any
other load has one buffer, and is issued as soon as that is free. This pass gives the loop its ring and its stage index; the passes
in between see loads where they were. `specialize_warps` splits the roles.

Invariant: a kernel has producer warps afterwards exactly if `specialize_warps` can split it, and
only then do CTAs multicast to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.ir.core import Kernel, Op, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, cluster, gpu, grid, scf, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder, append_carried
from aotc.ir.types import I32
from aotc.schedule.analysis.producer_slice import find_slice, makes_map_in_loop
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARPGROUP_WARPS
from aotc.schedule.remarks import Reason, Remark
from aotc.schedule.tensor_maps.reorder_hazard import reorder_hazard
from aotc.schedule.warp_roles.consumer_groups import groups_obstacle
from aotc.schedule.warp_roles.hand_over_copies import hand_over_copies
from aotc.schedule.warp_roles.load_groups import readers_of
from aotc.schedule.warp_roles.trim_copies import trim_copies


def choose_warp_roles(kernel: Kernel, schedule: Schedule) -> None:
    """Choose the roles of warps; give every innermost loop with tensor loads its rings."""
    _choose_roles(kernel, schedule)
    if not kernel.producer_warps:
        _load_alone(kernel)


def _choose_roles(kernel: Kernel, schedule: Schedule) -> None:
    loops = [op for op in kernel.walk() if op.has(Trait.LOOP)]
    loading = [loop for loop in loops if any(_loads(loop))]
    for loop in loops:
        if isinstance(loop, scf.For) and loop.warp_specialize and loop not in loading:
            schedule.remark(loop.loc, Remark.NO_PRODUCER_WARP(reason=Reason.NO_COPIES()))
    if not loading:
        _refuse_groups(kernel, schedule)
        return
    loc = loading[0].loc
    obstacle = _obstacle(kernel, schedule)
    if obstacle:
        schedule.remark(loc, Remark.NO_PRODUCER_WARP(reason=obstacle))
        _refuse_groups(kernel, schedule)
        return
    kernel.producer_warps = _producer_warps(kernel, schedule)
    kernel.num_consumer_groups = _num_consumer_groups(kernel, schedule)
    innermost = [
        loop
        for loop in loading
        if isinstance(loop, scf.For) and not any(op.has(Trait.LOOP) for op in loop.body.walk())
    ]
    for loop in innermost:
        with at(loop.loc):
            hand_over_copies(loop, kernel, schedule)
    trim_copies(kernel)
    for loop in innermost:
        with at(loop.loc):
            _make_rings(loop, schedule.stages_of(loop), schedule)
    schedule.remark(loc, Remark.PRODUCER_WARP())


def _load_alone(kernel: Kernel) -> None:
    """Let every CTA of a cluster load all it needs: only producers know when others have room."""
    for op in kernel.walk():
        if isinstance(op, tma.SyncTmaLoad):
            op.num_parts = 1


def _producer_warps(kernel: Kernel, schedule: Schedule) -> int:
    """Return the warps of the producer: a warpgroup, so that consumers may take its registers.

    One warp is enough for consumers that are no warpgroups, have no accumulators, or have a limit of
    the user's: he wants several CTAs on an SM, and three warps more would take their registers. A loop
    that makes tensor maps has them made by one warp beside.
    """
    multiplies = any(op.has(Trait.DOT) for op in kernel.walk())
    whole = (
        multiplies
        and not schedule.config.maxnreg
        and schedule.config.num_warps % WARPGROUP_WARPS == 0
    )
    makes_maps = any(map(makes_map_in_loop, kernel.walk()))
    return WARPGROUP_WARPS if whole else 2 if makes_maps else 1


def _num_consumer_groups(kernel: Kernel, schedule: Schedule) -> int:
    """Return how many consumer groups ping-pong; remark what becomes of a wish for them."""
    num_groups = schedule.config.num_consumer_groups
    if num_groups == 1:
        return 1
    num_warps = num_groups * kernel.num_warps + kernel.producer_warps
    obstacle = groups_obstacle(kernel, schedule, num_warps)
    if obstacle:
        schedule.remark(kernel.loc, Remark.ONE_CONSUMER_GROUP(wanted=num_groups, reason=obstacle))
        return 1
    text = Remark.CONSUMER_GROUPS(groups=num_groups, warps=kernel.num_warps)
    schedule.remark(kernel.loc, text)
    return num_groups


def _refuse_groups(kernel: Kernel, schedule: Schedule) -> None:
    num_groups = schedule.config.num_consumer_groups
    if num_groups > 1:
        text = Remark.ONE_CONSUMER_GROUP(wanted=num_groups, reason=Reason.NO_PRODUCER())
        schedule.remark(kernel.loc, text)


def _loads(loop: Op) -> Iterator[tma.SyncLoad]:
    for block in loop.blocks:
        yield from (op for op in block.walk() if isinstance(op, tma.SyncLoad))


def _obstacle(kernel: Kernel, schedule: Schedule) -> str:
    """Return why no other warp can issue the loads, or an empty string."""
    if schedule.config.warp_specialize is False:
        return "warp_specialize is false"
    if not schedule.strategy.has_producer:
        return schedule.strategy.reason
    warps = schedule.config.num_warps + _producer_warps(kernel, schedule)
    if warps > schedule.target.max_warps_per_block:
        return Reason.NO_ROOM_FOR_WARPS(warps=warps)
    ops = list(kernel.walk())
    for op in ops:
        if isinstance(op, grid.ClusterBarrier | grid.ClusterWait | cluster.ClusterRead) or (
            isinstance(op, cluster.ClusterTranspose)
            and any(outer.has(Trait.LOOP) for outer in op.ancestors())
        ):
            return Reason.CLUSTER_BARRIER()  # the producer does not come to it
        if isinstance(op, tma.SyncLoad):
            disorder = reorder_hazard(op, ops)
            if disorder:
                return disorder
            alloc = op.buffer.op
            if not isinstance(alloc, gpu.SharedAlloc) or alloc.block is not op.block:
                return Reason.SEVERAL_LOADS()
    return find_slice(kernel).obstacle


def _make_rings(loop: scf.For, num_stages: int, schedule: Schedule) -> None:
    """Make buffers of the loop's tensor loads stages of rings; an iteration advances them."""
    loads = [op for op in loop.body if isinstance(op, tma.SyncLoad)]
    if num_stages == 1 or not loads:
        return
    brief = _brief_loads(loads)
    schedule.can_shorten_rings |= bool(brief)
    if brief and not schedule.strategy.has_full_rings:
        loads = [load for load in loads if load not in brief]
        schedule.remark(brief[0].loc, Remark.ONE_BUFFER(reason=schedule.strategy.reason))
    outer = Builder.before_op(loop)
    start = outer(arith.Constant(0, I32)).out
    stage = loop.body.add_arg(I32, "stage")
    for load in loads:
        alloc = load.buffer.op
        assert isinstance(alloc, gpu.SharedAlloc)
        attributes = {**alloc.attributes, "num_stages": num_stages}
        ring = outer(build(gpu.SharedAlloc, (), attributes, (), alloc.loc)).out
        alloc.replace_with([Builder.before_op(alloc)(gpu.SharedStage(ring, stage)).out])
    end = loop.body.terminator
    following = Builder.before_op(end)(gpu.NextStage(stage, num_stages)).out
    end.set_slots([*end.slots, following])
    append_carried(loop, [start])


def _brief_loads(loads: Sequence[tma.SyncLoad]) -> list[tma.SyncLoad]:
    """Return the loads whose tile a single dot reads, if several read another's.

    Such a tile's buffer is free for most of an iteration, in which it can be filled again.
    """
    dots = {load: sum(op.has(Trait.DOT) for op in readers_of(load.buffer)) for load in loads}
    if max(dots.values()) < 2:
        return []
    return [load for load, count in dots.items() if count == 1]
