"""The least and greatest value of integers, from constants, index ranges and loop bounds.

Invariant: every element is in its range in every launch. Arithmetic that may wrap has the range of
its type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.types import PointerType, ScalarType, element_of
from aotc.ir.walks import Steps, run

Range = tuple[int, int]
_MAX_GRID = (1 << 31) - 1


class ValueRanges:
    """The ranges of a kernel's integers, computed as they are asked for."""

    def __init__(self) -> None:
        self._ranges: dict[Value, Range] = {}

    def __getitem__(self, value: Value) -> Range:
        """Return the least and the greatest element of an integer scalar or tile."""
        return run(self.ask(value))

    def ask(self, value: Value) -> Steps[Range]:
        """Answer for an operand, without recursion."""
        if value not in self._ranges:
            limits = type_range(value)
            self._ranges[value] = limits  # a variable of a loop asks for itself
            low, high = yield self._range(value, limits)
            self._ranges[value] = (low, high) if limits[0] <= low <= high <= limits[1] else limits
        return self._ranges[value]

    def _range(self, value: Value, limits: Range) -> Steps[Range]:
        op = value.op
        if op is None:
            return (yield self._induction_range(value, limits))
        if isinstance(op, arith.Constant):
            return int(op.value), int(op.value)
        if isinstance(op, tile.Arange):
            return op.start, op.end - 1
        if isinstance(op, tile.ProgramId | tile.NumPrograms):
            return 0, _MAX_GRID
        is_moved = op.has(Trait.VIEW, Trait.BROADCAST, Trait.SAME_VALUES)
        rule = _RULES.get(type(op))
        if not is_moved and rule is None:
            return limits
        sources = op.operands[1:] if isinstance(op, arith.Select) else op.operands
        ranges: list[Range] = []
        for source in sources:
            if not is_integer(source):
                return limits
            ranges.append((yield self.ask(source)))
        result = reduce(_union, ranges) if rule is None else rule(*ranges)
        return limits if result is None else result

    def _induction_range(self, value: Value, limits: Range) -> Steps[Range]:
        parent = None if isinstance(value.owner, Op) else value.owner.parent
        if not isinstance(parent, scf.For) or value is not parent.induction:
            return limits
        lower, upper, step = parent.lower, parent.upper, parent.step
        first, end = (yield self.ask(lower)), (yield self.ask(upper))
        by = yield self.ask(step)
        if by[0] <= 0:
            return limits
        last = end[1] - 1
        if first[0] == first[1] and by[0] == by[1]:
            last = first[0] + max(0, last - first[0]) // by[0] * by[0]
        return first[0], max(first[0], last)


def is_integer(value: Value) -> bool:
    """Return whether a scalar or tile is of integers."""
    element = element_of(value.type)
    return isinstance(element, ScalarType) and element.is_int


def type_range(value: Value) -> Range:
    """Return the least and the greatest number of an integer's type."""
    element = element_of(value.type)
    assert not isinstance(element, PointerType)
    half = 1 << element.bits - 1
    return (-half, half - 1) if element.is_signed else (0, 2 * half - 1)


# ---- rules: the range of a result by the ranges of operands; None if unknown --------------------


def _add(left: Range, right: Range) -> Range:
    return left[0] + right[0], left[1] + right[1]


def _sub(left: Range, right: Range) -> Range:
    return left[0] - right[1], left[1] - right[0]


def _mul(left: Range, right: Range) -> Range:
    products = [a * b for a in left for b in right]
    return min(products), max(products)


def _div(left: Range, right: Range) -> Range | None:
    if left[0] < 0 or right[0] <= 0:
        return None
    return left[0] // right[1], left[1] // right[0]


def _rem(left: Range, right: Range) -> Range | None:
    if right[0] <= 0:
        return None
    most = right[1] - 1
    return (0 if left[0] >= 0 else max(left[0], -most)), min(max(left[1], 0), most)


def _and(left: Range, right: Range) -> Range | None:
    bounds = [high for low, high in (left, right) if low >= 0]
    return (0, min(bounds)) if bounds else None


def _min(left: Range, right: Range) -> Range:
    return min(left[0], right[0]), min(left[1], right[1])


def _max(left: Range, right: Range) -> Range:
    return max(left[0], right[0]), max(left[1], right[1])


def _union(left: Range, right: Range) -> Range:
    return min(left[0], right[0]), max(left[1], right[1])


def _same(value: Range) -> Range:
    return value


_RULES: dict[type[Op], Callable[..., Range | None]] = {
    arith.Add: _add,
    arith.Sub: _sub,
    arith.Mul: _mul,
    arith.Div: _div,
    arith.Rem: _rem,
    arith.And: _and,
    arith.Min: _min,
    arith.Max: _max,
    arith.Select: _union,
    arith.Cast: _same,
}
