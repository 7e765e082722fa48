"""Rules for warp roles: a branch on the warp index.

The consumers come first, so their thread ids are the layouts' own. With several consumer groups,
each group is numbered from 0. The first of the producer's warps does their work, in all its lanes:
stages, addresses and coordinates are then in uniform registers. Computed by one lane alone, they
would be copied there before each copy (5 % of a matmul of 64 x 128 tiles, H100). Where its threads
copy as well, all its warps run it, numbered from 0, and the first one issues.
"""

from __future__ import annotations

from aotc.backend import nvvm
from aotc.backend.lower import Lowering, Results, lowers
from aotc.ir.dialects import roles


@lowers(roles.Specialize)
def lower_specialize(ctx: Lowering, op: roles.Specialize) -> Results:
    """Lower the division of the CTA's warps into roles."""
    emit = ctx.emit
    first = ctx.kernel.num_warps * ctx.kernel.num_consumer_groups
    consume, other, join = (emit.new_label(stem) for stem in ("consume", "other", "join"))
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
    first_op = op.producer.first
    if isinstance(first_op, roles.Beside):
        inside, rest = emit.new_label("beside"), emit.new_label("other")
        emit.branch_if(emit.thread_value(f"icmp eq i32 {ctx.warp}, {first + 1}"), inside, rest)
        emit.start_block(inside)
        with emit.scope(), ctx.role("producer"):
            ctx.lower_ops(first_op.body)
        emit.branch(join)
        emit.start_block(rest)
    num_warps = ctx.kernel.producer_warps if roles.copies_by_threads(op) else 1
    if ctx.kernel.producer_warps > num_warps:
        produce = emit.new_label("produce")
        emit.branch_if(emit.thread_value(f"icmp eq i32 {ctx.warp}, {first}"), produce, join)
        emit.start_block(produce)
    with emit.scope(), ctx.role("producer", num_warps):
        ctx.lower_ops(op.producer)
    emit.branch(join)
    emit.start_block(join)
    return []


@lowers(roles.Beside)
def lower_beside(ctx: Lowering, op: roles.Beside) -> Results:
    """Lower nothing: the roles are divided where the producer begins."""
    del ctx, op
    return []


@lowers(roles.ConsumerGroup)
def lower_consumer_group(ctx: Lowering, op: roles.ConsumerGroup) -> Results:
    """Lower the index of a thread's consumer group."""
    del op
    return [(ctx.group or "0",)]
