"""Rules for clusters and programmatic dependent launch.

A target without the latter never starts a grid before the previous one has ended: there is nothing
to wait for, and nothing to signal.
"""

from __future__ import annotations

from aotc.backend import nvvm_grid
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.packing import pack
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


@lowers(grid.ClusterStore)
def lower_cluster_store(ctx: Lowering, op: grid.ClusterStore) -> Results:
    """Lower a scalar's store to all CTAs: each of the first threads stores to one of them."""
    element = gpu.shared_type(op, op.buffer).element
    count = ctx.kernel.num_ctas
    words = pack(ctx.emit, ctx.registers(op.value), element)
    offset = ctx.emit.thread_value(f"mul i32 {nvvm_grid.cta_rank(ctx.emit)}, {element.size_bytes}")
    address = moved(ctx, buffer_address(ctx, op.buffer), offset)
    first = ctx.emit.thread_value(f"icmp ult i32 {ctx.thread}, {count}")
    bits = 8 * element.size_bytes
    nvvm_grid.store_to_cta(ctx.emit, address, ctx.thread, words[0], bits, first)
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
