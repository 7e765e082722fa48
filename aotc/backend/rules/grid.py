"""Rules for clusters, barriers of the grid and programmatic dependent launch.

A target without the latter never starts a grid before the previous one has ended: there is nothing
to wait for, and nothing to signal.
"""

from __future__ import annotations

from aotc.backend import nvvm, nvvm_grid
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.nvvm_memory import Address
from aotc.backend.packing import pack
from aotc.backend.rules.memory import global_address
from aotc.backend.rules.shared import buffer_address, moved
from aotc.ir.dialects import gpu, grid
from aotc.target import Feature


@lowers(grid.CtaRank)
def lower_cta_rank(ctx: Lowering, op: grid.CtaRank) -> Results:
    """Lower the rank of the CTA in its cluster."""
    del op
    return [(ctx.ints.learn(nvvm_grid.cta_rank(ctx.emit), ctx.kernel.num_ctas - 1),)]


@lowers(grid.ClusterBarrier)
def lower_cluster_barrier(ctx: Lowering, op: grid.ClusterBarrier) -> Results:
    """Lower a barrier of the cluster."""
    del op
    nvvm_grid.cluster_barrier(ctx.emit)
    return []


@lowers(grid.ClusterArrive)
def lower_cluster_arrive(ctx: Lowering, op: grid.ClusterArrive) -> Results:
    """Lower an arrival at the barrier of the cluster."""
    del op
    nvvm_grid.relaxed_cluster_arrive(ctx.emit)
    return []


@lowers(grid.ClusterWait)
def lower_cluster_wait(ctx: Lowering, op: grid.ClusterWait) -> Results:
    """Lower the wait for these arrivals."""
    del op
    nvvm_grid.cluster_wait(ctx.emit)
    return []


@lowers(grid.ClusterStore)
def lower_cluster_store(ctx: Lowering, op: grid.ClusterStore) -> Results:
    """Lower a scalar's store to all CTAs: each of the first threads stores to one of them."""
    address, word, bits, first = _own_element(ctx, op)
    nvvm_grid.store_to_cta(ctx.emit, address, ctx.thread, word, bits, first)
    return []


@lowers(grid.ClusterSend)
def lower_cluster_send(ctx: Lowering, op: grid.ClusterSend) -> Results:
    """Lower a scalar's asynchronous store to all CTAs, by the same threads."""
    address, word, bits, first = _own_element(ctx, op)
    barrier = buffer_address(ctx, op.barrier)
    nvvm_grid.store_to_cta(ctx.emit, address, ctx.thread, word, bits, first, barrier)
    return []


def _own_element(
    ctx: Lowering, op: grid.ClusterStore | grid.ClusterSend
) -> tuple[Address, str, int, str]:
    """Return where a CTA's scalar goes, its word and bits, and whether the thread stores one."""
    element = gpu.shared_type(op, op.buffer).element
    words = pack(ctx.emit, ctx.registers(op.value), element)
    offset = ctx.emit.thread_value(f"mul i32 {nvvm_grid.cta_rank(ctx.emit)}, {element.size_bytes}")
    address = moved(ctx, buffer_address(ctx, op.buffer), offset)
    first = ctx.emit.thread_value(f"icmp ult i32 {ctx.thread}, {ctx.kernel.num_ctas}")
    return address, words[0], 8 * element.size_bytes, first


@lowers(grid.GridBarrier)
def lower_grid_barrier(ctx: Lowering, op: grid.GridBarrier) -> Results:
    """Lower a barrier of the grid: one thread of each CTA counts it in, between barriers of the CTA."""
    op.expect(not ctx.group, "one of several consumer groups waits for the grid")
    first = ctx.emit.thread_value(f"icmp eq i32 {ctx.thread}, 0")
    nvvm.barrier(ctx.emit, ctx.barrier_threads)
    nvvm_grid.count_in(ctx.emit, global_address(ctx, ctx.raw(op.pointer)[0]), first)
    nvvm.barrier(ctx.emit, ctx.barrier_threads)
    return []


@lowers(grid.GridWait)
def lower_wait(ctx: Lowering, op: grid.GridWait) -> Results:
    """Lower the wait for earlier grids; every thread waits."""
    del op
    if Feature.PDL in ctx.target.features:
        nvvm_grid.wait_for_grids(ctx.emit)
    return []


@lowers(grid.LaunchDependents)
def lower_launch_dependents(ctx: Lowering, op: grid.LaunchDependents) -> Results:
    """Lower the launch of dependent grids."""
    del op
    if Feature.PDL in ctx.target.features:
        nvvm_grid.launch_dependents(ctx.emit)
    return []
