"""Atomic updates of memory, and the order in which a tile's elements perform them.

Elements with the same address take turns, in row-major order: one of the orders open to
hardware. Integer results in memory do not depend on it; the rounding of a float sum does.

Invariant: every turn reads the result of the turn before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from aotc.ir.dialects.tile import AtomicKind
from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array, view
from aotc.verify.interpreter.memory import Box, Memory
from aotc.verify.interpreter.numerics import round_to

Combine = Callable[[Array, Array], Array]


def update(
    memory: Memory, address: Array, element: ScalarType, value: Array, combine: Combine
) -> Array:
    """Combine memory at each address with `value`, and return the old contents.

    All arrays are flat. Raises: AccessError.
    """
    before = np.empty(address.shape, value.dtype)
    for turn in _turns(address):
        before[turn] = memory.load(address[turn], None, element)
        after = combine(before[turn], value[turn])
        if memory.adjust_atomic is not None:
            after = memory.adjust_atomic(address[turn], before[turn], value[turn], after)
        memory.store(address[turn], after, None, element)
    return before


def update_box(
    memory: Memory, box: Box, element: ScalarType, value: Array, combine: Combine
) -> None:
    """Combine a box of a tensor with `value`, which has the box's shape.

    Raises: AccessError.
    """
    access = memory.box_access(box, element)
    address, operand = access.flat, access.values(value)
    if (address[1:] <= address[:-1]).any():  # addresses may repeat
        update(memory, address, element, operand, combine)
        return
    before = memory.read(access, element)
    after = combine(before, operand)
    if memory.adjust_atomic is not None:
        after = memory.adjust_atomic(address, before, operand, after)
    memory.write(access, after, element)


def swap(
    memory: Memory, address: Array, element: ScalarType, compare: Array, value: Array
) -> Array:
    """Replace memory at each address by `value` if its bits equal those of `compare`."""
    before = np.empty(address.shape, value.dtype)
    for turn in _turns(address):
        before[turn] = memory.load(address[turn], None, element)
        equal = _bits(before[turn]) == _bits(compare[turn])
        memory.store(address[turn], np.where(equal, value[turn], before[turn]), None, element)
    return before


def _turns(address: Array) -> Iterator[Array]:
    """Yield the indices of elements by turn: the first at each address, then the second."""
    if (address[1:] > address[:-1]).all():
        yield np.arange(address.size)
        return
    order = np.argsort(address, kind="stable")
    ordered = address[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    rank = np.arange(ordered.size) - np.repeat(starts, np.diff(starts, append=ordered.size))
    for turn in range(int(rank.max(initial=-1)) + 1):
        yield order[rank == turn]


def combine_rule(kind: AtomicKind, element: ScalarType) -> Combine:
    """Return the combining function of `tile.atomic_rmw`, of (memory, operand)."""
    if kind == "add" and element.is_float:
        return lambda old, new: round_to(old.astype(np.float64) + new.astype(np.float64), element)
    if kind in ("min", "max") and element.is_float:
        pick = np.minimum if kind == "min" else np.maximum

        def picked(old: Array, new: Array) -> Array:
            return _from_order(pick(_order(old), _order(new)), old.dtype)

        if element.bits > 16:
            return picked
        # Hardware has these in tensor copies, where a number beats NaN.
        return lambda old, new: np.where(
            np.isnan(old), new, np.where(np.isnan(new), old, picked(old, new))
        )
    return _PLAIN[kind]


_PLAIN: dict[AtomicKind, Combine] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda _, new: new,
}


def _order(value: Array) -> Array:
    """Return integers in the order of sign and magnitude of a float's bits."""
    bits = view(value, f"i{value.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _from_order(ordered: Array, dtype: np.dtype[np.floating]) -> Array:
    """Undo `_order`, which is its own inverse."""
    return view(np.where(ordered < 0, ordered ^ np.iinfo(ordered.dtype).max, ordered), dtype)


def _bits(value: Array) -> Array:
    return view(np.ascontiguousarray(value), f"u{value.dtype.itemsize}")
