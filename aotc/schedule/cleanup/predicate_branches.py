"""If-conversion: turn branches with little but loads into masked loads.

A branch is a scheduling barrier: no load is issued before the branch ahead of it is decided, and
ptxas moves the uses of a load no further than the next branch. Without branches all loads of a halo
or of a batch are issued together, and a loop with conditional loads can be pipelined. Masked-off
lanes access no memory; the only cost is index arithmetic of the arm not taken.

Invariant: the addresses read do not change.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1, TileType
from aotc.schedule.context import Schedule

_MAX_OPS = 24
_CHEAP = (Trait.ELEMENTWISE, Trait.SOURCE, Trait.BROADCAST, Trait.VIEW)
"""Dialects of index arithmetic."""


def predicate_branches(kernel: Kernel, schedule: Schedule) -> None:
    """Replace branches with nothing but loads and index arithmetic."""
    del schedule
    _visit(kernel.body)


def _visit(block: Block) -> None:
    for op in list(block):
        for nested in op.blocks:
            _visit(nested)
        if isinstance(op, scf.If) and _only_loads(op):
            with at(op.loc):
                _predicate(op)


def _only_loads(op: scf.If) -> bool:
    inner = [inner_op for block in op.blocks for inner_op in block if not inner_op.terminator]
    loads = [inner_op for inner_op in inner if isinstance(inner_op, tile.Load)]
    return (
        len(loads) > 0
        and len(inner) <= _MAX_OPS
        and all(isinstance(inner_op, tile.Load) or _is_cheap(inner_op) for inner_op in inner)
        and not any(load.volatile for load in loads)
    )


def _is_cheap(op: Op) -> bool:
    return op.pure and op.has(*_CHEAP) and not op.has(Trait.COSTLY)


def _predicate(op: scf.If) -> None:
    builder = Builder.before_op(op)
    otherwise = builder(
        arith.Xor(op.condition, builder(arith.Constant(value=True, type=I1)).out)
    ).out
    then_values = _inline(op.then, op.condition, builder)
    not_taken = _inline(op.orelse, otherwise, builder)
    loads = dict.fromkeys(op_ for op_ in builder.added if isinstance(op_, tile.Load))
    out: list[Value] = []
    for yes, no in zip(then_values, not_taken, strict=True):
        # A masked-off load may already return the value of the other arm.
        if _is_else(yes, no, loads):
            out.append(yes)
        elif _is_else(no, yes, loads):
            out.append(no)
        else:
            out.append(_select(op.condition, yes, no, builder))
    op.replace_with(out)


def _inline(block: Block, condition: Value, builder: Builder) -> list[Value]:
    """Emit an arm before the branch, its loads masked by the condition; return its yields."""
    mapping: dict[Value, Value] = {}
    for op in block:
        if op.terminator:
            break
        is_load = isinstance(op, tile.Load)
        builder(_masked(op, mapping, condition, builder) if is_load else op.clone(mapping))
    return [mapping.get(value, value) for value in block.terminator.operands]


def _masked(op: tile.Load, mapping: dict[Value, Value], condition: Value, builder: Builder) -> Op:
    pointer, mask, other = (
        None if value is None else mapping.get(value, value) for value in op.slots
    )
    assert pointer is not None
    if isinstance(pointer.type, TileType):
        condition = builder(tile.Splat(condition, pointer.type.shape)).out
    mask = condition if mask is None else builder(arith.And(mask, condition)).out
    load = tile.Load(pointer, mask, other, op.cache, op.eviction)
    load.out.hint = op.out.hint
    mapping[op.out] = load.out
    return load


def _is_else(loaded: Value, rest: Value, loads: Mapping[tile.Load, None]) -> bool:
    op = loaded.op
    return isinstance(op, tile.Load) and op in loads and op.other is rest


def _select(condition: Value, yes: Value, no: Value, builder: Builder) -> Value:
    if yes is no:
        return yes
    if isinstance(yes.type, TileType):
        condition = builder(tile.Splat(condition, yes.type.shape)).out
    return builder(arith.Select(condition, yes, no)).out
