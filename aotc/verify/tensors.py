"""Tensor descriptors while a kernel is interpreted, and the copies that tensor maps describe.

A descriptor is an array of int64: the address, the extents and the strides, in elements. So it is
a value like any other, and a parameter that carries one of these numbers can be read off it.

Copies land as late as they may: a load at the wait for its phase, so whoever reads too early is
caught; a store is in flight until the issuing thread has waited for it.

Invariant: what lies outside of a tensor is neither read nor written.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aotc.ir.core import Op
from aotc.ir.dialects import descriptor, tma
from aotc.ir.types import DescriptorType, ScalarType, SharedType, TensorMapType, Type
from aotc.verify.atomics import combine_rule, update
from aotc.verify.numerics import Array, dtype_of
from aotc.verify.program import Program, Rule, scalar
from aotc.verify.shared import Transfer


def describe(address: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the value of a descriptor; `strides` are in elements."""
    return np.array([address, *shape, *strides], np.int64)


def part_of(tensor: Array, source: str) -> int:
    """Return what a parameter's `source` says of a tensor: "x", "x.shape[0]", "x.strides[1]"."""
    rank = len(tensor) // 2
    _, _, what = source.partition(".")
    if not what:
        return int(tensor[0])
    kind, _, axis = what.rstrip("]").partition("[")
    return int(tensor[1 + int(axis) + (rank if kind == "strides" else 0)])


def _element(kind: Type) -> tuple[ScalarType, bool]:
    assert isinstance(kind, DescriptorType | TensorMapType)
    return kind.element, kind.fill_nan


def _places(
    tensor: Array, coords: Sequence[Array], block: Sequence[int], size_bytes: int
) -> tuple[Array, Array]:
    """Return the address of each element of a block, and whether it lies in the tensor."""
    rank = len(block)
    address = np.full(block, tensor[0], np.int64)
    inside = np.ones(block, np.bool_)
    for axis, (coord, extent) in enumerate(zip(coords, block, strict=True)):
        index = np.arange(extent, dtype=np.int64) + scalar(coord)
        index = index.reshape([-1 if each == axis else 1 for each in range(rank)])
        address = address + index * tensor[1 + rank + axis] * size_bytes
        inside &= (index >= 0) & (index < tensor[1 + axis])
    return address, inside


def _read(
    program: Program, kind: Type, block: Sequence[int], tensor: Array, coords: Sequence[Array]
) -> Array:
    element, fill_nan = _element(kind)
    address, inside = _places(tensor, coords, block, element.size_bytes)
    out = np.full(block, np.nan if fill_nan else 0, dtype_of(element))
    out[inside] = program.memory.load(address, inside, element)
    return out


def _write(
    program: Program, kind: Type, value: Array, tensor: Array, coords: Sequence[Array]
) -> None:
    element, _ = _element(kind)
    address, inside = _places(tensor, coords, value.shape, element.size_bytes)
    program.memory.store(address, value, inside, element)


def _combine(
    program: Program,
    op: descriptor.DescriptorReduce | tma.TmaReduce,
    kind: Type,
    value: Array,
    tensor: Array,
    coords: Sequence[Array],
) -> None:
    element, _ = _element(kind)
    address, inside = _places(tensor, coords, value.shape, element.size_bytes)
    rule = combine_rule(op.kind, element)
    update(program.memory, address[inside], element, value[inside], rule)


# ---- tile IR ----------------------------------------------------------------------------------


def _load(program: Program, op: descriptor.DescriptorLoad, tensor: Array, *coords: Array) -> Array:
    kind = op.descriptor.type
    assert isinstance(kind, DescriptorType)
    return _read(program, kind, kind.block, tensor, coords)


def _store(
    program: Program, op: descriptor.DescriptorStore, tensor: Array, value: Array, *coords: Array
) -> None:
    _write(program, op.descriptor.type, value, tensor, coords)


def _reduce(
    program: Program, op: descriptor.DescriptorReduce, tensor: Array, value: Array, *coords: Array
) -> None:
    _combine(program, op, op.descriptor.type, value, tensor, coords)


def _extent(program: Program, op: descriptor.DescriptorExtent, tensor: Array) -> Array:
    del program
    return np.array(part_of(tensor, f"x.shape[{op.axis}]"), np.int32)


