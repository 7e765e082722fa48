"""Rules for tensor copies and mbarriers: one thread issues, all wait.

A block is copied box by box; where a box lies in shared memory follows from the buffer's layout,
as for any other access.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from aotc.backend import nvvm_tensor
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.nvvm_tensor import TensorCopy
from aotc.backend.rules.memory import l2_policy
from aotc.backend.rules.shared import buffer_address
from aotc.ir import gf2
from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, tma


@lowers(tma.TmaLoad)
def lower_tma_load(ctx: Lowering, op: tma.TmaLoad) -> Results:
    """Lower a load: announce all bytes, then copy every box."""
    barrier, issuer = buffer_address(ctx, op.barrier), _issuer(ctx)
    num_bytes = gpu.shared_type(op, op.buffer).size_bytes
    nvvm_tensor.mbarrier_expect(ctx.emit, barrier, num_bytes, issuer, arrive=op.arrive)
    policy = l2_policy(ctx, op.eviction)
    for copy in _copies(ctx, op, op.tensor, op.buffer, op.coords):
        nvvm_tensor.tensor_load(ctx.emit, copy, barrier, policy)
    return []


@lowers(tma.TmaStore, tma.TmaReduce)
def lower_tma_store(ctx: Lowering, op: tma.TmaStore | tma.TmaReduce) -> Results:
    """Lower a store or reduction, whose boxes are one group."""
    reduction = op.kind if isinstance(op, tma.TmaReduce) else ""
    for copy in _copies(ctx, op, op.tensor, op.buffer, op.coords):
        nvvm_tensor.tensor_store(ctx.emit, copy, reduction)
    nvvm_tensor.commit_stores(ctx.emit, _issuer(ctx))
    return []


@lowers(tma.TmaStoreWait)
def lower_tma_store_wait(ctx: Lowering, op: tma.TmaStoreWait) -> Results:
    """Lower the issuing thread's wait."""
    nvvm_tensor.wait_stores(ctx.emit, op.pending, _issuer(ctx), written=op.written)
    return []


@lowers(tma.ProxyFence)
def lower_proxy_fence(ctx: Lowering, op: tma.ProxyFence) -> Results:
    """Lower a fence of every thread."""
    nvvm_tensor.proxy_fence(ctx.emit, whole=op.whole)
    return []


@lowers(tma.MbarrierInit)
def lower_mbarrier_init(ctx: Lowering, op: tma.MbarrierInit) -> Results:
    """Lower the making of a mbarrier."""
    nvvm_tensor.mbarrier_init(ctx.emit, buffer_address(ctx, op.barrier), op.count, _issuer(ctx))
    return []


@lowers(tma.MbarrierWait)
def lower_mbarrier_wait(ctx: Lowering, op: tma.MbarrierWait) -> Results:
    """Lower a wait of all threads."""
    nvvm_tensor.mbarrier_wait(ctx.emit, buffer_address(ctx, op.barrier), ctx.scalar(op.parity))
    return []


def _issuer(ctx: Lowering) -> str:
    """Return whether this thread is the one that issues copies: the first."""
    return ctx.emit.thread_value(f"icmp eq i32 {ctx.thread}, 0")


def _copies(
    ctx: Lowering, op: Op, tensor: Value, buffer: Value, coords: Sequence[Value]
) -> Iterator[TensorCopy]:
    """Yield the copy of each box of a block."""
    kind, shared = tma.check_tensor(op, tensor, buffer, coords), gpu.shared_type(op, buffer)
    places = gf2.Span(shared.layout.columns("offset"))
    first = [ctx.scalar(coord) for coord in coords]
    starts = [range(0, extent, box) for extent, box in zip(shared.shape, kind.box, strict=True)]
    for origin in itertools.product(*starts):
        place = places.solve(shared.layout.pack(origin))
        if place is None:
            op.error(f"{shared.layout} does not hold {origin}")
        # A swizzle moves the first element inside its box; a box begins at a multiple of its size.
        place -= place % prod(kind.box)
        at = [_plus(ctx, coord, start) for coord, start in zip(first, origin, strict=True)]
        address = buffer_address(ctx, buffer, place * shared.element.size_bytes)
        yield TensorCopy(ctx.scalar(tensor), at[::-1], address, _issuer(ctx))


def _plus(ctx: Lowering, coord: str, start: int) -> str:
    return ctx.emit.value(f"add i32 {coord}, {start}") if start else coord
