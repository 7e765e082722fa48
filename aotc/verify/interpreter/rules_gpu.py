"""Rules for `gpu` ops on whole tiles, with checks of their layouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, opaque, thread_copy, wgmma
from aotc.ir.layout import LinearLayout
from aotc.ir.matrix_access import matrix_view
from aotc.ir.types import SharedType, TileType
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter import mbarriers, rules_tile
from aotc.verify.interpreter.memory import AccessError
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rule, scalar
from aotc.verify.interpreter.shared_memory import Transfer, check_shared_vectors, check_vectors


def _layout_of(value: Value) -> LinearLayout | None:
    return value.type.layout if isinstance(value.type, TileType) else None


def _check_access(
    op: gpu.Load | gpu.Store | gpu.AtomicRmw, pointer: Array, mask: Array | None
) -> None:
    layout = _layout_of(op.pointer)
    if layout is not None:
        size_bytes = rules_tile.pointee_of(op).size_bytes
        check_vectors(pointer, mask, layout, op.vector, size_bytes)


def _load(
    program: Program, op: gpu.Load, pointer: Array, mask: Array | None, other: Array | None
) -> Array:
    _check_access(op, pointer, mask)
    return rules_tile.load(program, op, pointer, mask, other)


def _store(
    program: Program, op: gpu.Store, pointer: Array, value: Array, mask: Array | None
) -> None:
    _check_access(op, pointer, mask)
    rules_tile.store(program, op, pointer, value, mask)


def _atomic_rmw(
    program: Program, op: gpu.AtomicRmw, pointer: Array, value: Array, mask: Array | None
) -> Array:
    _check_access(op, pointer, mask)
    return rules_tile.atomic_rmw(program, op, pointer, value, mask)


def _fence(program: Program, op: Op) -> None:
    """Do nothing: programs run one after the other, and each in order."""
    del program, op


def _opaque_thread_id(program: Program, op: Op) -> None:
    """Do nothing: there are no threads here."""
    del program, op


def _opaque(program: Program, op: Op, value: Array, after: Array | None) -> Array:
    """Return the tile itself."""
    del program, op, after
    return value


def _convert(program: Program, op: Op, value: Array) -> Array:
    del program, op
    return value


def _shared_alloc(program: Program, op: gpu.SharedAlloc) -> Array:
    owner, offset = (op, program.group), op.offset_bytes
    if offset >= 0:
        offset += program.group * op.group_bytes
    kind = op.out.type
    assert isinstance(kind, SharedType)
    size_bytes = op.element.size_bytes
    return program.shared.place(owner, op.layout, size_bytes, offset, kind.size_bytes)


def _shared_slot(program: Program, op: gpu.SharedStage, buffer: Array, index: Array) -> Array:
    kind = op.buffer.type
    assert isinstance(kind, SharedType)
    if not 0 <= scalar(index) < kind.num_stages:
        raise program.error(op, f"is of stage {scalar(index)} of {kind.num_stages}")
    return buffer + (scalar(index) + op.ahead) % kind.num_stages * kind.stage_bytes


def _shared_trans(program: Program, op: gpu.SharedTrans, buffer: Array) -> Array:
    del program
    kind = op.buffer.type
    assert isinstance(kind, SharedType)
    turned: Array = np.transpose(reshape(buffer, kind.shape), op.order)
    return reshape(turned, -1)


def _next_stage(program: Program, op: gpu.NextStage, index: Array) -> Array:
    del program
    return np.array((scalar(index) + op.ahead) % op.num_stages, np.int32)


def _async_copy(
    program: Program,
    op: gpu.AsyncCopy,
    pointer: Array,
    buffer: Array,
    mask: Array | None,
    enabled: Array | None,
) -> None:
    layout = _layout_of(op.pointer)
    assert layout is not None
    program.shared.copy(buffer, _copied(program, op, pointer, buffer, mask, enabled), layout)


def _copied(
    program: Program,
    op: rules_tile.AnyCopy,
    pointer: Array,
    buffer: Array,
    mask: Array | None,
    enabled: Array | None = None,
) -> Array:
    """Return the elements moved to a buffer by a copy of threads."""
    layout, element = _layout_of(op.pointer), rules_tile.pointee_of(op)
    assert layout is not None
    check_vectors(pointer, mask, layout, op.vector, element.size_bytes)
    check_vectors(reshape(buffer, pointer.shape), None, layout, op.vector, element.size_bytes)
    lanes = np.ones(pointer.shape, np.bool_) if mask is None else mask
    if enabled is not None:
        lanes = lanes & enabled
    value = np.zeros(pointer.shape, dtype_of(element))
    value[lanes] = program.memory.load(pointer, lanes, element)
    return value


def _start_thread_load(
    program: Program,
    op: thread_copy.SyncThreadLoad | thread_copy.ThreadLoad,
    pointer: Array,
    buffer: Array,
    mask: Array | None,
) -> Transfer:
    if op.num_columns:
        mask = np.ones(pointer.shape, np.bool_) if mask is None else np.array(mask)
        mask[..., op.num_columns :] = False
    value = _copied(program, op, pointer, buffer, mask)
    if op.num_columns:
        buffer = reshape(buffer, pointer.shape)[..., : op.num_columns]
        value = value[..., : op.num_columns]
    addresses, flat = reshape(buffer, -1), reshape(value, -1)
    return program.shared.start_fill(addresses, flat, in_order=not program.is_producer)


def _sync_thread_load(
    program: Program,
    op: thread_copy.SyncThreadLoad,
    pointer: Array,
    buffer: Array,
    mask: Array | None,
) -> None:
    program.shared.land(_start_thread_load(program, op, pointer, buffer, mask))


def _thread_load(
    program: Program,
    op: thread_copy.ThreadLoad,
    pointer: Array,
    buffer: Array,
    barrier: Array,
    mask: Array | None,
) -> None:
    transfer = _start_thread_load(program, op, pointer, buffer, mask)
    mbarriers.announce(program, op, barrier, transfer, arrivals=op.num_threads)


def _async_commit(program: Program, op: Op) -> None:
    del op
    program.shared.commit()


def _async_wait(program: Program, op: gpu.AsyncWait) -> None:
    program.shared.wait(op.pending)


def _check_shared(
    op: gpu.SharedStore | gpu.SharedLoad, buffer: Array, layout: LinearLayout, size_bytes: int
) -> None:
    """Check that elements moved together form a run, for the lanes that give its address.

    Any registers may hold a run, in any order; a row of a matrix goes to lanes as it is.
    """
    view = matrix_view(layout, 8 * size_bytes, op.matrix)
    if view is None:
        op.error(f"{layout} has no matrices for {op.matrix}")
    if op.matrix:
        check_vectors(buffer, None, view, op.vector, size_bytes)
    else:
        check_shared_vectors(buffer, view, op.vector, size_bytes)


def _shared_store(program: Program, op: gpu.SharedStore, value: Array, buffer: Array) -> None:
    kind = op.value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    _check_shared(op, buffer, kind.layout, value.dtype.itemsize)
    program.shared.store(buffer, value, kind.layout)


def _part(value: Array, start: Sequence[int], shape: Sequence[int]) -> Array:
    return value[
        tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))
    ]


def _extract(program: Program, op: gpu.Extract, value: Array) -> Array:
    del program
    return _part(value, op.start, op.shape)


def _warp_all(program: Program, op: gpu.WarpAll, value: Array) -> Array:
    """Combine over all warps at once: there are no warps here."""
    del program, op
    return np.array(bool(value.all()))


def _concat(program: Program, op: gpu.Concat, *parts: Array) -> Array:
    del program
    return np.concatenate(parts, op.axis)


def _shared_load(program: Program, op: gpu.SharedLoad, buffer: Array) -> Array:
    kind = op.out.type
    assert isinstance(kind, TileType)
    dtype = dtype_of(kind.element)
    if op.start:
        buffer = _part(reshape(buffer, gpu.shared_type(op, op.buffer).shape), op.start, kind.shape)
        buffer = reshape(buffer, -1)
    _check_shared(op, buffer, op.layout, dtype.itemsize)
    out = program.shared.load(buffer, dtype, op.layout)
    return reshape(out, kind.shape)


def _masked_shared_load(
    program: Program,
    op: gpu.MaskedSharedLoad,
    buffer: Array,
    mask: Array | None,
    other: Array | None,
) -> Array:
    out = _shared_load(program, op, buffer)
    if mask is None:
        return out
    in_order = reshape(reshape(mask, -1)[np.argsort(buffer)], -1, op.vector)
    if (in_order != in_order[:, :1]).any():
        raise AccessError(f"moves {op.vector} elements at a time, whose masks differ")
    return np.where(mask, out, np.zeros_like(out) if other is None else other)


def _turn(program: Program, op: wgmma.Turn) -> None:
    """Do nothing: warpgroups are interpreted at once."""
    del program, op


def _barrier(program: Program, op: Op) -> None:
    del op
    program.shared.barrier(for_producer=not program.has_roles)


GPU_RULES: dict[type[Op], Rule] = {
    gpu.Load: _load,
    gpu.Store: _store,
    gpu.AtomicRmw: _atomic_rmw,
    gpu.AtomicCas: rules_tile.atomic_cas,
    gpu.Fence: _fence,
    gpu.Convert: _convert,
    gpu.ShuffleConvert: _convert,
    gpu.SharedAlloc: _shared_alloc,
    gpu.SharedStore: _shared_store,
    gpu.SharedLoad: _shared_load,
    gpu.MaskedSharedLoad: _masked_shared_load,
    gpu.SharedStage: _shared_slot,
    gpu.SharedTrans: _shared_trans,
    gpu.NextStage: _next_stage,
    gpu.AsyncCopy: _async_copy,
    gpu.AsyncCommit: _async_commit,
    gpu.AsyncWait: _async_wait,
    thread_copy.SyncThreadLoad: _sync_thread_load,
    thread_copy.ThreadLoad: _thread_load,
    gpu.Barrier: _barrier,
    wgmma.Turn: _turn,
    opaque.OpaqueThreadId: _opaque_thread_id,
    opaque.Opaque: _opaque,
    gpu.Dot: rules_tile.matrix_product,
    gpu.Extract: _extract,
    gpu.Concat: _concat,
    gpu.Reduce: rules_tile.reduce,
    gpu.WarpAll: _warp_all,
    gpu.Scan: rules_tile.scan,
}
