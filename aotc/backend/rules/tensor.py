"""Rules for tensor copies and mbarriers: one thread issues, all wait.

A tile is copied box by box; the buffer's layout determines where a box is in shared memory, as for
any other access.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from aotc.backend import nvvm, nvvm_grid, nvvm_tensor
from aotc.backend.lower import WARP_SIZE, WARPGROUP_SIZE, Lowering, Results, lowers
from aotc.backend.nvvm_issue import Issuer
from aotc.backend.nvvm_tensor import TensorCopy
from aotc.backend.rules.memory import global_address, l2_policy
from aotc.backend.rules.shared import buffer_address, mbarrier_address
from aotc.backend.thread_map import both
from aotc.ir import gf2
from aotc.ir.core import Op, Value
from aotc.ir.dialects import cache, gpu, map_store, mbarrier, tma
from aotc.ir.encoded_element import encoded_element
from aotc.ir.types import PointerType, SharedType, TensorMapType

WARPGROUP_WARPS = WARPGROUP_SIZE // WARP_SIZE


@lowers(tma.TensorMapAt)
def lower_tensor_map_at(ctx: Lowering, op: tma.TensorMapAt) -> Results:
    """Lower a tensor map in global memory: its generic address, after a fence in every thread."""
    tensor = nvvm_tensor.generic_address(ctx.emit, ctx.scalar(op.pointer))
    nvvm_tensor.acquire_map(ctx.emit, tensor)
    return [(tensor,)]


_ELEMENT_CODES = {
    **dict.fromkeys(("i1", "i8", "u8", "fp8e4nv", "fp8e5"), 0),
    **dict.fromkeys(("i16", "u16"), 1),
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "fp16": 6,
    "fp32": 7,
    "fp64": 9,
    "bf16": 10,
}
_SWIZZLE_CODES = {0: 0, 32: 1, 64: 2, 128: 3}


@lowers(tma.MakeTensorMap)
def lower_make_tensor_map(ctx: Lowering, op: tma.MakeTensorMap) -> Results:
    """Lower a map made by the warp that issues loads, for itself."""
    return [(_publish(ctx, op),)]


@lowers(map_store.PublishMap)
def lower_publish_map(ctx: Lowering, op: map_store.PublishMap) -> Results:
    """Lower a map for kernels after this one."""
    _publish(ctx, op)
    return []


def _publish(ctx: Lowering, op: tma.MakeTensorMap | map_store.PublishMap) -> str:
    """Build a map and publish it; return the generic address of its slot."""
    kind, emit = op.type, ctx.emit
    rank = len(kind.box)
    is_used_here = isinstance(op, tma.MakeTensorMap)
    element = encoded_element(op.out) if is_used_here else kind.element
    size = kind.element.size_bytes
    strides = [emit.value(f"mul i64 {ctx.scalar(stride)}, {size}") for stride in op.sizes[rank:]]
    fields = nvvm_tensor.MapFields(
        nvvm_tensor.generic_address(emit, ctx.scalar(op.pointer)),
        [ctx.scalar(extent) for extent in op.sizes[:rank][::-1]],
        strides[::-1],
        kind.box[::-1],
        _ELEMENT_CODES[element.name],
        _SWIZZLE_CODES[kind.swizzle_bytes],
        int(kind.fill_nan),
    )
    slot = nvvm_tensor.generic_address(emit, ctx.scalar(op.slot))
    lane = emit.thread_value(f"and i32 {ctx.thread}, {WARP_SIZE - 1}")
    template = buffer_address(ctx, op.template)
    nvvm_tensor.make_map(emit, fields, template, slot, lane, ctx.issuer.warps)
    return slot


@lowers(tma.MadeTensorMap)
def lower_made_tensor_map(ctx: Lowering, op: tma.MadeTensorMap) -> Results:
    """Lower a map made by another warp: the warps that issue copies acquire it."""
    slot = nvvm_tensor.generic_address(ctx.emit, ctx.scalar(op.slot))
    is_stored = any(isinstance(user, tma.TmaStore | tma.TmaReduce) for user in op.out.users)
    issuer = _leaders(ctx) if is_stored else ctx.issuer
    nvvm_tensor.acquire_made_map(ctx.emit, slot, issuer.warps)
    return [(slot,)]


@lowers(tma.AcquiredTensorMap)
def lower_acquired_tensor_map(ctx: Lowering, op: tma.AcquiredTensorMap) -> Results:
    """Lower a map without acquiring: its generic address."""
    if isinstance(op.slot.type, PointerType):
        return [(nvvm_tensor.generic_address(ctx.emit, ctx.scalar(op.slot)),)]
    return [(ctx.emit.value(f"inttoptr i64 {ctx.scalar(op.slot)} to ptr"),)]


@lowers(tma.TensorMapAddress)
def lower_tensor_map_address(ctx: Lowering, op: tma.TensorMapAddress) -> Results:
    """Lower the address of a parameter's map, in memory the hardware reads."""
    return [(ctx.emit.value(f"ptrtoint ptr {ctx.scalar(op.tensor)} to i64"),)]


