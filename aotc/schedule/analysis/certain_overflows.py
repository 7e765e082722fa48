"""Launches in which a certainly accessed address overflows 32 bits.

One lane of one program is lane_values, with the largest index of a product. All its values are
expressions over the arguments and the numbers of programs, or unknown. An access counts if its path
and its mask are known: then a condition over these tells when the product overflows.

Invariant: if a condition is true, some program accesses memory at an address that wrapped around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.expression import Binary, Expression, Integer, Name, evaluate, to_text, walk
from aotc.ir.types import ScalarType, element_of, shape_of

LARGEST = (1 << 31) - 1
_MANY = 1 << 19  # programs or elements; a product by a constant is left out if it takes more
_MAX_NODES = 40
_MAX_CONDITIONS = 4
# An unrolled kernel has many similar ones, and long chains of sums.
_MAX_ACCESSES, _MAX_LANES = 64, 8
_MAX_DEPTH = _MAX_TERMS = 64
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_TRUE = Integer(1)

Coords: TypeAlias = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class _Lane:
    """A program, by its number along an axis, and a lane of it, by its position along `dim` of a tile.

    All other numbers and positions are 0. There is such a lane where `parts` hold.
    """

    axis: int
    program: Expression
    dim: int = -1
    position: Expression = field(default_factory=lambda: Integer(0))
    parts: tuple[Expression, ...] = ()


def certain_overflows(kernel: Kernel) -> tuple[str, ...]:
    """Return the overflow conditions of a kernel in tile IR.

    One is "norm.py:9: (n - 1) * stride > 2147483647". Conditions exceeded by huge launches alone are left out.
    """
    ops = list(kernel.walk())
    if any(op.has(Trait.MAY_TRAP, Trait.MAY_NOT_END) for op in ops):
        return ()
    names = {
        arg: Name(info.name)
        for info, arg in zip(kernel.params, kernel.body.args, strict=True)
        if isinstance(arg.type, ScalarType) and arg.type.is_int
    }
    conditions: dict[str, str] = {}
    for access, pointer in _accesses(ops):
        for lane in islice(_lanes(access, pointer, names), _MAX_LANES):
            for product, parts in _overflows(access, pointer, lane, names):
                if len(conditions) < _MAX_CONDITIONS:
                    line = f"{product.loc.file.rpartition('/')[2]}:{product.loc.line}"
                    texts = dict.fromkeys(map(to_text, parts))
                    conditions.setdefault(to_text(parts[0]), f"{line}: {' and '.join(texts)}")
    return tuple(conditions.values())


def _accesses(ops: Sequence[Op]) -> Iterator[tuple[Op, Value]]:
    """Yield the first stores, atomics and loads with an effect on a store, and their pointers."""
    stored = [value for op in ops if op.writes(Resource.GLOBAL) for value in op.operands]
    conditions: dict[Value, None] = {}
    while stored:
        value = stored.pop()
        if value not in conditions:
            conditions[value] = None
            stored += _needed_by(value)
    accesses = (
        (op, op.pointer)
        for op in ops
        if isinstance(op, tile.Store | tile.AtomicRmw)
        or (isinstance(op, tile.Load) and op.out in conditions)
    )
    return islice(accesses, _MAX_ACCESSES)


def _needed_by(value: Value) -> list[Value]:
    """Return the operands of a value's computation, through loops and branches."""
    op = value.op
    if op is None:
        loop = value.owner.parent if isinstance(value.owner, Block) else None
        if not isinstance(loop, scf.For):
            return list(loop.operands) if isinstance(loop, Op) else []
        ends = [loop.lower, loop.upper, loop.step]
        return ends if value.index == 0 else [loop.results[value.index - 1]]
    if isinstance(op, scf.For):
        initial, yielded = op.operands[3 + value.index], op.body.terminator.operands[value.index]
        return [initial, yielded, op.lower, op.upper, op.step]
    if isinstance(op, scf.If):
        return [op.condition, *(arm.terminator.operands[value.index] for arm in op.blocks)]
    return list(op.operands)


# ---- lanes ------------------------------------------------------------------------------------


