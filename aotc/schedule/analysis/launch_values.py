"""Integers and addresses of a kernel as expressions over the launch, the program and loop counters.

For estimates, not for proofs: divisions are taken to be of numbers of 0 or more. A tile is
represented by its first element, and a value carried by a persistent loop by its first iteration.
Expressions stay short: a longer one gets a name for references.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from aotc.ir import expression
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, grid, roles, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.expression import Binary, Expression, ExpressionError, Integer, Name
from aotc.ir.types import I1, PointerType, ScalarType, TensorMapType, element_of

_MAX_NODES = 12
_DIGITS = 12

_OPERATORS: dict[type[Op], str] = {
    arith.Add: "+",
    arith.Sub: "-",
    arith.Mul: "*",
    arith.Div: "//",
    arith.Rem: "%",
    arith.Min: "min",
    arith.Max: "max",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_NAMES_OF_GRID = {f"grid[{axis}]": f"__n{axis}" for axis in range(3)}


@dataclass(frozen=True, slots=True)
class Number:
    """An integer, or the byte offset from a pointer argument; `num_nodes` bounds the expression.

    In iteration `i` of `loop` it is `root + i * step`; without a loop it is `root`.
    """

    root: Expression
    pointer: str = ""
    loop: scf.For | None = None
    step: int = 0
    num_nodes: int = 1


class LaunchValues:
    """The scalars of a kernel determined by its launch."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._numbers: dict[Value, Number] = {}
        self._named: dict[Expression, str] = {}
        self.persistent: dict[scf.For, None] = {}
        for info, arg in zip(kernel.params, kernel.body.args, strict=True):
            self._add_parameter(arg, _NAMES_OF_GRID.get(info.source, info.source or info.name))
        self._visit(kernel.body)

    def __getitem__(self, value: Value) -> Number | None:
        return self._numbers.get(value)

    def root(self, value: Value) -> Expression | None:
        """Return a value in the first iteration of the loops around it."""
        number = self._numbers.get(value)
        return None if number is None else number.root

    def constant(self, value: Value) -> int | None:
        """Return a value constant over all launches."""
        root = self.root(value)
        return root.value if isinstance(root, Integer) else None

    def _add_parameter(self, arg: Value, text: str) -> None:
        if isinstance(arg.type, PointerType | TensorMapType):
            self._numbers[arg] = Number(Integer(0), pointer=text)
        elif isinstance(arg.type, ScalarType) and arg.type.is_int:
            try:
                self._numbers[arg] = Number(expression.parse(text))
            except ExpressionError:
                return

    # -- control flow ----------------------------------------------------------

    def _visit(self, block: Block) -> None:
        for op in block:
            if isinstance(op, scf.For):
                self._visit_loop(op)
                continue
            for nested in op.blocks:
                self._visit(nested)
            if isinstance(op, scf.If):
                arms = op.then.terminator.operands, op.orelse.terminator.operands
                for out, first, second in zip(op.outs, *arms, strict=True):
                    if self._numbers.get(first) == self._numbers.get(second):
                        self._note(out, self._numbers.get(first))
            elif op.results:
                self._note(op.results[0], self._number(op))

    def _note(self, value: Value, number: Number | None) -> None:
        if number is not None:
            self._numbers[value] = self.short(number)

    def short(self, number: Number) -> Number:
        """Return a number as it is or, if its expression is long, by a name."""
        return (
            number
            if number.num_nodes <= _MAX_NODES
            else replace(number, root=self.named(number.root), num_nodes=1)
        )

    def named(self, root: Expression) -> Name:
        """Return the name of an expression, the same in every kernel."""
        if root not in self._named:
            digest = hashlib.sha256(expression.to_text(root).encode()).hexdigest()
            self._named[root] = f"__v{digest[:_DIGITS]}"
        return Name(self._named[root])

    @property
    def named_texts(self) -> tuple[tuple[str, str], ...]:
        """Named expressions with their texts."""
        return tuple((name, expression.to_text(root)) for root, name in self._named.items())

    def _visit_loop(self, loop: scf.For) -> None:
        lower, step = self._numbers.get(loop.lower), self.constant(loop.step)
        if self._is_persistent(loop):
            self.persistent[loop] = None
            self._numbers[loop.induction] = Number(Name("__p"))
        elif lower is not None:
            in_steps = (None, 0) if step is None else (loop, step)
            self._numbers[loop.induction] = Number(lower.root, "", *in_steps, lower.num_nodes)
        for arg, init in zip(loop.carried, loop.init, strict=True):
            first = self._numbers.get(init)
            if first is not None and loop in self.persistent:
                first = Number(Integer(0)) if not first.pointer else first
            if first is not None:
                self._numbers[arg] = Number(first.root, first.pointer, num_nodes=first.num_nodes)
        self._visit(loop.body)
        changed = False
        for arg, after in zip(loop.carried, loop.body.terminator.operands, strict=True):
            change, first = _constant_step(self, arg, after), self._numbers.get(arg)
            if change and first is not None and loop not in self.persistent:
                walking = Number(first.root, first.pointer, loop, change, first.num_nodes)
                self._numbers[arg], changed = walking, True
        if changed:
            self._visit(loop.body)

    def _is_persistent(self, loop: scf.For) -> bool:
        """Return whether a loop runs the programs of a CTA."""
        root = self.root(loop.step)
        return (
            self._kernel.is_persistent and root is not None and "__n" in expression.free_names(root)
        )

    # -- ops -------------------------------------------------------------------

    def _number(self, op: Op) -> Number | None:
        match op:
            case arith.Constant():
                return Number(Integer(int(op.value))) if _is_integer(op.out) else None
            case tile.Arange():
                return Number(Integer(op.start))
            case tile.ProgramId() if self._kernel.is_persistent:
                return Number(Name("__p"))
            case tile.NumPrograms() if self._kernel.is_persistent:
                return Number(Name("__n"))
            case tile.ProgramId():
                return Number(Name(f"__p{op.axis}"))
            case tile.NumPrograms():
                return Number(Name(f"__n{op.axis}"))
            case grid.CtaRank() | roles.ConsumerGroup() | gpu.NextStage():
                return Number(Integer(0))
            case arith.Select():
                return self._select(op)
            case arith.AddPtr():
                return self._address(op)
            case arith.Binary():
                return self._binary(op)
            case _:
                renames = op.has(Trait.BROADCAST, Trait.SAME_VALUES, Trait.VIEW)
                is_same = renames or isinstance(op, arith.Cast | gpu.Extract)
                return self._numbers.get(op.operands[0]) if is_same and op.operands else None

    def _address(self, op: arith.AddPtr) -> Number | None:
        pointee = element_of(op.pointer.type)
        assert isinstance(pointee, PointerType)
        base, offset = self._numbers.get(op.pointer), self._numbers.get(op.offset)
        if base is None or offset is None:
            return None
        size = Number(Integer(pointee.pointee.size_bytes))
        return joined("+", base, joined("*", offset, size))

    def _binary(self, op: arith.Binary) -> Number | None:
        if not _is_integer(op.results[0]) or not _is_integer(op.lhs):
            return None
        left, right = self._numbers.get(op.lhs), self._numbers.get(op.rhs)
        if left is None or right is None:
            return None
        if isinstance(op, arith.Compare):
            return joined(_COMPARISONS[op.predicate], left, right)
        mask = right.root.value if isinstance(right.root, Integer) else -1
        if isinstance(op, arith.And) and element_of(op.results[0].type) == I1:
            return joined("and", left, right)
        if isinstance(op, arith.And) and mask > 0 and not mask & (mask + 1):
            return joined("%", left, Number(Integer(mask + 1)))
        if isinstance(op, arith.Shl | arith.Shr) and 0 <= mask < 31:
            factor = Number(Integer(1 << mask))
            return joined("*" if isinstance(op, arith.Shl) else "//", left, factor)
        operator = _OPERATORS.get(type(op))
        return None if operator is None else joined(operator, left, right)

    def _select(self, op: arith.Select) -> Number | None:
        """Write a choice as a sum of products with the condition."""
        if not _is_integer(op.results[0]):
            return None
        condition, *arms = [self._numbers.get(value) for value in op.operands]
        if condition is None or arms[0] is None or arms[1] is None:
            return None
        product = joined("*", condition, joined("-", arms[0], arms[1]))
        return joined("+", arms[1], product)


