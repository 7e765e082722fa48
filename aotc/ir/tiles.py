"""Queries on tile ops: shape, elementwise, uniform, loop-carried joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, scf
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import TileType


def is_tile(value: Value) -> bool:
    """Return whether `value` is a tile, and so needs a layout."""
    return isinstance(value.type, TileType)


def tile_shape(value: Value) -> tuple[int, ...]:
    """Return the shape of a tile value."""
    assert isinstance(value.type, TileType)
    return value.type.shape


def is_elementwise(op: Op) -> bool:
    """Return whether `op` has one result, in the layout of its operands."""
    return op.has(Trait.ELEMENTWISE) and len(op.results) == 1


def is_uniform(value: Value) -> bool:
    """Return whether all elements of a tile are the same: a constant, or a scalar in each."""
    op = value.op
    if op is None or not is_tile(value):
        return False
    return isinstance(op, arith.Constant) or (
        op.has(Trait.BROADCAST) and not is_tile(op.operands[0])
    )


def uniform_in(value: Value, layout: LinearLayout, builder: Builder) -> Value:
    """Return a uniform tile again, in a layout."""
    op, kind = value.op, value.type
    assert op is not None
    assert isinstance(kind, TileType)
    if isinstance(op, arith.Constant):
        return builder(arith.Constant(op.value, kind.with_layout(layout))).out
    return builder(op.clone({}, layout=layout)).results[0]


@dataclass(frozen=True, slots=True)
class Join:
    """Name the values of one variable (`targets`) and the values flowing into it."""

    targets: tuple[Value, ...]
    sources: tuple[Value, ...]


def joins_of(op: Op) -> Iterator[Join]:
    """Yield the tile variables joined by `op`."""
    rule = _JOINS.get(type(op))
    if rule is not None:
        for join in rule(op):
            if is_tile(join.targets[0]):
                yield join


def _join_for(op: Op) -> Iterator[Join]:
    assert isinstance(op, scf.For)
    yielded = op.body.terminator.operands
    for carried, out, init, last in zip(op.carried, op.outs, op.init, yielded, strict=True):
        yield Join((carried, out), (init, last))


def _join_if(op: Op) -> Iterator[Join]:
    assert isinstance(op, scf.If)
    arms = op.then.terminator.operands, op.orelse.terminator.operands
    for out, first, second in zip(op.outs, *arms, strict=True):
        yield Join((out,), (first, second))


def _join_while(op: Op) -> Iterator[Join]:
    assert isinstance(op, scf.While)
    for arg, init, last in zip(op.before.args, op.init, op.after.terminator.operands, strict=True):
        yield Join((arg,), (init, last))
    passed = op.before.terminator.operands[1:]
    for arg, out, value in zip(op.after.args, op.outs, passed, strict=True):
        yield Join((arg, out), (value,))


_JOINS: dict[type[Op], Callable[[Op], Iterator[Join]]] = {
    scf.For: _join_for,
    scf.If: _join_if,
    scf.While: _join_while,
}


def slot_targets(op: Op) -> list[Value | None]:
    """Return, for each operand slot of a loop, branch or terminator, the variable it sets."""
    if isinstance(op, scf.For):
        return [None, None, None, *op.carried]
    if isinstance(op, scf.While):
        return list(op.before.args)
    if isinstance(op, scf.Condition):
        parent = op.parent_op
        return [None, *parent.blocks[1].args] if parent is not None else [None]
    if isinstance(op, scf.Yield):
        parent = op.parent_op
        if isinstance(parent, scf.While):
            return list(parent.before.args)
        if isinstance(parent, scf.For | scf.If):
            return list(parent.outs)
    return [None] * len(op.slots)
