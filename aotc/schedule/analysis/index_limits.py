"""Extents at which the 32-bit products of a kernel's addresses overflow.

A bound of each product follows from its operands: programs are counted from 0 to the grid's extent,
arguments and positions are nonnegative. Masked-off elements count too, less than a tile.

Invariant: a product within its bound does not overflow; an unbounded one is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import Loc
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.expression import (
    Binary,
    Expression,
    Integer,
    Name,
    evaluate,
    free_names,
    to_text,
    walk,
)
from aotc.ir.params import ParamInfo
from aotc.ir.types import ScalarType, element_of
from aotc.ir.walks import Steps, run
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark

LARGEST = (1 << 31) - 1
_SAME = (
    *(tile.Splat, tile.Broadcast, tile.ExpandDims, tile.Reshape, tile.Trans),
    arith.Cast,
)
_LINEAR = (*_SAME, arith.Add, arith.Sub, arith.Mul, arith.Shl, arith.Select)
_MANY = 1 << 19  # programs or elements; a product by a constant is not reported if it takes more
_MAX_NODES = 40  # a longer expression says nothing to a reader


def note_index_limits(kernel: Kernel, schedule: Schedule) -> bool:
    """Remark the extents at which addresses in tile IR overflow; return whether any do."""
    limits = index_limits(kernel)
    for loc, limit in limits:
        schedule.remark(loc, Remark.INDEX_LIMIT(limit=limit))
    return bool(limits)


def index_limits(kernel: Kernel) -> list[tuple[Loc, str]]:
    """Return the places of products in addresses, and the overflow condition of each.

    Of products with one condition the first is returned.
    """
    params = zip(kernel.params, kernel.body.args, strict=True)
    bounds = _Bounds({arg: _largest(info) for info, arg in params})
    limits: dict[str, Loc] = {}
    for op in _address_ops(kernel):
        if not isinstance(op, arith.Mul | arith.Shl) or not _is_narrow(op.out):
            continue
        bound = bounds.of(op.out)
        if bound is None or _is_far_off(bound):
            continue
        limits.setdefault(f"{to_text(bound)} > {LARGEST}", op.loc)
    return [(loc, text) for text, loc in limits.items()]


def _largest(info: ParamInfo) -> Expression:
    """Return the promised bound of an argument, else the argument itself."""
    return Name(info.name) if info.bounds is None else Integer(max(0, info.bounds[1]))


def _is_far_off(bound: Expression) -> bool:
    """Return whether no extent, or none but a huge one, makes a product overflow."""
    names = free_names(bound)
    return len(names) < 2 and evaluate(bound, dict.fromkeys(names, _MANY)) <= LARGEST


def _address_ops(kernel: Kernel) -> Iterator[Op]:
    """Yield the linear ops in the offsets of pointers, in the order of the program."""
    worklist = [op.offset for op in kernel.walk() if isinstance(op, arith.AddPtr)]
    seen: dict[Op, None] = {}
    while worklist:
        op = worklist.pop().op
        if op is not None and op not in seen and isinstance(op, _LINEAR):
            seen[op] = None
            worklist += op.operands
    yield from (op for op in kernel.walk() if op in seen)


def _is_narrow(value: Value) -> bool:
    kind = element_of(value.type)
    return isinstance(kind, ScalarType) and kind.is_int and kind.is_signed and kind.bits == 32


class _Bounds:
    """Upper bounds of integers, as expressions; None if unbounded."""

    def __init__(self, bounds: dict[Value, Expression]) -> None:
        self._known: dict[Value, Expression | None] = {**bounds}

    def of(self, value: Value) -> Expression | None:
        """Return the bound of a value."""
        return run(self._of(value))

    def _of(self, value: Value) -> Steps[Expression | None]:
        if value not in self._known:
            self._known[value] = None  # for values a loop carries around
            bound = yield self._computed(value)
            is_small = bound is not None and sum(1 for _ in walk(bound)) <= _MAX_NODES
            self._known[value] = bound if is_small else None
        return self._known[value]

    def _computed(self, value: Value) -> Steps[Expression | None]:
        op = value.op
        match op:
            case None:
                return (yield self._of_loop(value))
            case arith.Constant():
                return Integer(int(op.value)) if op.value >= 0 else None
            case tile.ProgramId():
                return _sum(Name(f"num_programs({op.axis})"), Integer(-1))
            case tile.NumPrograms():
                return Name(f"num_programs({op.axis})")
            case tile.Arange():
                return Integer(op.end - 1)
            case descriptor.DescriptorExtent():
                owner = self._known.get(op.descriptor)
                return None if owner is None else Name(f"{to_text(owner)}.shape[{op.axis}]")
            case _:
                parts: list[Expression | None] = []
                for operand in op.operands:
                    part = yield self._of(operand)
                    parts.append(part)
                return _combined(op, parts)

    def _of_loop(self, value: Value) -> Steps[Expression | None]:
        """Return the bound of a loop's variable; None for any other argument of a block."""
        loop = value.owner.parent if isinstance(value.owner, Block) else None
        if not isinstance(loop, scf.For) or value is not loop.induction:
            return None
        upper = yield self._of(loop.upper)
        return None if upper is None else _sum(upper, Integer(-1))


def _combined(op: Op, parts: Sequence[Expression | None]) -> Expression | None:
    if isinstance(op, (*_SAME, arith.Sub, arith.Div)):
        return parts[0]  # quotients and differences of nonnegative numbers
    if isinstance(op, arith.Min | arith.Rem):
        return next((part for part in reversed(parts) if part is not None), None)
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    left, right = parts[0], parts[1]
    match op:
        case arith.Add():
            return _sum(left, right)
        case arith.Mul():
            return _product(left, right)
        case arith.Shl() if isinstance(right, Integer):
            return _product(left, Integer(1 << right.value))
        case _:
            return None


def _sum(left: Expression, right: Expression) -> Expression:
    """Return a sum; constants at its end are added up."""
    match left, right:
        case Integer(a), Integer(b):
            return Integer(a + b)
        case _, Integer(0):
            return left
        case Integer(0), _:
            return right
        case Binary("+", rest, Integer(a)), Integer(b):
            return _sum(rest, Integer(a + b))
        case Binary("-", rest, Integer(a)), Integer(b):
            return _sum(rest, Integer(b - a))
        case _, Integer(b) if b < 0:
            return Binary("-", left, Integer(-b))
        case _:
            return Binary("+", left, right)


def _product(left: Expression, right: Expression) -> Expression:
    match left, right:
        case Integer(a), Integer(b):
            return Integer(a * b)
        case (_, Integer(1)):
            return left
        case (Integer(1), _):
            return right
        case _:
            return Binary("*", left, right)
