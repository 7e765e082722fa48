"""Find loads of few values to repeat in each required layout.

A page table or a list of rows is loaded to compute addresses with it: `rows[:, None] + columns`. In
the layout of its own access each thread would have indices of other rows than it needs. An exchange
through shared memory takes as many instructions as repeating the load, a barrier besides, and no
loop can issue ahead of this barrier. So such a load has no preferred layout: like index arithmetic
it is repeated in each required layout. The few indices of a thread must fit the registers a loop
has for them ahead of their use.

The same holds for scales of rows that a kernel with dots loads, in their loop or after it: each
thread has few rows, and broadcasts them along its columns.

Invariant: the kernel does not write the memory of these loads, and their results serve for
addresses and masks alone, or are broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import scf, tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import is_elementwise, is_tile
from aotc.ir.types import element_of, shape_of
from aotc.schedule.analysis.global_order import accessed, accessed_pointer, shared_roots
from aotc.schedule.analysis.register_budget import (
    LOADS_BUDGET,
    REGISTER_BITS,
    SMALL_LOADS_BUDGET,
)


def index_loads(kernel: Kernel) -> dict[tile.Load, int]:
    """Return the loads to repeat in each layout required of their results.

    The value is the number of registers of a thread each may fill.
    """
    ops = list(kernel.walk())
    writes = [op for op in ops if op.writes(Resource.GLOBAL)]
    has_dots = any(op.has(Trait.DOT) for op in ops)
    budgets: dict[tile.Load, int] = {}
    data: dict[Value, None] = {}
    for op in reversed(ops):  # a load whose result addresses another comes after it
        if not isinstance(op, tile.Load) or op.volatile:
            continue
        is_index = _is_index(op.out, budgets, data)
        if not is_index and not (has_dots and _is_scale(op)):
            continue
        if not any(_may_write(write, op.pointer) for write in writes):
            budgets[op] = LOADS_BUDGET if is_index else SMALL_LOADS_BUDGET
    return budgets


def fits_ahead(load: tile.Load, layouts: Sequence[LinearLayout], budget: int) -> bool:
    """Return whether a load in some layouts fills no more registers of a thread than a budget."""
    words = -(-element_of(load.out.type).bits // REGISTER_BITS)
    return words * sum(map(_distinct, layouts)) <= budget


def _distinct(layout: LinearLayout) -> int:
    """Return how many elements a thread has; replicated ones share a register."""
    return layout.in_size("register") >> layout.zero_mask("register").bit_count()


def _may_write(write: Op, pointer: Value) -> bool:
    """Return whether an op may write the memory a load reads through a kernel's pointer."""
    written = accessed_pointer(write, "write")
    if written is None:
        return accessed(write, "write") is None
    return bool(shared_roots(pointer, written))


def _is_index(index: Value, index_loads: Container[Op], data: dict[Value, None]) -> bool:
    """Return whether a tile only addresses accesses of more elements, or `index_loads` ones.

    `data` collects the values with other uses; they end the walks of later calls.
    """
    worklist = [index] if is_tile(index) else []
    come_from: dict[Value, Value | None] = dict.fromkeys(worklist)
    while worklist:
        value = worklist.pop()
        if value in data or _is_data(value):
            source: Value | None = value
            while source is not None:
                data[source] = None
                source = come_from[source]
            return False
        for user in value.users:
            pointer = accessed_pointer(user)
            if pointer is not None:
                if not (user in index_loads or _size(pointer) > _size(index)):
                    return False
                continue
            fresh = [derived for derived in _results_from(value, user) if derived not in come_from]
            come_from.update(dict.fromkeys(fresh, value))
            worklist += fresh
    return len(come_from) > 1


def _is_data(value: Value) -> bool:
    """Return whether a value is used otherwise than to address or mask accesses."""
    for user in value.users:
        pointer = accessed_pointer(user)
        if pointer is not None:
            if value in [
                operand for operand in user.operands if operand not in (pointer, _mask_of(user))
            ]:
                return True
        elif not _is_along(user) and not isinstance(user, scf.For | scf.Yield):
            return True
    return False


def _is_along(user: Op) -> bool:
    return user.pure and (is_elementwise(user) or user.has(Trait.VIEW, Trait.BROADCAST))


def _results_from(value: Value, user: Op) -> Sequence[Value]:
    """Return the values a user without an access derives from a value."""
    if isinstance(user, scf.For | scf.Yield) and not _is_along(user):
        return list(_passed_on(value, user))
    return user.results


def _passed_on(value: Value, user: scf.For | scf.Yield) -> Iterator[Value]:
    """Yield the loop arguments and results that a value is passed to by an init or a yield."""
    around = user if isinstance(user, scf.For) else user.parent_op
    sources = user.init if isinstance(user, scf.For) else user.operands
    for index, source in enumerate(sources):
        if source is value and around is not None:
            yield around.results[index]
            if isinstance(around, scf.For):
                yield around.carried[index]


def _is_scale(load: tile.Load) -> bool:
    """Return whether a load's result is only broadcast, possibly after elementwise ops."""
    if not is_tile(load.out):
        return False
    worklist, seen = [load.out], {load.out: None}
    is_broadcast = False
    while worklist:
        for user in worklist.pop().users:
            if user.has(Trait.BROADCAST):
                is_broadcast = True
            elif user.pure and (is_elementwise(user) or user.has(Trait.VIEW)):
                worklist += [out for out in user.results if out not in seen]
                seen.update(dict.fromkeys(user.results))
            else:
                return False
    return is_broadcast


def _mask_of(access: Op) -> Value | None:
    return getattr(access, "mask", None)


def _size(value: Value) -> int:
    return math.prod(shape_of(value.type))