@lowers(tma.TmaLoad)
def lower_tma_load(ctx: Lowering, op: tma.TmaLoad) -> Results:
    """Lower a load: expect all bytes at the mbarrier, then copy every box."""
    barrier, issuer = buffer_address(ctx, op.barrier), ctx.issuer
    shared = gpu.shared_type(op, op.buffer)
    num_bytes = prod(tma.copied_shape(shared, op.num_rows)) * shared.element.size_bytes
    nvvm_tensor.mbarrier_expect(ctx.emit, barrier, str(num_bytes), issuer, arrive=op.arrive)
    policy = l2_policy(ctx, op.eviction)
    ctas = (1 << op.num_parts) - 1 if op.num_parts > 1 else 0
    parts = op.num_parts, op.num_rows
    for copy in _copies(ctx, op, op.tensor, op.buffer, op.coords, *parts):
        nvvm_tensor.tensor_load(ctx.emit, copy, barrier, policy, issuer, ctas)
    return []


@lowers(cache.TmaPrefetch)
def lower_tma_prefetch(ctx: Lowering, op: cache.TmaPrefetch) -> Results:
    """Lower a hint: one for each box."""
    kind = op.tensor.type
    assert isinstance(kind, TensorMapType)
    first = [ctx.scalar(coord) for coord in op.coords]
    starts = [range(0, extent, step) for extent, step in zip(op.shape, kind.box, strict=True)]
    for origin in itertools.product(*starts):
        coords = [_plus(ctx, coord, step) for coord, step in zip(first, origin, strict=True)]
        nvvm_tensor.tensor_prefetch(ctx.emit, ctx.scalar(op.tensor), coords[::-1], ctx.issuer)
    return []


@lowers(tma.BulkLoad)
def lower_bulk_load(ctx: Lowering, op: tma.BulkLoad) -> Results:
    """Lower a copy of bytes, skipped if there are none."""
    emit, barrier = ctx.emit, buffer_address(ctx, op.barrier)
    size_bytes = ctx.scalar(op.size_bytes)
    nvvm_tensor.mbarrier_expect(emit, barrier, size_bytes, ctx.issuer, arrive=op.arrive)
    source = global_address(ctx, ctx.raw(op.pointer)[0])
    target = buffer_address(ctx, op.buffer)
    policy = l2_policy(ctx, op.eviction)
    any_bytes = _any_bytes(ctx, size_bytes)
    nvvm_tensor.bulk_load(emit, source, target, size_bytes, barrier, policy, ctx.issuer, any_bytes)
    return []


def _any_bytes(ctx: Lowering, size_bytes: str) -> str:
    """Return the condition of a nonempty copy, "" if it is always true."""
    return "" if size_bytes.isdecimal() else ctx.emit.value(f"icmp ne i32 {size_bytes}, 0")


@lowers(tma.TmaStore, tma.TmaReduce)
def lower_tma_store(ctx: Lowering, op: tma.TmaStore | tma.TmaReduce) -> Results:
    """Lower a store or reduction; its boxes form one commit group."""
    reduction = op.kind if isinstance(op, tma.TmaReduce) else ""
    leaders = _leaders(ctx)
    for number, copy in enumerate(_copies(ctx, op, op.tensor, op.buffer, op.coords)):
        condition = _is_warpgroup(ctx, op.issuers[number] if op.issuers else 0)
        copy = replace(copy, condition=condition)  # noqa: PLW2901 - the copy of one warpgroup
        nvvm_tensor.tensor_store(ctx.emit, copy, leaders, reduction)
    nvvm_tensor.commit_stores(ctx.emit, leaders)
    return []


