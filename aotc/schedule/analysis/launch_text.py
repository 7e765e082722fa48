"""Facts of a launch, as expressions for the launcher.

Strides and extents of a tensor are polynomials over arguments. The end of a loop's tiles follows
from its bounds, which may also be quotients, such as the number of tiles in a row.

Invariant: an expression has the value computed by the kernel, for launches that keep its guards.
"""

from __future__ import annotations

from typing import NamedTuple

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import arith, scf
from aotc.schedule.analysis.affine import AffineAnalysis, Wrapped
from aotc.schedule.analysis.polynomial import Polynomial


class Guarded(NamedTuple):
    """An expression, and guards for the launches it holds in."""

    text: str
    guards: tuple[str, ...] = ()


class LaunchText:
    """Print the polynomials of one kernel as expressions."""

    def __init__(self, kernel: Kernel, analysis: AffineAnalysis) -> None:
        self._kernel = kernel
        self._analysis = analysis

    def of(self, polynomial: Polynomial) -> str:
        """Return a polynomial over arguments of the launch."""
        terms: list[str] = []
        # Constants last, and none begins with a sign.
        ordered = sorted(polynomial.terms, key=lambda term: (term[1] < 0, not term[0]))
        for monomial, factor in ordered:
            parts = [] if abs(factor) == 1 and monomial else [str(abs(factor))]
            terms += ["-" if factor < 0 else "+", " * ".join([*parts, *map(self._name, monomial)])]
        if not terms:
            return "0"
        return " ".join(terms[1:] if terms[0] == "+" else ["0", *terms])

    def factor(self, polynomial: Polynomial) -> str:
        """Return a polynomial as something to multiply or divide."""
        text = self.of(polynomial)
        return f"({text})" if " + " in text or " - " in text else text

    def end_of_boxes(self, start: Polynomial, box: int) -> Guarded | None:
        """Return an index beyond all boxes of `box` elements from `start`, or None.

        All boxes of a launch begin at one place, or at indices with a modulus, or one after the
        other in a loop.
        """
        if all(map(self._analysis.is_launch, start.symbols)):
            return Guarded(self.of(start + Polynomial.constant(box)))
        if len(start.terms) != 1 or len(start.symbols) != 1:
            return None
        ((monomial, factor),) = start.terms
        source = self._analysis.sources[monomial[0]]
        if isinstance(source, Wrapped):
            return Guarded(self.of(source.divisor)) if factor == 1 else None
        parent = source.owner.parent if isinstance(source.owner, Block) else None
        if not isinstance(parent, scf.For) or source is not parent.induction or len(monomial) > 1:
            return None
        return self._end_of_loop(parent, factor, box)

    def _end_of_loop(self, loop: scf.For, factor: int, box: int) -> Guarded | None:
        """Return the end of a box at `factor` times the last induction value."""
        upper, step = self._upper(loop.upper), self._analysis[loop.step].offset.value
        if upper is None or not step or step < 0 or self._analysis[loop.lower].offset.value != 0:
            return None
        steps = upper.text if step == 1 else f"cdiv({upper.text}, {step})"
        beyond = box - factor * step
        text = f"{steps} * {factor * step}" if factor * step != 1 else steps
        if beyond:
            text += f" {'+' if beyond > 0 else '-'} {abs(beyond)}"
        return Guarded(text, (*upper.guards, f"{upper.text} > 0"))

    def _upper(self, value: Value) -> Guarded | None:
        """Return the upper bound of a loop: an argument, or one divided by a constant."""
        offset = self._analysis[value].offset
        if all(map(self._analysis.is_launch, offset.symbols)):
            return Guarded(self.factor(offset))
        op = value.op
        if not isinstance(op, arith.Div):
            return None
        dividend, divisor = (self._analysis[operand].offset for operand in (op.lhs, op.rhs))
        if not divisor.value or divisor.value < 0:
            return None
        if not all(map(self._analysis.is_launch, dividend.symbols)):
            return None
        # Below zero, the kernel rounds towards it and the launcher does not.
        text = self.factor(dividend)
        return Guarded(f"({text} // {divisor.value})", (f"{self.of(dividend)} >= 0",))

    def _name(self, symbol: int) -> str:
        source = self._analysis.sources[symbol]
        assert isinstance(source, Value)
        info = self._kernel.params[source.index]
        return info.source or info.name
