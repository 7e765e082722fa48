"""Compute the launch condition of a variant that loads pointers through tensor maps.

The compiler states the requirements of its proof on the arguments. The driver limits the encoding:
addresses and strides in multiples of 16 bytes, extents from 1 to 2^32, strides below 2^40 bytes.
The signature proves most of them, such as an i32 promised to be a multiple of 16. The rest becomes
one expression, evaluated at every launch that might use the variant.

Invariant: for arguments that keep the signature's promises, the condition holds exactly if all
guards hold and every map can be encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from aotc.compiler import CompileRequest
from aotc.ir import expression
from aotc.ir.expression import (
    INT64_MAX,
    INT64_MIN,
    MAX_TEXT_BYTES,
    Binary,
    Expression,
    Integer,
    Name,
    Unary,
)
from aotc.ir.types import SCALARS
from aotc.metadata import ParamSlot, TensorMapSpec
from aotc.package.manifest import argument_type
from aotc.package.manifest.argument_type import ArgumentType
from aotc.tuple_type import flattened

_ALIGNMENT_BYTES = 16
_MAX_EXTENT = 1 << 32
_END_STRIDE_BYTES = 1 << 40

NEVER = Integer(0)


def launch_condition(
    request: CompileRequest, guards: Iterable[str], params: Sequence[ParamSlot]
) -> Expression | None:
    """Return the condition on a kernel's launches: None if all may use it, `NEVER` if none.

    `guards` and `params` are the compiled kernel's.
    """
    types = flattened(dict(request.signature))
    signature = {name: argument_type.parse(text) for name, text in types.items()}
    fixed = {name: a.value for name, a in signature.items() if isinstance(a.value, int)}
    facts_of = {Name(name): _argument_facts(argument) for name, argument in signature.items()}
    requirements = [expression.parse(guard) for guard in guards]
    for slot in params:
        spec = slot.tensor_map
        if spec is not None and signature[slot.argument].kind == "pointer":
            requirements += _encodable(spec)
    left: list[Expression] = []
    for root in requirements:
        root = expression.fold(root, fixed)  # noqa: PLW2901 - the same condition
        facts = _facts(root, facts_of)
        if facts is None or facts.low <= 0 <= facts.high:
            left.append(root)
            _learn(root, facts_of)
        if facts is not None and facts.low == facts.high == 0:
            return NEVER
    if not left:
        return None
    condition = reduce(lambda lhs, rhs: Binary("and", lhs, rhs), left)
    too_long = len(expression.to_text(condition).encode()) > MAX_TEXT_BYTES
    return NEVER if too_long else condition


def _encodable(spec: TensorMapSpec) -> Iterator[Expression]:
    """Yield the requirements of `cuTensorMapEncodeTiled` on a tensor's address, extents and strides."""
    size_bytes = SCALARS[spec.element].size_bytes
    address = expression.parse(spec.address)
    yield _is_multiple(address, _ALIGNMENT_BYTES)
    for extent in map(expression.parse, spec.shape):
        yield Binary(">=", extent, Integer(1))
        yield Binary("<=", extent, Integer(_MAX_EXTENT))
    for stride in map(expression.parse, spec.strides):
        yield Binary(">=", stride, Integer(0))
        yield Binary("<", stride, Integer(_END_STRIDE_BYTES // size_bytes))
        yield _is_multiple(stride, _ALIGNMENT_BYTES // size_bytes)


def _is_multiple(value: Expression, divisor: int) -> Expression:
    return Binary("==", Binary("%", value, Integer(divisor)), Integer(0))


@dataclass(frozen=True, slots=True)
class _Facts:
    """A value's bounds, `low` to `high`, and its divisor, 0 only for the value 0."""

    low: int
    high: int
    divisor: int = 1


_Known: TypeAlias = "dict[Name, _Facts | None]"
_BOOL = _Facts(0, 1)


def _argument_facts(argument: ArgumentType) -> _Facts | None:
    """Return the signature's facts about an argument; None if no value satisfies it."""
    if argument.kind == "none":
        return None
    if argument.kind == "pointer":
        return _Facts(0, INT64_MAX, argument.divisor)
    scalar = SCALARS[argument.element]
    if argument.kind == "tensordesc" or not scalar.is_int:
        return None
    low = -(1 << scalar.bits - 1) if scalar.is_signed else 0
    high = low + (1 << scalar.bits) - 1
    return _Facts(low, high, argument.divisor) if high <= INT64_MAX else None


def _facts(node: Expression, facts_of: Mapping[Name, _Facts | None]) -> _Facts | None:
    """Bound the value of an expression; None if evaluating it may fail."""
    facts: _Facts | None = None
    match node:
        case Integer(value):
            facts = _Facts(value, value, abs(value))
        case Name():
            facts = facts_of.get(node)
        case Binary(op, lhs, rhs):
            first, second = _facts(lhs, facts_of), _facts(rhs, facts_of)
            rule = _RULES.get(op)
            if rule is not None and first is not None and second is not None:
                facts = rule(first, second)
        case Unary("not", operand):
            inner = _facts(operand, facts_of)
            facts = None if inner is None else _compared(inner, _Facts(0, 0, 0), "==")
        case _:
            pass
    return (
        facts if facts is not None and INT64_MIN <= facts.low <= facts.high <= INT64_MAX else None
    )


def _product(a: _Facts, b: _Facts) -> _Facts:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _Facts(min(corners), max(corners), a.divisor * b.divisor)


def _remainder(a: _Facts, b: _Facts) -> _Facts | None:
    if b.low < 1:
        return None
    if b.low == b.high and a.divisor % b.low == 0:
        return _Facts(0, 0, 0)
    if a.low >= 0 and a.high < b.low:
        return a
    return _Facts(0, b.high - 1, math.gcd(a.divisor, b.divisor))


def _quotient(a: _Facts, b: _Facts) -> _Facts | None:
    if b.low < 1:
        return None
    corners = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _Facts(min(corners), max(corners))


def _rounded_up(a: _Facts, b: _Facts) -> _Facts | None:
    if b.low < 1:
        return None
    corners = [-(-x // y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return _Facts(min(corners), max(corners))


def _compared(a: _Facts, b: _Facts, op: str) -> _Facts:
    """Bound the result of a comparison, "<", "<=" or "==", of two values."""
    if op == "==":
        always = a.low == a.high == b.low == b.high
        never = a.high < b.low or b.high < a.low
    else:
        always = a.high < b.low or (op == "<=" and a.high == b.low)
        never = a.low > b.high or (op == "<" and a.low == b.high)
    return _Facts(1, 1) if always else _Facts(0, 0, 0) if never else _BOOL


def _negated(truth: _Facts) -> _Facts:
    return _Facts(1 - truth.high, 1 - truth.low)


_RULES: dict[str, Callable[[_Facts, _Facts], _Facts | None]] = {
    "+": lambda a, b: _Facts(a.low + b.low, a.high + b.high, math.gcd(a.divisor, b.divisor)),
    "-": lambda a, b: _Facts(a.low - b.high, a.high - b.low, math.gcd(a.divisor, b.divisor)),
    "*": _product,
    "//": _quotient,
    "%": _remainder,
    "cdiv": _rounded_up,
    "min": lambda a, b: _Facts(
        min(a.low, b.low), min(a.high, b.high), math.gcd(a.divisor, b.divisor)
    ),
    "max": lambda a, b: _Facts(
        max(a.low, b.low), max(a.high, b.high), math.gcd(a.divisor, b.divisor)
    ),
    "<": lambda a, b: _compared(a, b, "<"),
    "<=": lambda a, b: _compared(a, b, "<="),
    ">": lambda a, b: _compared(b, a, "<"),
    ">=": lambda a, b: _compared(b, a, "<="),
    "==": lambda a, b: _compared(a, b, "=="),
    "!=": lambda a, b: _negated(_compared(a, b, "==")),
}


def _learn(root: Expression, facts_of: _Known) -> None:
    """Refine the facts about arguments, given that a condition holds."""
    match root:
        case Binary("==", Binary("%", Name() as name, Integer(divisor)), Integer(0)) if divisor > 0:
            facts = facts_of.get(name)
            if facts is not None:
                facts_of[name] = replace(facts, divisor=math.lcm(facts.divisor, divisor))
        case Binary(op, Name() as name, Integer(value)) if op in _BOUNDS:
            facts = facts_of.get(name)
            if facts is not None:
                low, high = _BOUNDS[op](value)
                facts_of[name] = replace(facts, low=max(facts.low, low), high=min(facts.high, high))
        case _:
            pass


_BOUNDS: dict[str, Callable[[int], tuple[int, int]]] = {
    ">": lambda value: (value + 1, INT64_MAX),
    ">=": lambda value: (value, INT64_MAX),
    "<": lambda value: (INT64_MIN, value - 1),
    "<=": lambda value: (INT64_MIN, value),
}
