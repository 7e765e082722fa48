"""Loads of few values: which of them are made again in each layout required.

A page table or a list of rows is loaded to compute addresses with it: `rows[:, None] + columns`. In the
layout of its own access each thread would have indices of other rows than it needs. An exchange
through shared memory takes as many instructions as loading the few indices where they are needed, a
barrier besides, and no loop can issue ahead what waits for it. So such a load has no preferred layout:
like index arithmetic it is made again in the layouts required, if the few indices that are in each
thread then are no more than a loop has registers for ahead of their use.

The same holds for scales of rows that a kernel with dots loads, in their loop or after it: each thread
has few rows, and broadcasts them along its columns.

Invariant: the kernel does not write what these loads read, and their results serve for addresses and
masks alone, or are broadcast.
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
    """Return the loads that are made in each layout in which their results are required.

    With each is how many registers of a thread it may fill.
    """
    ops = list(kernel.walk())
    writes = [op for op in ops if op.writes(Resource.GLOBAL)]
    has_dots = any(op.has(Trait.DOT) for op in ops)
    found: dict[tile.Load, int] = {}
    data: dict[Value, None] = {}
    for op in reversed(ops):  # one whose result addresses another comes after it
        if not isinstance(op, tile.Load) or op.volatile:
            continue
        is_index = _is_index(op.out, found, data)
        if not is_index and not (has_dots and _is_scale(op)):
            continue
        if not any(_may_write(write, op.pointer) for write in writes):
            found[op] = LOADS_BUDGET if is_index else SMALL_LOADS_BUDGET
    return found


def fits_ahead(load: tile.Load, layouts: Sequence[LinearLayout], budget: int) -> bool:
    """Return whether a load in some layouts fills no more registers of a thread than a budget."""
    words = -(-element_of(load.out.type).bits // REGISTER_BITS)
    return words * sum(map(_distinct, layouts)) <= budget


def _distinct(layout: LinearLayout) -> int:
    """Return how many elements a thread has; replicated ones share a register."""
    return layout.in_size("register") >> layout.zero_mask("register").bit_count()


def _may_write(write: Op, pointer: Value) -> bool:
    """Return whether an op may write what is loaded through a pointer of the kernel's."""
    written = accessed_pointer(write, "write")
    if written is None:
        return accessed(write, "write") is None
    return bool(shared_roots(pointer, written))


def _is_index(index: Value, found: Container[Op], data: dict[Value, None]) -> bool:
    """Return whether a tile only serves to address accesses of more elements, or `found` ones.

    `data` gets the values that serve for more, whose walk ends the walks of others.
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
                if not (user in found or _size(pointer) > _size(index)):
                    return False
                continue
            fresh = [each for each in _results_from(value, user) if each not in come_from]
            come_from.update(dict.fromkeys(fresh, value))
            worklist += fresh
    return len(come_from) > 1


def _is_data(value: Value) -> bool:
    """Return whether a value is used otherwise than to address or mask accesses."""
    for user in value.users:
        pointer = accessed_pointer(user)
        if pointer is not None:
            if value in [each for each in user.operands if each not in (pointer, _mask_of(user))]:
                return True
        elif not _is_along(user) and not isinstance(user, scf.For | scf.Yield):
            return True
    return False


def _is_along(user: Op) -> bool:
    return user.pure and (is_elementwise(user) or user.has(Trait.VIEW, Trait.BROADCAST))


def _results_from(value: Value, user: Op) -> Sequence[Value]:
    """Return what a user that makes no access makes of a value."""
    if isinstance(user, scf.For | scf.Yield) and not _is_along(user):
        return list(_passed_on(value, user))
    return user.results


def _passed_on(value: Value, user: scf.For | scf.Yield) -> Iterator[Value]:
    """Yield what a value becomes where a loop begins with it, or an iteration or branch ends with it."""
    around = user if isinstance(user, scf.For) else user.parent_op
    given = user.init if isinstance(user, scf.For) else user.operands
    for index, each in enumerate(given):
        if each is value and around is not None:
            yield around.results[index]
            if isinstance(around, scf.For):
                yield around.carried[index]


def _is_scale(load: tile.Load) -> bool:
    """Return whether what is loaded is only broadcast, if need be computed with before."""
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
