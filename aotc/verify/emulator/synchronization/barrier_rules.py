"""Barrier instructions: `bar`, `barrier.cta`, `bar.warp.sync` and `barrier.cluster`.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
"""

from __future__ import annotations

import numpy as np

from aotc.verify.emulator.engine.barriers import NUM_BARRIERS, Arrival, Waiter
from aotc.verify.emulator.engine.divergence import Group
from aotc.verify.emulator.engine.terminators import End, LaneControl, Site, ends
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory_access.release_acquire import MemoryOrder
from aotc.verify.emulator.syntax import Operand
from aotc.verify.emulator.text.special_registers import WARP


@ends("bar", "barrier")
def _barrier(site: Site) -> End:
    modifiers = site.instruction.modifiers
    if "cluster" in modifiers:
        return _cluster_barrier(site)
    if "warp" in modifiers:
        return _warp_barrier(site)
    aligned = site.instruction.opcode == "bar" or "aligned" in modifiers
    kind = next((name for name in ("sync", "arrive", "red") if name in modifiers), "")
    supported = {"cta", "sync", "arrive", "red", "aligned", "popc", "and", "or", "u32", "pred"}
    if not kind or set(modifiers) - supported:
        raise Unsupported("its modifiers are not known")
    operands = list(site.instruction.operands[1:] if kind == "red" else site.instruction.operands)
    predicate = operands.pop() if kind == "red" else None
    count: Operand | None = operands[1] if len(operands) > 1 else None
    if kind == "arrive" and count is None:
        raise Unsupported("it names no number of threads")

    def wait(scheduler: LaneControl, group: Group) -> None:
        context = scheduler.context(site.instruction, group)
        numbers = context.read(operands[0], 32).astype(np.int64)
        all_threads = scheduler.batch.launched_warps * WARP
        counts = np.int64(all_threads) if count is None else context.read(count, 32)
        choice = numbers << 32 | counts
        first = int(choice[0])
        if (choice == first).all():
            meet(scheduler, group, first)
            return
        # Warps at different barriers diverge. (A closure that calls itself would be a cycle.)
        lanes, values = context.lane_indices(), np.unique(choice).tolist()
        ways = [lanes[choice == value] for value in values]
        for child, value in zip(scheduler.fork(group, ways, site.following), values, strict=True):
            meet(scheduler, child, value)

    def meet(scheduler: LaneControl, group: Group, choice: int) -> None:
        context = scheduler.context(site.instruction, group)
        all_threads = scheduler.batch.launched_warps * WARP
        number, threads = choice >> 32 & 0xFFFFFFFF, choice & 0xFFFFFFFF
        if number >= NUM_BARRIERS:
            raise context.fault(f"there is no barrier {number}: they are 0 to {NUM_BARRIERS - 1}")
        if threads == 0 or threads % WARP or threads > all_threads:
            raise context.fault(
                f"{threads} threads can not meet: the number must be a multiple of {WARP}, "
                f"up to the {all_threads} of the CTA"
            )
        arrival = Arrival(number, threads, aligned, kind != "arrive")
        barriers = scheduler.named_barriers
        if predicate is None and barriers.passes_at_once(context, arrival):
            scheduler.continue_at(group, site.following)
            return
        values = None if predicate is None else context.read(predicate, 1)
        waiter = Waiter(
            context.lane_indices(), site.following, group.join, site.instruction, values
        )
        barriers.arrive(context, waiter, arrival)
        if not arrival.waits:
            scheduler.continue_at(group, site.following)

    return wait


def _warp_barrier(site: Site) -> End:
    if site.instruction.modifiers != ("warp", "sync"):
        raise Unsupported("its modifiers are not known")
    (mask,) = site.instruction.operands

    def wait(scheduler: LaneControl, group: Group) -> None:
        context = scheduler.context(site.instruction, group)
        masks = context.read(mask, 32)
        if scheduler.warp_barriers.passes_at_once(context, masks):
            scheduler.continue_at(group, site.following)
        else:
            lanes = context.lane_indices()
            waiter = Waiter(lanes, site.following, group.join, site.instruction)
            scheduler.warp_barriers.arrive(waiter, masks)

    return wait


def _cluster_barrier(site: Site) -> End:
    modifiers = set(site.instruction.modifiers) - {"cluster", "aligned", "release", "acquire"}
    if modifiers not in ({"arrive"}, {"arrive", "relaxed"}, {"wait"}):
        raise Unsupported("its modifiers are not known")
    arrives = "arrive" in modifiers
    aligned = "aligned" in site.instruction.modifiers
    relaxed = "relaxed" in modifiers

    def meet(scheduler: LaneControl, group: Group) -> None:
        context = scheduler.context(site.instruction, group)
        if aligned:
            context.require_whole_warps()
        if arrives:
            machine = context.machine
            # A relaxed arrival releases the accesses before a fence, as a relaxed write does.
            fenced = machine.part(MemoryOrder).release_fenced
            scheduler.cluster_barriers.arrive(context, fenced if relaxed else machine.order.release)
            scheduler.continue_at(group, site.following)
        else:
            lanes = context.lane_indices()
            waiter = Waiter(lanes, site.following, group.join, site.instruction)
            scheduler.cluster_barriers.wait(context, waiter)

    return meet


@ends("wgmma")
def _warpgroup(site: Site) -> End | None:
    if site.instruction.modifiers[0] != "mma_async":
        return None
    start = site.decoder.step(site.instruction)

    def meet(scheduler: LaneControl, group: Group) -> None:
        context = scheduler.context(site.instruction, group)
        lanes = context.lane_indices()
        waiter = Waiter(lanes, site.following, group.join, site.instruction)
        if scheduler.warpgroups.meet(context, waiter, start):
            scheduler.continue_at(group, site.following)

    return meet
