"""Scalar bounds on the elements of an index tile, and conditions for an all-true mask.

A mask of a loop, `first + arange < end`, is false somewhere in few iterations. Scalars tell these:
the largest element of one side and the smallest of the other. They are computed in 64 bits.

Invariant: a returned condition implies a true mask in every element, even if the mask's own
arithmetic wraps: operands of comparisons and minima are then known not to have wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import I64, ScalarType, TileType, element_of
from aotc.ir.walks import Steps, run

_HELD = (Trait.SHAPE_ONLY, Trait.SAME_VALUES, Trait.VIEW)
_MAX_BITS = 32


class _UnknownError(Exception):
    """Report a tile without scalar bounds."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The least and the largest element, in 64 bits; `wraps` if the arithmetic may have wrapped."""

    low: Value
    high: Value
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A required comparison: `lhs` is less than `rhs` ("lt"), or no more ("le")."""

    lhs: Value
    rhs: Value
    predicate: arith.Predicate


def all_true(mask: Value, builder: Builder) -> Value | None:
    """Emit a condition for all elements of a mask to be true, or return None.

    On None, dead-code elimination removes the emitted ops.
    """
    conditions = _Conditions(builder)
    try:
        conditions.add_mask(mask)
    except _UnknownError:
        return None
    return conditions.joined()


@dataclass
class _Conditions:
    """Collect conditions and the scalars they compare, with the bounds of these."""

    builder: Builder
    conditions: list[Value] = field(default_factory=list[Value])
    _comparisons: list[_Comparison] = field(default_factory=list[_Comparison])
    _known: dict[Value, _Bounds] = field(default_factory=dict[Value, _Bounds])
    _ranges: dict[Value, tuple[int, int]] = field(default_factory=dict[Value, tuple[int, int]])

    def joined(self) -> Value | None:
        """Return the conjunction, without redundant conditions."""
        conditions = list(self.conditions)
        for comparison in self._comparisons:
            if not any(
                comparison is not other and self._implies(other, comparison)
                for other in self._comparisons
            ):
                compared = arith.Compare(comparison.lhs, comparison.rhs, comparison.predicate)
                conditions.append(self.builder(compared).out)
        if not conditions:
            return None
        joined = conditions[0]
        for condition in conditions[1:]:
            joined = self.builder(arith.And(joined, condition)).out
        return joined

    def _implies(self, comparison: _Comparison, other: _Comparison) -> bool:
        """Return whether a comparison implies the other, by the range of each right side."""
        largest, least = self._ranges[comparison.rhs][1], self._ranges[other.rhs][0]
        slack = (other.predicate == "lt") - (comparison.predicate == "lt")
        return (
            comparison.lhs is other.lhs
            and comparison.rhs is not other.rhs
            and largest + slack <= least
        )

    def add_mask(self, mask: Value) -> None:
        """Add the conditions for an all-true mask. Raises: _UnknownError."""
        masks = [mask]
        while masks:
            op = masks.pop().op
            if isinstance(op, tile.Splat):
                self.conditions.append(op.value)
            elif isinstance(op, arith.And):
                masks += [op.rhs, op.lhs]
            elif isinstance(op, arith.Compare):
                self._add_comparison(op)
            elif op is not None and op.has(*_HELD):
                masks.append(_operand(op))
            else:
                raise _UnknownError

    def _add_comparison(self, op: arith.Compare) -> None:
        lhs, rhs = self.observed(op.lhs), self.observed(op.rhs)
        if op.predicate in ("lt", "le"):
            self._compare(lhs.high, rhs.low, op.predicate)
        elif op.predicate in ("gt", "ge"):
            self._compare(rhs.high, lhs.low, "lt" if op.predicate == "gt" else "le")
        else:
            raise _UnknownError

    def observed(self, value: Value) -> _Bounds:
        """Return the bounds of a value, ensuring that its arithmetic does not wrap."""
        return run(self._observed(value))

    def _observed(self, value: Value) -> Steps[_Bounds]:
        bounds = yield self._of(value)
        if bounds.wraps:
            limit = 1 << (element_of(value.type).bits - 1)
            self._compare(bounds.high, self._number(limit), "lt")
            self._compare(self._number(-limit), bounds.low, "le")
            bounds = _Bounds(bounds.low, bounds.high)
            self._known[value] = bounds
        return bounds

    def _of(self, value: Value) -> Steps[_Bounds]:
        """Return the bounds of an integer, or of the elements of a tile. Raises: _UnknownError."""
        if value not in self._known:
            element = element_of(value.type)
            is_index = isinstance(element, ScalarType) and element.is_int and element.is_signed
            if not is_index or element.bits > _MAX_BITS:
                raise _UnknownError
            self._known[value] = yield self._bounds(value)
        return self._known[value]

    def _bounds(self, value: Value) -> Steps[_Bounds]:
        op = value.op
        if isinstance(op, arith.Constant):
            number = self._number(int(op.value))
            return _Bounds(number, number)
        if not isinstance(value.type, TileType):
            limit = 1 << (element_of(value.type).bits - 1)
            wide = self._placed(arith.Cast(value, I64), -limit, limit - 1)
            return _Bounds(wide, wide)
        if isinstance(op, tile.Splat):
            return (yield self._of(op.value))
        if isinstance(op, tile.Arange):
            return _Bounds(self._number(op.start), self._number(op.end - 1))
        if isinstance(op, arith.Add):
            lhs = yield self._of(op.lhs)
            rhs = yield self._of(op.rhs)
            return _Bounds(self._add(lhs.low, rhs.low), self._add(lhs.high, rhs.high), wraps=True)
        if isinstance(op, arith.Sub):
            lhs = yield self._of(op.lhs)
            rhs = yield self._of(op.rhs)
            return _Bounds(self._sub(lhs.low, rhs.high), self._sub(lhs.high, rhs.low), wraps=True)
        if isinstance(op, arith.Min | arith.Max):
            lhs = yield self._observed(op.lhs)
            rhs = yield self._observed(op.rhs)
            kind = type(op)
            low = self._extremum(kind, lhs.low, rhs.low)
            return _Bounds(low, self._extremum(kind, lhs.high, rhs.high))
        if op is not None and op.has(*_HELD):
            return (yield self._of(_operand(op)))
        raise _UnknownError

    def _number(self, value: int) -> Value:
        return self._placed(arith.Constant(value, I64), value, value)

    def _add(self, lhs: Value, rhs: Value) -> Value:
        (low, high), (least, largest) = self._ranges[lhs], self._ranges[rhs]
        return self._placed(arith.Add(lhs, rhs), low + least, high + largest)

    def _sub(self, lhs: Value, rhs: Value) -> Value:
        (low, high), (least, largest) = self._ranges[lhs], self._ranges[rhs]
        return self._placed(arith.Sub(lhs, rhs), low - largest, high - least)

    def _extremum(self, kind: type[arith.Min | arith.Max], lhs: Value, rhs: Value) -> Value:
        pick = min if kind is arith.Min else max
        (low, high), (least, largest) = self._ranges[lhs], self._ranges[rhs]
        return self._placed(kind(lhs, rhs), pick(low, least), pick(high, largest))

    def _placed(self, op: arith.Constant | arith.Binary | arith.Cast, low: int, high: int) -> Value:
        """Emit an op with a result from `low` to `high`."""
        self._ranges[self.builder(op).out] = low, high
        return op.out

    def _compare(self, lhs: Value, rhs: Value, predicate: arith.Predicate) -> None:
        largest, least = self._ranges[lhs][1], self._ranges[rhs][0]
        if largest + (predicate == "lt") > least:
            self._comparisons.append(_Comparison(lhs, rhs, predicate))


def _operand(op: Op) -> Value:
    operands = op.operands
    if len(operands) != 1:
        raise _UnknownError
    return operands[0]
