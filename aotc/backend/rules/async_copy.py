"""Rules for multistage buffers: stages, and asynchronous copies into them.

A copy is a `cp.async`, one for each vector of registers. Where it is masked off, it ignores its
source and writes zeros: one predicate per copy, and no branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from aotc.backend import nvvm_memory
from aotc.backend.integers import Affine, Component, common_parts, without
from aotc.backend.lower import Lowering, Results, layout_of, lowers, num_registers
from aotc.backend.rules.memory import global_address, l2_policy
from aotc.backend.rules.shared import buffer_address, shared_vectors
from aotc.backend.thread_map import both, conjuncts, is_first_holder
from aotc.ir.dialects import gpu, thread_copy
from aotc.ir.types import SharedType

_MAX_COPY_BYTES = 16


@lowers(gpu.SharedStage)
def lower_stage(ctx: Lowering, op: gpu.SharedStage) -> Results:
    """Lower a stage: the buffer's offset plus the stage's."""
    kind = op.buffer.type
    assert isinstance(kind, SharedType)
    number = _rotated(ctx, ctx.raw(op.index)[0], op.ahead, kind.num_stages)
    offset = ctx.ints.mul(number, Affine("", kind.stage_bytes), 32)
    return [(ctx.ints.add(ctx.raw(op.buffer)[0], offset, 32),)]


@lowers(gpu.NextStage)
def lower_next_stage(ctx: Lowering, op: gpu.NextStage) -> Results:
    """Lower the advance to a later stage index."""
    return [(_rotated(ctx, ctx.raw(op.index)[0], op.ahead, op.num_stages),)]


def _rotated(ctx: Lowering, index: Component, ahead: int, num_stages: int) -> Component:
    """Return `(index + ahead) % num_stages` of an index below `num_stages`."""
    base, offset = ctx.ints.split(index)
    if not base:
        return Affine("", (offset + ahead) % num_stages)
    possible = (1 << (num_stages - 1).bit_length()) - 1
    if ahead % num_stages == 0:
        return index
    name = ctx.ints.materialize(index, 32)
    fits = ctx.emit.value(f"icmp ult i32 {name}, {num_stages - ahead}")
    step = ctx.emit.value(f"select i1 {fits}, i32 {ahead}, i32 {ahead - num_stages}")
    return ctx.ints.learn(ctx.emit.value(f"add i32 {name}, {step}"), possible)


@lowers(gpu.AsyncCopy)
def lower_async_copy(ctx: Lowering, op: gpu.AsyncCopy) -> Results:
    """Lower a copy from global to shared memory: one instruction for each vector."""
    _copy(ctx, op, "true" if op.enabled is None else ctx.scalar(op.enabled))
    return []


@lowers(thread_copy.ThreadLoad)
def lower_thread_load(ctx: Lowering, op: thread_copy.ThreadLoad) -> Results:
    """Lower the same of a producer's threads; each arrives when its copies have landed."""
    _copy(ctx, op, "true")
    nvvm_memory.arrive_when_copied(ctx.emit, buffer_address(ctx, op.barrier))
    return []


def _copy(ctx: Lowering, op: gpu.AsyncCopy | thread_copy.ThreadLoad, enabled: str) -> None:
    layout = layout_of(op.pointer.type)
    masks = num_registers(op.pointer.type) * ["true"] if op.mask is None else ctx.registers(op.mask)
    conditions = _all_of(ctx, enabled, masks[:: op.vector])
    size_bytes = op.vector * gpu.shared_type(op, op.buffer).element.size_bytes
    access = nvvm_memory.AsyncAccess(
        size_bytes,
        is_first_holder(ctx, layout),
        bypass_l1=size_bytes == _MAX_COPY_BYTES and op.cache != "ca",
        policy=l2_policy(ctx, op.eviction),
        prefetch_bytes=op.prefetch_bytes,
    )
    addresses = ctx.raw(op.pointer)
    for target, registers in shared_vectors(ctx, op, op.buffer, layout, op.vector):
        head = registers[0]
        if registers != list(range(head, head + op.vector)):
            op.error(f"copies registers {registers}, which are not consecutive")
        if isinstance(op, thread_copy.ThreadLoad) and op.leaves_out(head):
            continue
        condition = conditions[head // op.vector]
        ignored = ctx.emit.value(f"xor i1 {condition}, true") if condition else ""
        source = global_address(ctx, addresses[head])
        nvvm_memory.async_copy(ctx.emit, target, source, access, ignored)


def _all_of(ctx: Lowering, enabled: str, masks: Sequence[str]) -> list[str]:
    """Return the conjunction of each mask with `enabled`; "" is always true.

    Terms common to all masks are combined with `enabled` first, so each mask adds one step.
    """
    parts = [conjuncts(ctx, mask) for mask in masks]
    common = common_parts(parts)
    shared = reduce(partial(both, ctx), common, enabled)
    return [reduce(partial(both, ctx), without(terms, common), shared) for terms in parts]


@lowers(gpu.AsyncCommit)
def lower_async_commit(ctx: Lowering, op: gpu.AsyncCommit) -> Results:
    """Lower the commit of a group of copies."""
    del op
    nvvm_memory.async_commit(ctx.emit)
    return []


@lowers(gpu.AsyncWait)
def lower_async_wait(ctx: Lowering, op: gpu.AsyncWait) -> Results:
    """Lower the wait for copies."""
    nvvm_memory.async_wait(ctx.emit, op.pending)
    return []