@lowers(tma.BulkStore)
def lower_bulk_store(ctx: Lowering, op: tma.BulkStore) -> Results:
    """Lower a store or reduction of bytes; its commit group is empty if there are none."""
    size_bytes, leaders = ctx.scalar(op.size_bytes), _leaders(ctx)
    target = global_address(ctx, ctx.raw(op.pointer)[0])
    condition = both(ctx, _is_warpgroup(ctx, 0), _any_bytes(ctx, size_bytes))
    source = buffer_address(ctx, op.buffer)
    assert isinstance(op.buffer.type, SharedType)
    reduction = nvvm_tensor.bulk_reduction(op.kind, op.buffer.type.element)
    nvvm_tensor.bulk_store(
        ctx.emit, target, source, size_bytes, leaders, condition, reduction=reduction
    )
    nvvm_tensor.commit_stores(ctx.emit, leaders)
    return []


@lowers(tma.TmaStoreWait)
def lower_tma_store_wait(ctx: Lowering, op: tma.TmaStoreWait) -> Results:
    """Lower the wait for stores, in all threads."""
    nvvm_tensor.wait_stores(ctx.emit, op.pending, written=op.written)
    return []


@lowers(tma.TmaBufferWait)
def lower_tma_buffer_wait(ctx: Lowering, op: tma.TmaBufferWait) -> Results:
    """Lower the wait for the stores from a buffer, in all threads."""
    nvvm_tensor.wait_stores(ctx.emit, op.pending, written=False)
    return []


@lowers(tma.ProxyFence)
def lower_proxy_fence(ctx: Lowering, op: tma.ProxyFence) -> Results:
    """Lower a fence, executed by every thread."""
    nvvm_tensor.proxy_fence(ctx.emit, whole=op.whole)
    return []


@lowers(mbarrier.MbarrierInit)
def lower_mbarrier_init(ctx: Lowering, op: mbarrier.MbarrierInit) -> Results:
    """Lower the initialization of an mbarrier, or of a ring of them."""
    assert isinstance(op.barrier.type, SharedType)
    addresses = [
        buffer_address(ctx, op.barrier, stage * mbarrier.MBARRIER_BYTES)
        for stage in range(op.barrier.type.num_stages)
    ]
    nvvm_tensor.mbarrier_init(ctx.emit, addresses, op.count, ctx.issuer, op.expected_bytes)
    return []


@lowers(mbarrier.MbarrierArrive)
def lower_mbarrier_arrive(ctx: Lowering, op: mbarrier.MbarrierArrive) -> Results:
    """Lower an arrival: one lane arrives for its warp."""
    op.expect(op.count == ctx.role_warps, f"{op.count} of {ctx.role_warps} warps arrive")
    nvvm.warp_barrier(ctx.emit)
    enabled = "" if op.enabled is None else ctx.scalar(op.enabled)
    barrier = buffer_address(ctx, op.barrier)
    nvvm_tensor.mbarrier_arrive(
        ctx.emit, barrier, Issuer(lane=ctx.first_lane), enabled, op.num_ctas
    )
    return []


@lowers(mbarrier.MbarrierWait)
def lower_mbarrier_wait(ctx: Lowering, op: mbarrier.MbarrierWait) -> Results:
    """Lower a wait, in all threads or in the warp that issues copies."""
    barrier = mbarrier_address(ctx, op.barrier, op.warp_stride)
    issuing = ctx.issuer.warps if op.by_issuer else ""
    parity = ctx.scalar(op.parity)
    if not issuing:
        nvvm_tensor.mbarrier_wait(ctx.emit, barrier, parity)
        return []
    waiting, join = ctx.emit.new_label("waiting"), ctx.emit.new_label("waited")
    ctx.emit.branch_if(issuing, waiting, join)
    ctx.emit.start_block(waiting)
    nvvm_tensor.mbarrier_wait(ctx.emit, barrier, parity)
    ctx.emit.branch(join)
    ctx.emit.start_block(join)
    return []