def _stride(program: Program, op: descriptor.DescriptorStride, tensor: Array) -> Array:
    del program
    return np.array(part_of(tensor, f"x.strides[{op.axis}]"), np.int64)


# ---- gpu IR -----------------------------------------------------------------------------------


@dataclass
class _Mbarrier:
    """Count arrivals; `transfers` have not landed yet, `phases` are complete but for them."""

    count: int
    arrived: int = 0
    phases: int = 0
    transfers: list[Transfer] = field(default_factory=list[Transfer])


def _shape(op: tma.TmaFetch | tma.TmaLoad | tma.TmaStore | tma.TmaReduce) -> tuple[int, ...]:
    kind = op.buffer.type
    assert isinstance(kind, SharedType)
    return kind.shape


def _fetched(
    program: Program,
    op: tma.TmaFetch | tma.TmaLoad,
    tensor: Array,
    buffer: Array,
    coords: Sequence[Array],
) -> Transfer:
    value = _read(program, op.tensor.type, _shape(op), tensor, coords)
    return program.shared.start_fill(buffer, value)


def _fetch(
    program: Program, op: tma.TmaFetch, tensor: Array, buffer: Array, *coords: Array
) -> None:
    program.shared.land(_fetched(program, op, tensor, buffer, coords))


def _start_load(
    program: Program, op: tma.TmaLoad, tensor: Array, buffer: Array, barrier: Array, *coords: Array
) -> None:
    state = _mbarrier(program, op, barrier)
    state.transfers.append(_fetched(program, op, tensor, buffer, coords))
    state.arrived += op.arrive
    if state.arrived == state.count:
        state.arrived, state.phases = 0, state.phases + 1


def _mbarrier(program: Program, op: Op, barrier: Array) -> _Mbarrier:
    state = program.mbarriers.get(scalar(barrier))
    if not isinstance(state, _Mbarrier):
        raise program.error(op, "is of a mbarrier that was not made")
    return state


def _init(program: Program, op: tma.MbarrierInit, barrier: Array) -> None:
    program.mbarriers[scalar(barrier)] = _Mbarrier(op.count)


def _wait(program: Program, op: tma.MbarrierWait, barrier: Array, parity: Array) -> None:
    state = _mbarrier(program, op, barrier)
    if state.phases & 1 == scalar(parity):
        raise program.error(op, f"waits for ever: {state.phases} phases have ended")
    for transfer in state.transfers:
        program.shared.land(transfer)
    state.transfers.clear()


def _sent(program: Program, op: tma.TmaStore | tma.TmaReduce, buffer: Array) -> Array:
    """Start to copy from a buffer; return what it holds."""
    element, _ = _element(op.tensor.type)
    transfer, value = program.shared.start_drain(buffer, dtype_of(element))
    program.stores.append(transfer)
    return value.reshape(_shape(op))


def _start_store(
    program: Program, op: tma.TmaStore, tensor: Array, buffer: Array, *coords: Array
) -> None:
    _write(program, op.tensor.type, _sent(program, op, buffer), tensor, coords)


def _start_reduce(
    program: Program, op: tma.TmaReduce, tensor: Array, buffer: Array, *coords: Array
) -> None:
    _combine(program, op, op.tensor.type, _sent(program, op, buffer), tensor, coords)


def _wait_stores(program: Program, op: tma.TmaStoreWait) -> None:
    while len(program.stores) > op.pending:
        program.shared.finish_drain(program.stores.pop(0))


def _nothing(program: Program, op: Op) -> None:
    """Do nothing: there is one proxy here."""
    del program, op


TENSOR_RULES: dict[type[Op], Rule] = {
    descriptor.DescriptorLoad: _load,
    descriptor.DescriptorStore: _store,
    descriptor.DescriptorReduce: _reduce,
    descriptor.DescriptorExtent: _extent,
    descriptor.DescriptorStride: _stride,
    tma.TmaFetch: _fetch,
    tma.TmaLoad: _start_load,
    tma.TmaStore: _start_store,
    tma.TmaReduce: _start_reduce,
    tma.TmaStoreWait: _wait_stores,
    tma.ProxyFence: _nothing,
    tma.MbarrierInit: _init,
    tma.MbarrierWait: _wait,
}
