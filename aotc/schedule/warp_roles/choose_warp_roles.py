"""Decide whether a warp of its own fetches, and give what it fetches to a ring of buffers.

A kernel that fetches tiles in loops is faster if a producer makes the copies: it runs ahead over
the ends of loops and of tiles of work, and costs the warps that compute nothing. What an innermost
loop fetches goes to a ring with a slot for every stage; any other fetch has one buffer, and is still
made as soon as that is free. Here the loop gets its ring, and the number of the slot it is at; the
passes between see fetches where they were. `specialize_warps` divides the roles.

Invariant: a kernel has producer warps afterwards exactly if `specialize_warps` can divide it, and
blocks copy for each other only then.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tma, wgmma
from aotc.ir.rewrite import Builder, append_carried
from aotc.ir.types import I32
from aotc.schedule.analysis.producer_slice import find_slice
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARPGROUP_WARPS
from aotc.schedule.tensor_maps.reorder_hazard import reorder_hazard
from aotc.schedule.warp_roles.consumer_groups import groups_obstacle


def choose_warp_roles(kernel: Kernel, schedule: Schedule) -> None:
    """Choose the roles of warps; give every innermost loop that fetches its rings."""
    _choose_roles(kernel, schedule)
    if not kernel.producer_warps:
        _fetch_alone(kernel)


def _choose_roles(kernel: Kernel, schedule: Schedule) -> None:
    loops = [op for op in kernel.walk() if isinstance(op, scf.For | scf.While)]
    fetching = [loop for loop in loops if any(_fetches(loop))]
    for loop in loops:
        if isinstance(loop, scf.For) and loop.warp_specialize and loop not in fetching:
            why = "the loop loads nothing by tensor or bulk copies"
            schedule.remark(loop.loc, f"no warp of its own fetches: {why}")
    if not fetching:
        _refuse_groups(kernel, schedule)
        return
    loc = fetching[0].loc
    obstacle = _obstacle(kernel, schedule)
    if obstacle:
        schedule.remark(loc, f"no warp of its own fetches: {obstacle}")
        _refuse_groups(kernel, schedule)
        return
    kernel.producer_warps = _producer_warps(kernel, schedule)
    kernel.num_consumer_groups = _num_consumer_groups(kernel, schedule)
    for loop in fetching:
        if isinstance(loop, scf.For) and not any(map(_is_loop, loop.body.walk())):
            with at(loop.loc):
                _make_rings(loop, loop.num_stages or schedule.config.num_stages)
    schedule.remark(loc, "a warp of its own fetches, as far ahead as there is room")


def _fetch_alone(kernel: Kernel) -> None:
    """Let every block of a cluster copy all it needs: only producers know when others have room."""
    for op in kernel.walk():
        if isinstance(op, tma.TmaFetch):
            op.num_parts = 1


def _producer_warps(kernel: Kernel, schedule: Schedule) -> int:
    """Return how many warps hold the producer: a warpgroup, so that consumers may take registers.

    Next to consumers that are no warpgroups, or have no products to hold, one warp does.
    """
    multiplies = any(isinstance(op, gpu.Dot | wgmma.Wgmma) for op in kernel.walk())
    whole = multiplies and schedule.config.num_warps % WARPGROUP_WARPS == 0
    return WARPGROUP_WARPS if whole else 1


def _num_consumer_groups(kernel: Kernel, schedule: Schedule) -> int:
    """Return how many groups of consumers take turns, and say what becomes of the wish for them."""
    wanted = schedule.config.num_consumer_groups
    if wanted == 1:
        return 1
    num_warps = wanted * kernel.num_warps + kernel.producer_warps
    obstacle = groups_obstacle(kernel, schedule, num_warps)
    if obstacle:
        schedule.remark(kernel.loc, f"one group of warps computes, not {wanted}: {obstacle}")
        return 1
    text = f"{wanted} groups of {kernel.num_warps} warps compute, each tiles of its own"
    schedule.remark(kernel.loc, text)
    return wanted


def _refuse_groups(kernel: Kernel, schedule: Schedule) -> None:
    wanted = schedule.config.num_consumer_groups
    if wanted > 1:
        why = "no warp of its own fetches for them"
        schedule.remark(kernel.loc, f"one group of warps computes, not {wanted}: {why}")


def _is_loop(op: Op) -> bool:
    return isinstance(op, scf.For | scf.While)


def _fetches(loop: Op) -> Iterator[tma.Fetch]:
    for block in loop.blocks:
        yield from (op for op in block.walk() if isinstance(op, tma.Fetch))


def _obstacle(kernel: Kernel, schedule: Schedule) -> str:
    """Return why no other warp can fetch, or an empty string."""
    if schedule.config.warp_specialize is False:
        return "warp_specialize is false"
    if not schedule.strategy.has_producer:
        return schedule.strategy.reason
    warps = schedule.config.num_warps + _producer_warps(kernel, schedule)
    if warps > schedule.target.max_warps_per_block:
        return f"a block has no room for {warps} warps"
    ops = list(kernel.walk())
    for op in ops:
        if isinstance(op, tma.Fetch):
            disorder = reorder_hazard(op, ops)
            if disorder:
                return disorder
            alloc = op.buffer.op
            if not isinstance(alloc, gpu.SharedAlloc) or alloc.block is not op.block:
                return "a buffer is fetched to in several places"
    return find_slice(kernel).obstacle


def _make_rings(loop: scf.For, num_slots: int) -> None:
    """Let every buffer that the loop fetches to be a slot of a ring, which an iteration turns."""
    fetches = [op for op in loop.body if isinstance(op, tma.Fetch)]
    if num_slots == 1 or not fetches:
        return
    outer = Builder.before_op(loop)
    start = outer(arith.Constant(0, I32)).out
    slot = loop.body.add_arg(I32, "slot")
    for fetch in fetches:
        alloc = fetch.buffer.op
        assert isinstance(alloc, gpu.SharedAlloc)
        attributes = {**alloc.attributes, "num_slots": num_slots}
        ring = outer(build(gpu.SharedAlloc, (), attributes, (), alloc.loc)).out
        alloc.replace_with([Builder.before_op(alloc)(gpu.SharedSlot(ring, slot)).out])
    end = loop.body.terminator
    following = Builder.before_op(end)(gpu.NextSlot(slot, num_slots)).out
    end.set_slots([*end.slots, following])
    append_carried(loop, [start])