def _is_warpgroup(ctx: Lowering, warpgroup: int) -> str:
    """Return whether a leader belongs to a warpgroup, "" if there is only one."""
    if ctx.kernel.num_warps <= WARPGROUP_WARPS:
        return ""
    return ctx.emit.thread_value(f"icmp eq i32 {ctx.warp}, {warpgroup * WARPGROUP_WARPS}")


def _leaders(ctx: Lowering) -> Issuer:
    """Return the issuers of stores, one in each warpgroup.

    A leader without a store commits an empty group, so all leaders count alike.
    """
    if ctx.kernel.num_warps <= WARPGROUP_WARPS:
        return replace(ctx.issuer, lane=ctx.first_lane)
    warp_of_group = ctx.emit.thread_value(f"and i32 {ctx.warp}, {WARPGROUP_WARPS - 1}")
    return Issuer(ctx.emit.thread_value(f"icmp eq i32 {warp_of_group}, 0"), ctx.first_lane)


def _copies(
    ctx: Lowering,
    op: Op,
    tensor: Value,
    buffer: Value,
    coords: Sequence[Value],
    num_parts: int = 1,
    num_rows: int = 0,
) -> Iterator[TensorCopy]:
    """Yield the copy of each box of a tile, or of this CTA's part for a multicast.

    With `num_rows`, the tile has this extent along its first axis.
    """
    kind = tma.check_tensor(op, tensor, buffer, coords, num_rows)
    shared = gpu.shared_type(op, buffer)
    offsets = gf2.Span(shared.layout.columns("offset"))
    first = [ctx.scalar(coord) for coord in coords]
    lacking = len(first) - len(shared.shape)
    box = tma.box_in_buffer(kind, len(shared.shape))
    num_rows, *other_extents = tma.copied_shape(shared, num_rows)
    part_rows, part_bytes = num_rows // num_parts, 0
    extents = (part_rows, *other_extents)
    starts = [range(0, extent, step) for extent, step in zip(extents, box, strict=True)]
    if num_parts > 1:
        shift = ctx.emit.value(f"mul i32 {nvvm_grid.cta_rank(ctx.emit)}, {part_rows}")
        first[lacking] = ctx.emit.value(f"add i32 {first[lacking]}, {shift}")
        rows = range(0, num_rows, part_rows)
        part_bytes = _part_bytes(op, offsets, shared, rows, prod(kind.box))
    for origin in itertools.product(*starts):
        position = offsets.solve(shared.layout.pack(origin))
        if position is None:
            op.error(f"{shared.layout} does not hold {origin}")
        position = _box_start(position, prod(kind.box))
        steps = (*[0] * lacking, *origin)
        box_coords = [_plus(ctx, coord, step) for coord, step in zip(first, steps, strict=True)]
        address = buffer_address(ctx, buffer, position * shared.element.size_bytes)
        if part_bytes:
            part_offset = ctx.emit.value(f"mul i32 {nvvm_grid.cta_rank(ctx.emit)}, {part_bytes}")
            base = ctx.emit.value(f"add i32 {address.base}, {part_offset}")
            address = replace(address, base=base)
        yield TensorCopy(ctx.scalar(tensor), box_coords[::-1], address)


def _box_start(offset: int, box_elems: int) -> int:
    """Return the start of the box whose first element a swizzle moved to `offset`.

    A box starts at a multiple of its size, or of its largest power-of-two divisor, still a whole
    number of swizzle periods.
    """
    return offset - offset % (box_elems & -box_elems)


def _part_bytes(op: Op, offsets: gf2.Span, shared: SharedType, rows: range, box_elems: int) -> int:
    """Return the distance in bytes of the parts copied by the CTAs of a cluster."""
    rest = [0] * (len(shared.shape) - 1)
    starts = [
        _box_start(offsets.solve(shared.layout.pack((row, *rest))) or 0, box_elems) for row in rows
    ]
    apart = starts[1]
    op.expect(starts == [apart * part for part in range(len(starts))], "parts are not in order")
    return apart * shared.element.size_bytes


def _plus(ctx: Lowering, coord: str, start: int) -> str:
    return ctx.emit.value(f"add i32 {coord}, {start}") if start else coord
