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
    for op in reversed(ops):  # one whose result addresses another comes after it
        if not isinstance(op, tile.Load) or op.volatile:
            continue
        is_index = _is_index(op.out, found)
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


def _is_index(index: Value, found: Container[Op]) -> bool:
    """Return whether a tile only serves to address accesses of more elements, or `found` ones."""
    worklist = [index] if is_tile(index) else []
    seen = dict.fromkeys(worklist)
    while worklist:
        value = worklist.pop()
        for user in value.users:
            pointer = accessed_pointer(user)
            if pointer is not None:
                data = [each for each in user.operands if each not in (pointer, _mask_of(user))]
                if value in data or not (user in found or _size(pointer) > _size(index)):
                    return False
            elif user.pure and (is_elementwise(user) or user.has(Trait.VIEW, Trait.BROADCAST)):
                fresh = [out for out in user.results if out not in seen]
                seen.update(dict.fromkeys(fresh))
                worklist += fresh
            elif isinstance(user, scf.For | scf.Yield):
                fresh = [each for each in _passed_on(value, user) if each not in seen]
                seen.update(dict.fromkeys(fresh))
                worklist += fresh
            else:
                return False
    return len(seen) > 1


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
