"""Find indices that are never negative, on conditions for a launch to check.

An index counted up from zero, or reduced by a remainder, is not negative; a difference may be.
Arguments of the user are checked at launch. Divisors are taken to be positive, and so are indices
loaded from memory: a negative one would be out of bounds of the tensor it indexes.

Invariant: a "never negative" index is not negative in any launch with all of `required` 0 or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.types import ScalarType
from aotc.ir.walks import Steps, run
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
        return run(self._all_terms(polynomial))

    def of(self, value: Value) -> bool:
        """Return whether a scalar is never negative."""
        return run(self.ask(value))

    def ask(self, value: Value) -> Steps[bool]:
        """Answer `of` for an operand, without recursion."""
        if value not in self._found:
            self._found[value] = yield self._decide(value)
        return self._found[value]

    def _all_terms(self, polynomial: Polynomial) -> Steps[bool]:
        for monomial, factor in polynomial.terms:
            if factor <= 0:
                return False
            for symbol in monomial:
                if symbol >= 0 and not (yield self._of_symbol(symbol)):
                    return False
        return True

    def _of_symbol(self, symbol: int) -> Steps[bool]:
        source = self._analysis.sources[symbol]
        return self.ask(source) if isinstance(source, Value) else self._all_terms(source.dividend)

    def _decide(self, value: Value) -> Steps[bool]:
        op = value.op
        if isinstance(op, tile.ProgramId | tile.NumPrograms | tile.Load):
            return True
        if isinstance(op, arith.Constant):
            return op.value >= 0
        if op is not None:
            rule = _RULES.get(type(op))
            return rule is not None and (yield rule(self, op, value))
        parent = None if isinstance(value.owner, Op) else value.owner.parent
        if isinstance(parent, scf.For):
            return value is parent.induction and (yield self.ask(parent.lower))
        is_argument = parent is not None and not isinstance(parent, Op)
        if not is_argument or not isinstance(value.type, ScalarType) or value.type.is_float:
            return False
        self.required[value] = None
        return True


# ---- rules: one function an op ----------------------------------------------------------------


def _all(signs: Signs, op: Op, _: Value) -> Steps[bool]:
    return _all_of(signs, op.operands)


def _first(signs: Signs, op: Op, _: Value) -> Steps[bool]:
    return signs.ask(op.operands[0])


def _max(signs: Signs, op: Op, _: Value) -> Steps[bool]:
    # Constants first: they need no check at launch.
    for value in sorted(op.operands, key=lambda value: not isinstance(value.op, arith.Constant)):
        if (yield signs.ask(value)):
            return True
    return False


def _select(signs: Signs, op: Op, _: Value) -> Steps[bool]:
    assert isinstance(op, arith.Select)
    return _all_of(signs, [op.if_true, op.if_false])


def _branch(signs: Signs, op: Op, value: Value) -> Steps[bool]:
    assert isinstance(op, scf.If)
    return _all_of(signs, [block.terminator.operands[value.index] for block in op.blocks])


def _all_of(signs: Signs, values: Sequence[Value]) -> Steps[bool]:
    for value in values:
        if not (yield signs.ask(value)):
            return False
    return True


_RULES: dict[type[Op], Callable[[Signs, Op, Value], Steps[bool]]] = {
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
