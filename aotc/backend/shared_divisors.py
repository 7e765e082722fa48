"""Find divisors shared by enough divisions to prepare them.

A prepared divisor takes some 40 instructions more than ptxas's one reciprocal for all divisions by
it, and saves 4 or 5 of each quotient. It takes two registers more, too.

Invariant: the first op of each group is in a block around all the others, ahead of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith
from aotc.ir.effects import Trait
from aotc.ir.types import ScalarType, TileType, element_of

_MIN_QUOTIENTS = 12
"""Quotients of a thread from which a prepared divisor pays."""


@dataclass(eq=False)
class _Group:
    """Divisions by one divisor, from the first on and in blocks within its own."""

    block: Block | None
    ops: list[Op] = field(default_factory=list[Op])
    dividends: dict[Value, int] = field(default_factory=dict[Value, int])
    """How many elements of each a thread divides; quotient and remainder are computed together."""


def shared_divisions(kernel: Kernel) -> dict[Op, None]:
    """Return the divisions with a divisor to prepare."""
    groups: dict[tuple[Value, bool], list[_Group]] = {}
    for op in kernel.walk():
        divisor = _divisor_of(op)
        if divisor is None:
            continue
        element = element_of(op.operands[0].type)
        assert isinstance(element, ScalarType)
        around = groups.setdefault((divisor, element.is_signed), [])
        blocks = dict.fromkeys(_blocks_around(op))
        group = next((ancestor for ancestor in around if ancestor.block in blocks), None)
        if group is None:
            group = _Group(op.block)
            around.append(group)
        group.ops.append(op)
        group.dividends[op.operands[0]] = _num_elements(op.operands[0])
    return {
        op: None
        for around in groups.values()
        for group in around
        if sum(group.dividends.values()) >= _MIN_QUOTIENTS
        for op in group.ops
    }


def _divisor_of(op: Op) -> Value | None:
    """Return the scalar, non-constant divisor of a division of 32-bit integers, or None."""
    if not isinstance(op, arith.Div | arith.Rem):
        return None
    element = element_of(op.lhs.type)
    if not isinstance(element, ScalarType) or not element.is_int or element.bits != 32:
        return None
    value = op.rhs
    while value.op is not None and _keeps_elements(value.op):
        value = value.op.operands[0]
    is_scalar = not isinstance(value.type, TileType)
    return value if is_scalar and not isinstance(value.op, arith.Constant) else None


def _keeps_elements(op: Op) -> bool:
    return op.has(Trait.SHAPE_ONLY) or op.has(Trait.SAME_VALUES)


def _blocks_around(op: Op) -> Iterator[Block | None]:
    yield op.block
    for outer in op.ancestors():
        yield outer.block


def _num_elements(value: Value) -> int:
    """Return how many different elements of a tile a thread holds."""
    if not isinstance(value.type, TileType) or value.type.layout is None:
        return 1
    return 1 << sum(map(bool, value.type.layout.columns("register")))
