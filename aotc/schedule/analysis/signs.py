"""Which indices are never negative, on conditions that a launch can check.

An index that a kernel counts up from zero, or reduces by a remainder, is not
negative; a difference may be. What the user passes is checked at launch.
Divisors are taken to be positive, and so are indices loaded from memory: a negative one would
be out of bounds of the tensor that it indexes.

Invariant: an index that is "never negative" is not in any launch for which all of `required` are
0 or more.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.types import ScalarType
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.polynomial import Polynomial


class Signs:
    """Sign facts of the values of one kernel; `required` are the arguments to be 0 or more."""

    def __init__(self, analysis: AffineAnalysis) -> None:
        self.required: dict[Value, None] = {}
        self._analysis = analysis
        self._found: dict[Value, bool] = {}

    def never_negative(self, polynomial: Polynomial) -> bool:
        """Return whether all terms of a polynomial are 0 or more."""
        return all(
            factor > 0 and all(map(self._of_symbol, monomial))
            for monomial, factor in polynomial.terms
        )

    def _of_symbol(self, symbol: int) -> bool:
        if symbol < 0:
            return True
        source = self._analysis.sources[symbol]
        return (
            self.of(source) if isinstance(source, Value) else self.never_negative(source.dividend)
        )

    def of(self, value: Value) -> bool:
        """Return whether a scalar is never negative."""
        if value not in self._found:
            self._found[value] = self._look(value)
        return self._found[value]

    def _look(self, value: Value) -> bool:
        op = value.op
        if op is not None:
            rule = _RULES.get(type(op))
            return rule is not None and rule(self, op, value)
        parent = None if isinstance(value.owner, Op) else value.owner.parent
        if isinstance(parent, scf.For):
            return value is parent.induction and self.of(parent.lower)
        is_argument = parent is not None and not isinstance(parent, Op)
        if not is_argument or not isinstance(value.type, ScalarType) or value.type.is_float:
            return False
        self.required[value] = None
        return True


# ---- rules: one function an op ----------------------------------------------------------------


def _always(_: Signs, __: Op, ___: Value) -> bool:
    return True


def _constant(_: Signs, op: Op, __: Value) -> bool:
    assert isinstance(op, arith.Constant)
    return op.value >= 0


def _all(signs: Signs, op: Op, _: Value) -> bool:
    return all(map(signs.of, op.operands))


def _first(signs: Signs, op: Op, _: Value) -> bool:
    return signs.of(op.operands[0])


def _max(signs: Signs, op: Op, _: Value) -> bool:
    # Constants first: they need no check at launch.
    operands = sorted(op.operands, key=lambda value: not isinstance(value.op, arith.Constant))
    return any(map(signs.of, operands))


def _select(signs: Signs, op: Op, _: Value) -> bool:
    assert isinstance(op, arith.Select)
    return signs.of(op.if_true) and signs.of(op.if_false)


def _branch(signs: Signs, op: Op, value: Value) -> bool:
    assert isinstance(op, scf.If)
    return all(signs.of(block.terminator.operands[value.index]) for block in op.blocks)


_RULES: dict[type[Op], Callable[[Signs, Op, Value], bool]] = {
    tile.ProgramId: _always,
    tile.NumPrograms: _always,
    tile.Load: _always,
    arith.Constant: _constant,
    arith.Add: _all,
    arith.Mul: _all,
    arith.Min: _all,
    arith.Shl: _first,
    arith.Shr: _first,
    arith.Div: _first,
    arith.Rem: _first,
    arith.Cast: _first,
    tile.Hint: _first,
    arith.Max: _max,
    arith.Select: _select,
    scf.If: _branch,
}
