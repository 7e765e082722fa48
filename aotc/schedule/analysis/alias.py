"""Alias analysis of buffers, descriptors and tensor maps.

A buffer in shared memory is an allocation, one stage of it, or a view of either. Two may alias if
their allocations are one, unless they are different stages counted from one stage index.
Descriptors and tensor maps are of tensors in global memory. Different parameters of a kernel are of
different tensors, or no order is promised. Descriptors made by a kernel from one pointer are of one
tensor.

Invariant: without an alias there is no byte in common, in one iteration of the loops around both.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import gpu, scf
from aotc.ir.effects import Resource, Trait
from aotc.ir.types import SharedType
from aotc.schedule.analysis.global_order import shared_roots


def may_alias(left: Value, right: Value) -> bool:
    """Return whether two buffers, two descriptors or two tensor maps may be the same memory."""
    if isinstance(left.type, SharedType):
        return _buffers_may_alias(left, right)
    if left.op is None or right.op is None:
        names = argument_of(left), argument_of(right)
        return left is right or (names[0] == names[1] and names[0] != "")
    pointers = [_map_address(left), _map_address(right)]
    traced = [pointer for pointer in pointers if pointer is not None]
    return len(traced) == len(pointers) and bool(shared_roots(*traced))


def _buffers_may_alias(left: Value, right: Value) -> bool:
    stages = stage_of(left), stage_of(right)
    if stages[0] is not None and stages[1] is not None and stages[0].index is stages[1].index:
        apart = stages[0].ahead != stages[1].ahead
    else:
        apart = False
    return not apart and allocation_of(left) is allocation_of(right)


def allocation_of(buffer: Value) -> Value:
    """Return the allocation of a buffer, a view or a stage."""
    op = buffer.op
    while op is not None and op.has(Trait.ALIAS):
        buffer = op.operands[0]
        op = buffer.op
    return buffer


def is_written_by_threads(buffer: Value, loop: scf.For) -> bool:
    """Return whether a thread writes any of a buffer's allocation in a loop.

    True for a buffer allocated in the loop: each iteration has another one.
    """
    whole = allocation_of(buffer)
    if whole.op is None or whole.op.block is loop.body:
        return True
    return any(
        allocation_of(getattr(op, effect.of)) is whole
        for op in loop.body.walk()
        for effect in op.effects_on(Resource.SHARED, "write", proxy="generic")
        if effect.of
    )


def stage_of(buffer: Value) -> gpu.SharedStage | None:
    """Return the op selecting the stage of a buffer or view."""
    op = buffer.op
    while op is not None and not isinstance(op, gpu.SharedStage):
        op = op.operands[0].op if op.has(Trait.ALIAS) else None
    return op


def views_of(buffer: Value) -> Iterator[Value]:
    """Yield a buffer, its source as a view or a stage, and so on to the allocation."""
    yield buffer
    while buffer.op is not None and buffer.op.has(Trait.ALIAS):
        buffer = buffer.op.operands[0]
        yield buffer


def argument_of(tensor: Value) -> str:
    """Return the launch argument of a descriptor or pointer, "" if it comes from none."""
    owner = tensor.owner
    kernel = owner.parent if isinstance(owner, Block) else None
    return kernel.params[tensor.index].argument if isinstance(kernel, Kernel) else ""


def _map_address(tensor: Value) -> Value | None:
    """Return where the tensor map of a tensor lies in memory, if the kernel takes it from there."""
    op = tensor.op
    effects = () if op is None else op.effects_on(Resource.TENSOR_MAP, "read")
    return next((getattr(op, effect.of) for effect in effects), None)