def _lanes(access: Op, pointer: Value, names: Mapping[Value, Expression]) -> Iterator[_Lane]:
    """Yield the lanes in which an index of an access may be largest."""
    rank = len(shape_of(pointer.type))
    mask = getattr(access, "mask", None)
    comparisons = (
        [] if mask is None else [op for op in _sources(mask) if isinstance(op, arith.Compare)]
    )
    for op in comparisons:
        rows = _block_of_rows(op.lhs)
        extent = names.get(_stripped(op.rhs)) if op.predicate == "lt" else None
        if rows is None or extent is None:
            continue
        axis, block = rows
        last = Binary("-", extent, _TRUE)
        program = Binary("//", last, Integer(block))
        exists = Binary("<", program, _programs(axis))
        for dim in range(rank):
            parts = Binary(">", extent, Integer(0)), exists
            yield _Lane(axis, program, dim, Binary("%", last, Integer(block)), parts)
    for axis in dict.fromkeys(
        op.axis for op in _sources(pointer) if isinstance(op, tile.ProgramId)
    ):
        exists = Binary(">", _programs(axis), Integer(0))
        yield _Lane(axis, Binary("-", _programs(axis), _TRUE), parts=(exists,))


def _programs(axis: int) -> Name:
    return Name(f"num_programs({axis})")


def _block_of_rows(value: Value) -> tuple[int, int] | None:
    """Return the axis and the block of an index `program_id(axis) * block + arange(0, block)`."""
    op = _stripped(value).op
    if not isinstance(op, arith.Add):
        return None
    sides = [_stripped(side).op for side in op.operands]
    product = next((side for side in sides if isinstance(side, arith.Mul)), None)
    within = next((side for side in sides if isinstance(side, tile.Arange)), None)
    if product is None or within is None or within.start != 0:
        return None
    factors = [_stripped(side).op for side in product.operands]
    program = next((factor for factor in factors if isinstance(factor, tile.ProgramId)), None)
    block = next((factor for factor in factors if isinstance(factor, arith.Constant)), None)
    if program is None or block is None or int(block.value) != within.end:
        return None
    return program.axis, within.end


_SHAPES = (tile.Splat, tile.Broadcast, tile.ExpandDims, tile.Hint, arith.Cast)


def _stripped(value: Value) -> Value:
    while isinstance(value.op, _SHAPES):
        value = value.op.operands[0]
    return value


def _sources(value: Value) -> Iterator[Op]:
    """Yield the ops of a value's computation, through the first iteration of loops."""
    seen: dict[Value, None] = {}
    worklist = [value]
    while worklist:
        source = _in_first_iteration(worklist.pop())
        if source in seen:
            continue
        seen[source] = None
        if source.op is not None and not source.op.blocks and not source.op.effects:
            yield source.op
            worklist += source.op.operands


def _in_first_iteration(value: Value) -> Value:
    """Return the first-iteration value of an argument of a loop's block."""
    while isinstance(value.owner, Block) and isinstance(value.owner.parent, scf.For):
        loop = value.owner.parent
        value = loop.lower if value.index == 0 else loop.operands[2 + value.index]
    return value


# ---- values of a lane -------------------------------------------------------------------------


def _overflows(
    access: Op, pointer: Value, lane: _Lane, names: Mapping[Value, Expression]
) -> Iterator[tuple[Op, list[Expression]]]:
    """Yield the products of an address with a possible overflow in a lane, and their conditions."""
    lane_values = _LaneValues(lane, names)
    coords = tuple(
        lane.position if dim == lane.dim else Integer(0)
        for dim in range(len(shape_of(pointer.type)))
    )
    path = _path(access, coords, lane_values)
    if path is None:
        return
    other_axes = [
        Binary(">", _programs(axis), Integer(0)) for axis in range(3) if axis != lane.axis
    ]
    for op, product_coords, addends in _products(pointer, coords, lane_values):
        bound = lane_values.of(op.out, product_coords)
        if bound is None or _is_far_off(bound) or not all(map(_is_nonnegative, addends)):
            continue
        parts = [Binary(">", bound, Integer(LARGEST)), *lane.parts, *path, *other_axes]
        if Integer(0) not in parts and sum(1 for part in parts for _ in walk(part)) <= _MAX_NODES:
            yield op, [part for part in parts if part != _TRUE]


def _is_far_off(bound: Expression) -> bool:
    """Return whether only huge extents, or none, make a product overflow.

    Bounds with a remainder are meaningless: it is a position in a tile, larger in other lanes.
    """
    if any(isinstance(node, Binary) and node.op == "%" for node in walk(bound)):
        return True
    names = dict.fromkeys(node.name for node in walk(bound) if isinstance(node, Name))
    return len(names) < 2 and evaluate(bound, dict.fromkeys(names, _MANY)) <= LARGEST


