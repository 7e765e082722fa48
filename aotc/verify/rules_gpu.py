"""What each `gpu` op does, on whole tiles, and the checks that its layout makes possible."""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.types import TileType
from aotc.verify import rules_tile
from aotc.verify.numerics import Array, dtype_of
from aotc.verify.program import Program, Rule
from aotc.verify.shared import check_shared_vectors, check_vectors


def _layout_of(value: Value) -> LinearLayout | None:
    return value.type.layout if isinstance(value.type, TileType) else None


def _check_access(op: gpu.Load | gpu.Store, pointer: Array, mask: Array | None) -> None:
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


def _convert(program: Program, op: Op, value: Array) -> Array:
    del program, op
    return value


def _shared_alloc(program: Program, op: gpu.SharedAlloc) -> Array:
    size_bytes = op.element.size_bytes
    return program.shared.place(op, op.layout, size_bytes, op.offset_bytes)


def _shared_store(program: Program, op: gpu.SharedStore, value: Array, buffer: Array) -> None:
    kind = op.value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    check_shared_vectors(buffer, kind.layout, op.vector, value.dtype.itemsize)
    program.shared.store(buffer, value, kind.layout)


def _shared_load(program: Program, op: gpu.SharedLoad, buffer: Array) -> Array:
    kind = op.out.type
    assert isinstance(kind, TileType)
    dtype = dtype_of(kind.element)
    check_shared_vectors(buffer, op.layout, op.vector, dtype.itemsize)
    out = program.shared.load(buffer, dtype, op.layout)
    return out.reshape(kind.shape)


def _barrier(program: Program, op: Op) -> None:
    del op
    program.shared.barrier()


GPU_RULES: dict[type[Op], Rule] = {
    gpu.Load: _load,
    gpu.Store: _store,
    gpu.Convert: _convert,
    gpu.ShuffleConvert: _convert,
    gpu.SharedAlloc: _shared_alloc,
    gpu.SharedStore: _shared_store,
    gpu.SharedLoad: _shared_load,
    gpu.Barrier: _barrier,
    gpu.Reduce: rules_tile.reduce,
    gpu.Scan: rules_tile.scan,
}
