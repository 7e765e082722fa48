"""Guard against launches where an address would overflow 32 bits.

The compiler reports conditions for the wrap-around of an address that some program certainly
accesses. If all variants of a kernel agree, and the manifest gives the grid, the launcher requires
the opposite.

Invariant: a launch refused by a guard would access memory at a wrong address with every variant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce

from aotc.ir import expression
from aotc.ir.expression import Binary, Expression, ExpressionError, Integer, Name
from aotc.metadata import Metadata
from aotc.package.archive.index import Guard
from aotc.package.manifest.variant_grid import VariantSpec

_PROGRAMS = re.compile(r"num_programs\((\d)\)")
_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def overflow_guards(
    members: Iterable[tuple[VariantSpec, Metadata, Expression | None]],
    guards: Sequence[Guard],
) -> tuple[Guard, ...]:
    """Return the guards common to all members of a kernel; `guards` are its other guards.

    None if a member has a condition: where it holds, launches use tensor maps, and compute no such
    address.
    """
    shared: dict[Expression, Guard] | None = None
    for spec, metadata, condition in members:
        if condition is not None or not spec.grid:
            return ()
        limits = _limits(guards[index] for index in spec.guards)
        member_guards: dict[Expression, Guard] = {}
        for overflow in metadata.overflows:
            guard = _guard_of(spec, overflow)
            if guard is not None and _may_fail(guard.expression, limits):
                member_guards[guard.expression] = guard
        shared = (
            member_guards
            if shared is None
            else {t: g for t, g in shared.items() if t in member_guards}
        )
    return tuple((shared or {}).values())


def _guard_of(spec: VariantSpec, overflow: str) -> Guard | None:
    """Return the guard against an overflow, "norm.py:9: condition"; None if no launch has it."""
    location, _, text = overflow.partition(": ")
    parts: list[Expression] = []
    for part in expression.conjuncts(expression.parse(_PROGRAMS.sub(_extent_of(spec.grid), text))):
        try:
            folded = expression.fold(part, {})
        except ExpressionError:
            return None
        if isinstance(folded, Integer):
            if not folded.value:
                return None
        elif not _is_covered(folded):
            parts.append(folded)
    passed = {name for name, argument in spec.kernel.signature.items() if argument.is_passed}
    if not parts or any(set(expression.free_names(part)) - passed for part in parts):
        return None
    test = reduce(lambda left, right: Binary("or", left, right), map(_opposite, parts))
    text = f"{expression.to_text(test)} (else the int32 address at {location} overflows, unless an operand is cast"
    return Guard(test, f"{text} by .to(tl.int64))", is_promise=True)


def _extent_of(grid: Sequence[Expression]) -> Callable[[re.Match[str]], str]:
    def text(match: re.Match[str]) -> str:
        axis = int(match[1])
        return f"({expression.to_text(grid[axis])})" if axis < len(grid) else "1"

    return text


def _is_covered(part: Expression) -> bool:
    """Return whether a condition is implied by the grid, cdiv(n, block), covering the last of n."""
    match part:
        case Binary("<", Binary("//", Binary("-", x, Integer(1)), block), Binary("cdiv", y, other)):
            return x == y and block == other
        case _:
            return False


def _opposite(part: Expression) -> Expression:
    match part:
        case Binary(operator, left, right) if operator in _OPPOSITES:
            return Binary(_OPPOSITES[operator], left, right)
        case _:
            return Binary("==", part, Integer(0))


def _limits(guards: Iterable[Guard]) -> dict[str, int]:
    """Return the largest value of each argument with a constant bound in the guards."""
    return {name: most for guard in guards for name, most in _limits_in(guard.expression)}


def _limits_in(test: Expression) -> Iterator[tuple[str, int]]:
    for part in expression.conjuncts(test):
        match part:
            case Binary("<=", Name(name), Integer(most)) | Binary(">=", Integer(most), Name(name)):
                yield name, most
            case Binary("<", Name(name), Integer(end)) | Binary(">", Integer(end), Name(name)):
                yield name, end - 1
            case _:
                pass


def _may_fail(test: Expression, limits: Mapping[str, int]) -> bool:
    """Return whether a product may be too large for arguments within their limits."""
    first = test
    while isinstance(first, Binary) and first.op == "or":
        first = first.lhs
    names = expression.free_names(first)
    if any(name not in limits for name in names):
        return True
    return not expression.evaluate(first, {name: max(0, limits[name]) for name in names})