def _path(access: Op, coords: Coords, lane_values: _LaneValues) -> list[Expression] | None:
    """Return the conditions for a lane to make an access; None if unknown."""
    parts: list[Expression | None] = []
    inner = access
    for outer in access.ancestors():
        if isinstance(outer, scf.For):
            lower, upper = lane_values.of(outer.lower, ()), lane_values.of(outer.upper, ())
            if lower is None or upper is None or not _goes_up(outer):
                return None
            parts.append(_compared("<", lower, upper))
        elif isinstance(outer, scf.If):
            condition = lane_values.of(outer.condition, ())
            is_then = inner.block is outer.blocks[0]
            parts.append(condition if is_then or condition is None else _negated(condition))
        else:
            return None
        inner = outer
    mask = getattr(access, "mask", None)
    if mask is not None:
        parts.append(lane_values.of(mask, coords if shape_of(mask.type) else ()))
    plain = [part for part in parts if part is not None and _is_plain(part)]
    return plain if len(plain) == len(parts) else None


def _goes_up(loop: scf.For) -> bool:
    step = loop.step.op
    return isinstance(step, arith.Constant) and int(step.value) > 0


def _is_plain(condition: Expression) -> bool:
    """Return whether nothing in a condition may wrap around: it compares numbers as they are."""
    match condition:
        case Integer() | Name():
            return True
        case Binary("-", Name(name), Integer(1)):
            return name.startswith("num_programs(")
        case Binary("and" | "<" | "<=" | ">" | ">=" | "==" | "!=", left, right):
            return _is_plain(left) and _is_plain(right)
        case _:
            return False


def _products(
    pointer: Value, coords: Coords, lane_values: _LaneValues
) -> Iterator[tuple[arith.Mul, Coords, list[Expression | None]]]:
    """Yield the narrow products in a pointer's offset, with their 32-bit addends."""
    worklist: list[tuple[Value, Coords, list[Expression | None]]] = [(pointer, coords, [])]
    for _ in range(_MAX_TERMS):
        if not worklist:
            break
        value, value_coords, addends = worklist.pop()
        value = _in_first_iteration(value)
        op = value.op
        if isinstance(op, arith.AddPtr):
            worklist += [(op.pointer, value_coords, []), (op.offset, value_coords, [])]
        elif isinstance(op, arith.Add) and _is_signed(value):
            for side, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                more = [*addends, lane_values.of(other, value_coords)] if _is_narrow(value) else []
                worklist.append((side, value_coords, more))
        elif isinstance(op, arith.Mul) and _is_narrow(value):
            yield op, value_coords, addends
        elif isinstance(op, arith.Cast) and _extends(op):
            worklist.append((op.operands[0], value_coords, addends))
        elif isinstance(op, tile.Splat | tile.Broadcast | tile.ExpandDims | tile.Hint):
            worklist.append((op.operands[0], _operand_coords(op, value_coords), addends))


def _is_signed(value: Value) -> bool:
    kind = element_of(value.type)
    return isinstance(kind, ScalarType) and kind.is_int and kind.is_signed


def _is_narrow(value: Value) -> bool:
    kind = element_of(value.type)
    return isinstance(kind, ScalarType) and _is_signed(value) and kind.bits == 32


def _operand_coords(op: Op, coords: Coords) -> Coords:
    """Return the operand's coordinates for an op that only changes a tile's shape."""
    if isinstance(op, tile.ExpandDims):
        return (*coords[: op.axis], *coords[op.axis + 1 :])
    if isinstance(op, tile.Hint):
        return coords
    if isinstance(op, tile.Broadcast):
        shape = shape_of(op.operands[0].type)
        return tuple(Integer(0) if n == 1 else c for n, c in zip(shape, coords, strict=True))
    return ()


