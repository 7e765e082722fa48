"""Walk along values, through loops, branches and yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.dialects.map_store import StoreMap

SHAPES = (
    *(arith.Cast, tile.Splat, tile.Broadcast, tile.ExpandDims, tile.Reshape, tile.Trans),
    *(tile.Hint, tile.Split),
)


def sources(value: Value) -> list[Value]:
    """Return the direct sources of `value`, conditions and bounds too."""
    op = value.op
    if op is not None:
        rule = _RESULTS.get(type(op))
        return op.operands if rule is None else rule(op, value.index)
    parent = value.owner.parent if isinstance(value.owner, Block) else None
    if isinstance(parent, scf.For):
        return _for_argument(parent, value.index)
    if isinstance(parent, scf.While):
        return _while_argument(parent, value)
    return []


def _for_result(op: Op, index: int) -> list[Value]:
    assert isinstance(op, scf.For)
    yielded = op.body.terminator.operands[index]
    return [op.operands[3 + index], yielded, op.lower, op.upper, op.step]


def _for_argument(op: scf.For, index: int) -> list[Value]:
    if index == 0:
        return [op.lower, op.upper, op.step]
    return [op.operands[2 + index], op.body.terminator.operands[index - 1]]


def _if_result(op: Op, index: int) -> list[Value]:
    assert isinstance(op, scf.If)
    return [op.condition, *(block.terminator.operands[index] for block in op.blocks)]


def _while_result(op: Op, index: int) -> list[Value]:
    assert isinstance(op, scf.While)
    condition = op.before.terminator.operands
    return [condition[0], condition[1 + index]]


def _while_argument(op: scf.While, value: Value) -> list[Value]:
    if value.owner is op.before:
        return [op.operands[value.index], op.after.terminator.operands[value.index]]
    return [op.before.terminator.operands[1 + value.index]]


_RESULTS: dict[type[Op], Callable[[Op, int], list[Value]]] = {
    scf.For: _for_result,
    scf.If: _if_result,
    scf.While: _while_result,
}


def carried(value: Value) -> list[Value]:
    """Return the aliases of `value` in and after the loops and branches it is passed to."""
    aliases: list[Value] = []
    for user in dict.fromkeys(value.users):
        handed_to = _HANDED_TO.get(type(user))
        if handed_to is not None:
            for index, operand in enumerate(user.operands):
                aliases += handed_to(user, index) if operand is value else ()
    return aliases


def _of_loop(op: Op, index: int) -> list[Value]:
    assert isinstance(op, scf.For)
    return [op.results[index - 3], op.body.args[index - 2]] if index >= 3 else []


def _of_yield(op: Op, index: int) -> list[Value]:
    parent = op.block.parent if op.block is not None else None
    if isinstance(parent, scf.For):
        return [parent.results[index], parent.body.args[index + 1]]
    if isinstance(parent, scf.While):
        return [parent.before.args[index]]
    return [parent.results[index]] if isinstance(parent, scf.If) else []


def _of_while(op: Op, index: int) -> list[Value]:
    assert isinstance(op, scf.While)
    return [op.before.args[index]]


def _of_condition(op: Op, index: int) -> list[Value]:
    parent = op.block.parent if op.block is not None else None
    assert isinstance(parent, scf.While)
    return [parent.results[index - 1], parent.after.args[index - 1]] if index else []


_HANDED_TO: dict[type[Op], Callable[[Op, int], list[Value]]] = {
    scf.For: _of_loop,
    scf.While: _of_while,
    scf.Yield: _of_yield,
    scf.Condition: _of_condition,
}


def backward(
    start: Iterable[Value], *, through_loads: bool = True, through_bounds: bool = True
) -> Iterator[Value]:
    """Yield `start` and all values it is computed from, without repeats.

    Without `through_loads` the walk stops at loaded values, without `through_bounds` at loop
    variables.
    """
    seen: dict[Value, None] = {}
    worklist = list(start)
    while worklist:
        value = worklist.pop()
        if value in seen:
            continue
        seen[value] = None
        yield value
        if not through_bounds and _is_induction(value):
            continue
        if through_loads or not touches_memory(value.op):
            worklist += sources(value)


def forward(start: Iterable[Op]) -> dict[Op, None]:
    """Return `start` and all ops dependent on it by data or control.

    Dependences through memory are not followed. An op depends on the ops in its combine block.
    """
    followers: dict[Op, None] = {}
    seen: dict[Value, None] = {}
    ops = [_outermost(op) for op in start]
    values: list[Value] = []
    while ops or values:
        if ops:
            op = ops.pop()
            if op not in followers:
                followers[op] = None
                values += op.results
            continue
        value = values.pop()
        if value in seen:
            continue
        seen[value] = None
        values += carried(value)
        for user in dict.fromkeys(value.users):
            steered = _steered(user, value)
            if steered is not None:
                values += steered.results
                for block in steered.blocks:
                    values += block.args
                    ops += map(_outermost, block.walk())
            elif type(user) not in _HANDED_TO or _outermost(user) is not user:
                ops.append(_outermost(user))
    return followers


def _steered(user: Op, value: Value) -> Op | None:
    """Return the loop or branch controlled by a value, as a bound or condition."""
    if isinstance(user, scf.For):
        return user if value in user.operands[:3] else None
    if isinstance(user, scf.If):
        return user
    if isinstance(user, scf.Condition) and value is user.operands[0]:
        parent = user.block.parent if user.block is not None else None
        return parent if isinstance(parent, scf.While) else None
    return None


def _outermost(op: Op) -> Op:
    """Return an op, or the op around its combine block."""
    outermost = op
    while op.block is not None and isinstance(op.block.parent, Op):
        op = op.block.parent
        if not isinstance(op, scf.For | scf.If | scf.While):
            outermost = op
    return outermost


def touches_memory(op: Op | None) -> bool:
    """Return whether an op reads or writes memory."""
    return op is not None and bool(op.effects)


def strip(value: Value) -> Value:
    """Return the value behind casts, splats and reshapes."""
    while isinstance(value.op, SHAPES):
        value = value.op.operands[0]
    return value


def pointer_operand(op: Op) -> Value | None:
    """Return the pointer or descriptor of `op`'s memory access; None for others."""
    if not op.effects:
        return None
    if isinstance(op, StoreMap):
        return op.slot
    pointer = getattr(op, "pointer", None) or getattr(op, "descriptor", None)
    return pointer if isinstance(pointer, Value) else None


def _is_induction(value: Value) -> bool:
    parent = value.owner.parent if isinstance(value.owner, Block) else None
    return isinstance(parent, scf.For) and value.index == 0
