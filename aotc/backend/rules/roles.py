"""Rules for warp roles: a branch on the warp index.

The consumers come first, so that their thread ids are those of the layouts; with several consumer
groups, each group is numbered from 0. A single thread of the producer's warps, elected once, does
their work: no role of theirs needs another.
"""

from __future__ import annotations

from aotc.backend import nvvm, nvvm_issue
from aotc.backend.lower import Lowering, Results, lowers
from aotc.ir.dialects import roles


@lowers(roles.Specialize)
def lower_specialize(ctx: Lowering, op: roles.Specialize) -> Results:
    """Lower the division of the CTA's warps into roles."""
    emit = ctx.emit
    first = ctx.kernel.num_warps * ctx.kernel.num_consumer_groups
    consume, other, produce, others, join = (
        emit.new_label(stem) for stem in ("consume", "other", "produce", "others", "join")
    )
    emit.branch_if(emit.thread_value(f"icmp ult i32 {ctx.warp}, {first}"), consume, other)
    emit.start_block(consume)
    if op.consumer_registers:
        nvvm.increase_registers(emit, op.consumer_registers)
    with emit.scope(), ctx.role("consumer"):
        ctx.lower_ops(op.consumers)
    emit.branch(join)
    emit.start_block(other)
    if op.producer_registers:
        nvvm.decrease_registers(emit, op.producer_registers)
    if ctx.kernel.producer_warps > 1:
        elect = emit.new_label("elect")
        emit.branch_if(emit.thread_value(f"icmp eq i32 {ctx.warp}, {first}"), elect, join)
        emit.start_block(elect)
    emit.branch_if(nvvm_issue.elected(emit), produce, others)
    emit.start_block(produce)
    with emit.scope(), ctx.role("producer"):
        ctx.lower_ops(op.producer)
    emit.branch(others)
    emit.start_block(others)
    nvvm.warp_barrier(emit)
    emit.branch(join)
    emit.start_block(join)
    return []


@lowers(roles.ConsumerGroup)
def lower_consumer_group(ctx: Lowering, op: roles.ConsumerGroup) -> Results:
    """Lower the index of a thread's consumer group."""
    del op
    return [(ctx.group or "0",)]
