"""Rules for tiles in the shared memory of other CTAs of a cluster.

Addresses there are this CTA's own, mapped to the other one: `mapa` of the thread's address.
"""

from __future__ import annotations

from aotc.backend import nvvm, nvvm_grid, nvvm_memory, nvvm_tensor
from aotc.backend.integers import Component
from aotc.backend.lower import Lowering, Results, layout_of, lowers
from aotc.backend.nvvm_issue import Issuer
from aotc.backend.packing import pack, unpack, word_shape
from aotc.backend.rules.shared import mbarrier_address, shared_parts, shared_vectors
from aotc.backend.thread_map import first_holders, is_first_holder
from aotc.ir.dialects import cluster, gpu, tile


@lowers(cluster.SendTile)
def lower_send_tile(ctx: Lowering, op: cluster.SendTile) -> Results:
    """Lower an asynchronous store of a tile to another CTA, and the incoming arrival."""
    kind, buffer = tile.tile_type(op, op.value), gpu.shared_type(op, op.buffer)
    layout, values = layout_of(kind), ctx.registers(op.value)
    barrier, cta = mbarrier_address(ctx, op.barrier, op.warp_stride), ctx.scalar(op.cta)
    num_bytes, issuer = buffer.stage_bytes, ctx.issuer
    if op.warp_stride:
        num_bytes, issuer = num_bytes // ctx.kernel.num_warps, Issuer(lane=ctx.first_lane)
    if op.takes:
        nvvm_tensor.mbarrier_expect(ctx.emit, barrier, str(num_bytes), issuer, arrive=True)
    if not op.gives:
        return []
    remote_barrier = nvvm_grid.in_cta(ctx.emit, barrier, cta)
    bits, count = word_shape(kind.element, op.vector)
    access = nvvm_memory.Access(bits, count, predicate=is_first_holder(ctx, layout))
    for address, registers in shared_vectors(ctx, op, op.buffer, layout, op.vector):
        words = pack(ctx.emit, [values[register] for register in registers], kind.element)
        nvvm_grid.send(
            ctx.emit, nvvm_grid.in_cta(ctx.emit, address, cta), access, words, remote_barrier
        )
    return []


@lowers(cluster.SendParts)
def lower_send_parts(ctx: Lowering, op: cluster.SendParts) -> Results:
    """Lower an asynchronous store of parts to all CTAs, and the arrival for the incoming parts."""
    kind, buffer = tile.tile_type(op, op.value), gpu.shared_type(op, op.buffer)
    layout, values = layout_of(kind), ctx.registers(op.value)
    barrier = mbarrier_address(ctx, op.barrier, 0)
    nvvm_tensor.mbarrier_expect(ctx.emit, barrier, str(buffer.stage_bytes), ctx.issuer, arrive=True)
    bits, count = word_shape(kind.element, op.vector)
    access = nvvm_memory.Access(bits, count, predicate=is_first_holder(ctx, layout))
    barriers: dict[str, nvvm_memory.Address] = {}
    rank = ctx.scalar(op.rank)
    for address, cta, registers in shared_parts(ctx, op, op.buffer, layout, op.vector, rank):
        words = pack(ctx.emit, [values[register] for register in registers], kind.element)
        if cta not in barriers:
            barriers[cta] = nvvm_grid.in_cta(ctx.emit, barrier, cta)
        remote = nvvm_grid.in_cta(ctx.emit, address, cta)
        nvvm_grid.send(ctx.emit, remote, access, words, barriers[cta])
    return []


@lowers(cluster.RemoteArrive)
def lower_remote_arrive(ctx: Lowering, op: cluster.RemoteArrive) -> Results:
    """Lower an arrival at the mbarrier of another CTA: one lane arrives for its warp."""
    nvvm.warp_barrier(ctx.emit)
    barrier, cta = mbarrier_address(ctx, op.barrier, op.warp_stride), ctx.scalar(op.cta)
    nvvm_tensor.mbarrier_arrive(ctx.emit, barrier, Issuer(lane=ctx.first_lane), cta=cta)
    return []


@lowers(cluster.RemoteLoad)
def lower_remote_load(ctx: Lowering, op: cluster.RemoteLoad) -> Results:
    """Lower a load from the shared memory of another CTA."""
    kind, cta = tile.tile_type(op, op.out), ctx.scalar(op.cta)
    loaded: dict[int, Component] = {}
    access = nvvm_memory.Access(*word_shape(kind.element, op.vector))
    for address, registers in shared_vectors(ctx, op, op.buffer, op.layout, op.vector):
        remote = nvvm_grid.in_cta(ctx.emit, address, cta)
        words = nvvm_memory.load(ctx.emit, remote, access, ())
        values = unpack(ctx.emit, words, kind.element, op.vector)
        loaded.update(zip(registers, values, strict=True))
    return [tuple(loaded[register] for register in first_holders(op.layout))]
