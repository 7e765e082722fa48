"""Ops of an iteration that may not exist: how they run, and which do no harm.

A load takes the condition that its iteration exists into its mask, a copy as its own; a TMA load stands in a
branch. What only reads shared memory, commits or waits for copies, runs unconditionally.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.core import Op, Value, build
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.effects import Resource
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType


def _mapped_slots(op: Op, mapping: dict[Value, Value]) -> list[Value | None]:
    return [None if value is None else mapping.get(value, value) for value in op.slots]


def _enabled_copy(op: Op, mapping: dict[Value, Value], exists: Value, place: Builder) -> Op:
    assert isinstance(op, gpu.AsyncCopy)
    pointer, buffer, mask, _ = _mapped_slots(op, mapping)
    return place(build(gpu.AsyncCopy, [pointer, buffer, mask, exists], op.attributes, (), op.loc))


def _masked_load(op: Op, mapping: dict[Value, Value], exists: Value, place: Builder) -> Op:
    assert isinstance(op, gpu.Load)
    pointer, mask, other = _mapped_slots(op, mapping)
    assert pointer is not None
    if isinstance(pointer.type, TileType):
        exists = place(tile.Splat(exists, pointer.type.shape, pointer.type.layout)).out
    mask = exists if mask is None else place(arith.And(mask, exists)).out
    return place(build(gpu.Load, [pointer, mask, other], op.attributes, (), op.loc))


_CONDITIONS: dict[type[Op], Callable[[Op, dict[Value, Value], Value, Builder], Op]] = {
    gpu.AsyncCopy: _enabled_copy,
    gpu.Load: _masked_load,
}
"""How an op is run under the condition that its iteration exists."""


def run_if(exists: Value, op: Op, mapping: dict[Value, Value], place: Builder) -> Op:
    """Emit an op under the condition that its iteration exists, its operands mapped."""
    return _CONDITIONS[type(op)](op, mapping, exists, place)


def takes_condition(op: Op) -> bool:
    """Return whether an op can run under the condition that its iteration exists."""
    return type(op) in _CONDITIONS or stands_in_branch(op)


def stands_in_branch(op: Op) -> bool:
    """Return whether one thread issues an op, which so costs no more in a branch: a TMA load."""
    return bool(op.effects_on(Resource.MBARRIER, "start"))


def is_unconditional(op: Op) -> bool:
    """Return whether nobody minds an op of an iteration that does not exist.

    It reads shared memory, or counts commit groups, of which each iteration has one.
    """
    only_reads = all(
        each.access == "read" and each.resource is Resource.SHARED for each in op.effects
    )
    return only_reads or bool(op.effects_on(Resource.COPIES, "write", "order"))