class _LaneValues:
    """Values of a lane as expressions; None if unknown."""

    def __init__(self, lane: _Lane, names: Mapping[Value, Expression]) -> None:
        self._lane = lane
        self._names = names
        self._known: dict[tuple[Value, Coords], Expression | None] = {}
        self._depth = 0

    def of(self, value: Value, coords: Coords) -> Expression | None:
        """Return a value's element at coordinates."""
        value = _in_first_iteration(value)
        key = value, coords
        if key not in self._known and self._depth < _MAX_DEPTH:
            self._depth += 1
            number = self._computed(value, coords)
            self._depth -= 1
            is_small = number is not None and sum(1 for _ in walk(number)) <= _MAX_NODES
            self._known[key] = number if is_small else None
        return self._known.get(key)

    def _computed(self, value: Value, coords: Coords) -> Expression | None:
        if value in self._names:
            return self._names[value]
        op = value.op
        match op:
            case arith.Constant() if isinstance(op.value, int):
                return Integer(int(op.value))
            case tile.ProgramId():
                return self._lane.program if op.axis == self._lane.axis else Integer(0)
            case tile.NumPrograms():
                return _programs(op.axis)
            case tile.Arange():
                return _sum(coords[0], Integer(op.start))
            case tile.Splat() | tile.Broadcast() | tile.ExpandDims() | tile.Hint():
                return self.of(op.operands[0], _operand_coords(op, coords))
            case arith.Cast() if _extends(op):
                return self.of(op.operands[0], coords)
            case arith.Add() | arith.Sub() | arith.Mul() | arith.And() | arith.Compare():
                return _combined(op, [self.of(side, coords) for side in op.operands])
            case _:
                return None


def _extends(op: arith.Cast) -> bool:
    """Return whether a cast keeps the number: of a signed integer to a wider or equal one."""
    before, after = element_of(op.operands[0].type), element_of(op.out.type)
    if not isinstance(before, ScalarType) or not isinstance(after, ScalarType):
        return False
    is_integer = before.is_int and after.is_int and before.is_signed and after.is_signed
    return is_integer and after.bits >= before.bits


def _combined(op: Op, parts: Sequence[Expression | None]) -> Expression | None:
    left, right = parts
    if left is None or right is None:
        return None
    match op:
        case arith.Add():
            return _sum(left, right)
        case arith.Sub():
            return _sum(left, Integer(-right.value)) if isinstance(right, Integer) else None
        case arith.Mul():
            return _product(left, right)
        case arith.And() if element_of(op.out.type).bits == 1:
            return _both(left, right)
        case arith.Compare():
            return _compared(_COMPARISONS[op.predicate], left, right)
        case _:
            return None


def _sum(left: Expression, right: Expression) -> Expression:
    match left, right:
        case Integer(a), Integer(b):
            return Integer(a + b)
        case _, Integer(0):
            return left
        case Integer(0), _:
            return right
        # A block's start plus a position in it is the index itself.
        case Binary("*", Binary("//", x, Integer(b)), Integer(c)), Binary("%", y, Integer(d)):
            if x == y and b == c == d:
                return x
        case Binary("%"), Binary("*"):
            return _sum(right, left)
        case _, Integer(b) if b < 0:
            return Binary("-", left, Integer(-b))
        case _:
            pass
    return Binary("+", left, right)


def _product(left: Expression, right: Expression) -> Expression:
    match left, right:
        case Integer(a), Integer(b):
            return Integer(a * b)
        case (Integer(0), _) | (_, Integer(0)):
            return Integer(0)
        case (_, Integer(1)):
            return left
        case (Integer(1), _):
            return right
        case _:
            return Binary("*", left, right)


def _compared(operator: str, left: Expression, right: Expression) -> Expression:
    match operator, left, right:
        case "<", Binary("-", x, Integer(1)), y if x == y:
            return _TRUE
        case _, Integer(), Integer():
            return Integer(evaluate(Binary(operator, left, right), {}))
        case _, Integer(), Name():
            return Binary(_MIRRORED[operator], right, left)
        case _:
            return Binary(operator, left, right)


def _both(left: Expression, right: Expression) -> Expression:
    if left == _TRUE or right == Integer(0):
        return right
    return left if right == _TRUE or left == Integer(0) else Binary("and", left, right)


def _negated(condition: Expression) -> Expression:
    return Binary("==", condition, Integer(0))


def _is_nonnegative(value: Expression | None) -> bool:
    """Return whether a number is at least 0 in an existing lane."""
    match value:
        case Integer(number):
            return number >= 0
        case Binary("%" | "//", inner, Integer()):
            return _is_nonnegative(inner)
        case Binary("-", Name(name), Integer(1)):
            return name.startswith("num_programs(")
        case _:
            return False
