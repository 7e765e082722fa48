"""Which stores and reductions through pointers tensor copies may replace: those of dots.

A dot's result is in registers in the layout of the MMA, so threads exchange it before they store
whole rows. A tensor copy does that on its way out, and leaves threads free while it writes. For
tiles that were computed otherwise, stores by threads are as good.

Tensor copies complete at any time: in no order among themselves, and after what the kernel does
next. So no read of memory may follow, nothing else may be written through the pointer, and
a store is in no loop. Through other pointers the kernel may write anything, and rows may
overlap: threads keep no order there either. Earlier loads are complete, since the copy is
issued after a barrier.

An atomic whose result nobody uses is a reduction, and tensor copies reduce as well: in any order, so it
may be in a loop, and beside others of its kind. Theirs is no order to anything else, so it has to be
relaxed, and they are atomic for threads of one GPU.

Invariant: what passes `check_store_order` may be written at any time from there to the kernel's
end.
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
"""Accesses that write a tile through pointers."""


def dot_stores(kernel: Kernel) -> Iterator[Written]:
    """Yield the stores and reductions of tiles of two or more axes that are computed from dots."""
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
    """Refuse a store that is not the last access to its memory. Raises: UnmappableError."""
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
    """Return whether two writes come to the same in either order."""
    kinds = [atomic.kind for atomic in (op, store) if isinstance(atomic, tile.AtomicRmw)]
    return len(kinds) > 1 and kinds[0] == kinds[1] and is_reduction(op)
