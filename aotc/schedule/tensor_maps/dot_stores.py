"""Select stores and reductions of dots for replacement by tensor copies.

A dot's result is in registers in the MMA's layout, so threads exchange it before they store whole rows. A
tensor copy rearranges it on its way out, and leaves threads free while it writes. For other tiles, stores
by threads are as good.

Tensor copies complete at any time: in no order among themselves, and after later accesses. So no read of
memory may follow, nothing else may be written through the pointer, and a store must be outside of loops.
Writes through other pointers are free, and rows may overlap: threads keep no order there either. Earlier
loads are complete, since the copy is issued after a barrier.

An atomic without users of its result is a reduction. Tensor copies reduce too, in any order, so it may be
in a loop and beside other reductions of its kind. They order nothing else, so the atomic must be relaxed.
Their scope is one GPU.

Invariant: a store accepted by `check_store_order` may complete at any time up to the kernel's end.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.types import I1, TileType, element_of, shape_of
from aotc.schedule.analysis.global_order import (
    accessed,
    is_reduction,
    may_precede,
    root_names,
    shared_roots,
)
from aotc.schedule.tensor_maps.bulk_copies import advise_order, order_is_promised, reduce_kind
from aotc.schedule.tensor_maps.pointer_box import UnmappableError

_MIN_AXES = 2

Written = tile.Store | tile.AtomicRmw
"""Writes of a tile through pointers."""


def dot_stores(kernel: Kernel) -> Iterator[Written]:
    """Yield stores and reductions of dot results with two or more axes."""
    for op in kernel.walk():
        if isinstance(op, tile.AtomicRmw) and op.out.users:
            continue
        if isinstance(op, Written) and element_of(op.value.type) != I1:
            axes = [extent for extent in shape_of(op.value.type) if extent > 1]
            if len(axes) >= _MIN_AXES and _comes_of_product(op.value):
                yield op


def _comes_of_product(tile_value: Value) -> bool:
    seen: dict[Value, None] = {}
    worklist = [tile_value]
    while worklist:
        value = worklist.pop()
        op = value.op
        if isinstance(op, tile.Dot):
            return True
        if op is None or value in seen or isinstance(op, tile.Load):
            continue
        seen[value] = None
        ends = (end for block in op.blocks for end in block.terminator.operands)
        worklist += (
            operand for operand in (*op.operands, *ends) if isinstance(operand.type, TileType)
        )
    return False


def check_store_order(store: Written, kernel: Kernel) -> None:
    """Refuse a store unless it is the last access to its memory. Raises: UnmappableError."""
    if isinstance(store, tile.AtomicRmw):
        reduce_kind(store)
        if store.sem != "relaxed":
            raise UnmappableError(f"it is {store.sem}", 'sem="relaxed" asks for no order')
    elif any(op.has(Trait.LOOP) for op in store.ancestors()):
        raise UnmappableError("it is in a loop, whose iterations would write in no order")
    for op in kernel.walk():
        keeps_none = op.has(Trait.MAY_TRAP, Trait.DEPENDENT_LAUNCH)
        if op.effects_on(Resource.GLOBAL) and op is not store and not keeps_none:
            _check_beside(op, store)


def _check_beside(op: Op, store: Written) -> None:
    pointer = accessed(op)
    if isinstance(op, tile.Barrier) and not may_precede(store, op):
        return
    orders = op.orders(Resource.GLOBAL) and not is_reduction(op)
    if pointer is None or orders or getattr(op, "volatile", False):
        raise UnmappableError(f"{op.opcode} keeps memory accesses in order")
    if not op.writes(Resource.GLOBAL):
        is_own = bool(shared_roots(pointer, store.pointer))
        if may_precede(store, op) and (is_own or not order_is_promised(store, op)):
            name = root_names(pointer)
            raise UnmappableError(
                f"the kernel loads through {name} afterwards, which may be the same memory",
                advise_order(store, op) or "noalias in the signature promises that it is not",
            )
    elif (
        shared_roots(pointer, store.pointer)
        and not _reduce_alike(op, store)
        and (may_precede(op, store) or may_precede(store, op))
    ):
        raise UnmappableError("the kernel writes through it elsewhere, too")


def _reduce_alike(op: Op, store: Written) -> bool:
    """Return whether two writes commute."""
    kinds = [atomic.kind for atomic in (op, store) if isinstance(atomic, tile.AtomicRmw)]
    return len(kinds) > 1 and kinds[0] == kinds[1] and is_reduction(op)
