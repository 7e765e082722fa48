"""Emit the start of a box: polynomials over scalars, as scalars of the kernel.

Invariant: the operands of an emitted op dominate it.
"""

from __future__ import annotations

from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith, scf
from aotc.ir.rewrite import Builder, is_inside
from aotc.ir.types import I32
from aotc.ir.walks import Steps, run
from aotc.schedule.analysis.affine import AffineAnalysis
from aotc.schedule.analysis.global_order import stands_before
from aotc.schedule.analysis.polynomial import Polynomial


def coordinate(analysis: AffineAnalysis, start: Polynomial, user: Op, builder: Builder) -> Value:
    """Compute the start of a box, adding terms of the innermost loop last."""
    return run(_coordinate(analysis, start, user, builder))


def _coordinate(
    analysis: AffineAnalysis, start: Polynomial, user: Op, builder: Builder
) -> Steps[Value]:
    for value in analysis.scalars(start):
        if _is_visible(value, user):
            return value
    loop = next((op for op in user.ancestors() if isinstance(op, scf.For)), None)

    def changes(term: Polynomial) -> bool:
        values = (analysis.sources[symbol] for symbol in term.symbols)
        owners = (source.owner for source in values if isinstance(source, Value))
        return loop is not None and any(is_inside(owner, loop) for owner in owners)

    total: Value | None = None
    for term in sorted(start, key=changes):
        value = yield _term(analysis, term, user, builder)
        total = value if total is None else builder(arith.Add(total, value)).out
    return builder(arith.Constant(0, I32)).out if total is None else total


def _term(analysis: AffineAnalysis, term: Polynomial, user: Op, builder: Builder) -> Steps[Value]:
    ((monomial, factor),) = term.terms
    product: Value | None = None
    for symbol in monomial:
        value = yield _symbol(analysis, symbol, user, builder)
        product = value if product is None else builder(arith.Mul(product, value)).out
    if product is not None and factor == 1:
        return product
    constant = builder(arith.Constant(factor, I32)).out
    return constant if product is None else builder(arith.Mul(product, constant)).out


def _symbol(analysis: AffineAnalysis, symbol: int, user: Op, builder: Builder) -> Steps[Value]:
    source = analysis.sources[symbol]
    if isinstance(source, Value):
        return source if source.type == I32 else builder(arith.Cast(source, I32)).out
    dividend = yield _coordinate(analysis, source.dividend, user, builder)
    divisor = yield _coordinate(analysis, source.divisor, user, builder)
    return builder(arith.Rem(dividend, divisor)).out


def _is_visible(value: Value, user: Op) -> bool:
    """Return whether `user` may use a value: whether its definition dominates it."""
    op = value.op
    block = op.block if op is not None else value.owner
    for outer in (user, *user.ancestors()):
        if outer.block is block:
            return op is None or stands_before(op, outer)
    return False