def middle(number: Number, trips: Expression) -> Number:
    """Return a number in the middle of the iterations of its loop."""
    change = Binary("*", Binary("//", trips, Integer(2)), Integer(number.step))
    root = Binary("+", number.root, change)
    return Number(root, number.pointer, num_nodes=number.num_nodes + 1)


def _is_integer(value: Value) -> bool:
    element = element_of(value.type)
    return isinstance(element, ScalarType) and (element.is_int or element == I1)


def joined(operator: str, left: Number, right: Number) -> Number:
    """Combine two numbers; the step is kept where the result is linear in the loop's counter."""
    num_nodes = left.num_nodes + right.num_nodes + 1
    root = _simplified(operator, left.root, right.root)
    loop = left.loop or right.loop
    step = 0
    if operator in ("+", "-"):
        mixed = left.loop is not None and right.loop is not None and left.loop is not right.loop
        step = 0 if mixed else left.step + (right.step if operator == "+" else -right.step)
    elif operator == "*" and isinstance(right.root, Integer) and right.loop is None:
        step = left.step * right.root.value
    elif operator == "*" and isinstance(left.root, Integer) and left.loop is None:
        step = right.step * left.root.value
    return Number(root, left.pointer or right.pointer, loop, step, num_nodes)


def _simplified(operator: str, left: Expression, right: Expression) -> Expression:
    if operator == "+" and left == Integer(0):
        return right
    if operator in ("+", "-") and right == Integer(0):
        return left
    if operator in ("*", "//") and right == Integer(1):
        return left
    node = Binary(operator, left, right)
    if isinstance(left, Integer) and isinstance(right, Integer):
        try:
            return Integer(expression.compute(node, left.value, right.value))
        except ExpressionError:
            return node
    return node


def _constant_step(values: LaunchValues, arg: Value, after: Value) -> int:
    """Return the constant step of a carried value, in bytes for an address; else 0."""
    op = after.op
    if isinstance(op, arith.Add) and arg in (op.lhs, op.rhs):
        return values.constant(op.rhs if op.lhs is arg else op.lhs) or 0
    if isinstance(op, arith.AddPtr) and op.pointer is arg:
        pointee = element_of(op.pointer.type)
        assert isinstance(pointee, PointerType)
        return (values.constant(op.offset) or 0) * pointee.pointee.size_bytes
    return 0
