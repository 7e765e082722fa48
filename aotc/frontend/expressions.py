"""Expressions of a kernel: one handler for each kind of syntax node.

An expression is a run-time value, or a constant that Python computes on the spot; see `values.py`.
`and`, `or`, `if … else` and comparisons skip what a constant decides, so the arm that is not
taken may hold anything, and is never looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast as type_cast

from aotc.frontend import descriptors, operators
from aotc.frontend.builtins import DESCRIPTOR_METHODS, METHODS, PYTHON_BUILTINS
from aotc.frontend.calls import call
from aotc.frontend.convert import cast, not_a_value, static_int, to_scalar, to_value
from aotc.frontend.dtypes import dtype_attribute
from aotc.frontend.emitter import mistake
from aotc.frontend.frame import ExpressionHandler, Frame
from aotc.frontend.globals import unwrap
from aotc.frontend.operators import BINARY, COMPARE, UNARY, BinaryOperator
from aotc.frontend.records import replaced
from aotc.frontend.resolve import bindings
from aotc.frontend.scope import names_assigned_by
from aotc.frontend.shapes import subscript, trans
from aotc.frontend.unsupported import unsupported
from aotc.frontend.values import (
    BlockPointer,
    BoundMethod,
    Builtin,
    Class,
    Constexpr,
    Draft,
    External,
    Function,
    Loop,
    Missing,
    Module,
    Operand,
    PropagateNan,
    Record,
    RecordType,
    Slice,
    StaticCall,
    Unbound,
    UserModule,
    element,
    is_descriptor,
    is_tuple,
    shape,
    show,
    text_of,
    with_items,
)
from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import at, did_you_mean
from aotc.ir.dialects import scf
from aotc.ir.types import I1, DescriptorType, PointerType, ScalarType, TileType

_READABLE_GLOBALS = (
    Builtin,
    Class,
    External,
    Function,
    Loop,
    Missing,
    Module,
    PropagateNan,
    RecordType,
    ScalarType,
    PointerType,
    StaticCall,
    UserModule,
)
_USUAL_IMPORTS = {
    "tl": "import triton.language as tl",
    "triton": "import triton",
    "libdevice": "from triton.language.extra import libdevice",
}


# ---- names ------------------------------------------------------------------------------------


def _constant(frame: Frame, node: ast.Constant) -> Operand:
    if isinstance(node.value, bytes | complex) or node.value is ...:
        raise mistake(
            f"the constant {node.value!r} is not part of the language", loc=frame.loc(node)
        )
    return node.value


def _name(frame: Frame, node: ast.Name) -> Operand:
    name = node.id
    if name in frame.values:
        value = frame.values[name]
        if isinstance(value, Unbound):
            raise mistake(f"{name} has no value here: it {value.reason}", loc=frame.loc(node))
        return value
    value = frame.program.globals.lookup(frame.file, name)
    if frame.program.globals.is_known(value):
        return _global(frame, node, value)
    if name in PYTHON_BUILTINS:
        return PYTHON_BUILTINS[name]
    raise mistake(
        f"{name} is not defined", loc=frame.loc(node), remedy=_remedy_for_unknown(frame, name)
    )


def _remedy_for_unknown(frame: Frame, name: str) -> str:
    if name in _USUAL_IMPORTS:
        return f"write `{_USUAL_IMPORTS[name]}` at the top of {frame.file.path}"
    if name in names_assigned_by(frame.function.node.body):
        return "it is assigned elsewhere in the function, but not before this"
    known = [*frame.values, *bindings(frame.file), *PYTHON_BUILTINS]
    return did_you_mean(name, known)


def _global(frame: Frame, node: ast.Name, value: Operand) -> Operand:
    if isinstance(value, Constexpr):
        return unwrap(value)
    if value is None or isinstance(value, _READABLE_GLOBALS):
        return value
    if isinstance(value, int | float):
        # Triton has a switch for it, which real kernels rely on. Nothing here can change it later.
        frame.emit.remark(
            f"{node.id} is read as {value!r}; Triton asks for tl.constexpr({value!r})"
        )
        return value
    raise mistake(
        f"kernels read only constexpr globals, {node.id} is a plain {type(value).__name__}",
        loc=frame.loc(node),
        remedy=f"write `{node.id} = tl.constexpr({value!r})` in {frame.file.path}, "
        "or pass it as a `tl.constexpr` argument",
    )


def _attribute(frame: Frame, node: ast.Attribute) -> Operand:
    owner = frame.visit(node.value)
    name = node.attr
    if isinstance(owner, Value):
        if isinstance(owner.type, DescriptorType):
            return _descriptor_attribute(frame, owner, owner.type, name)
        return _value_attribute(frame, owner, name)
    if isinstance(owner, BlockPointer) and name in _BLOCK_POINTER_ATTRIBUTES:
        return _BLOCK_POINTER_ATTRIBUTES[name](owner)
    if isinstance(owner, BlockPointer) and name in _BLOCK_POINTER_METHODS:
        return BoundMethod(owner, METHODS[name])
    if isinstance(owner, ScalarType | PointerType | TileType):
        return dtype_attribute(owner, name)
    if isinstance(owner, Record):
        return _record_attribute(frame, owner, name)
    if isinstance(owner, Draft) and name in owner.items:
        return owner.items[name]
    if isinstance(owner, Module | UserModule | External | Class):
        member = frame.program.globals.member(owner, name)
        return unwrap(member) if isinstance(member, Constexpr) else member
    if name == "value":
        return owner
    if isinstance(owner, int | float) and name in METHODS:
        return BoundMethod(owner, METHODS[name])
    raise mistake(f"{show(owner)} has no attribute {name!r}")


def _record_attribute(frame: Frame, owner: Record, name: str) -> Operand:
    kind = owner.kind
    if name in kind.fields:
        return owner.by_name[name]
    if name == "_replace":
        return StaticCall(name, partial(replaced, owner), takes_values=True)
    member = frame.program.globals.member(kind.owner, name) if kind.owner else None
    if isinstance(member, Function):
        return BoundMethod(owner, member)
    if member is not None:
        return unwrap(member)
    raise mistake(f"{kind} has no field {name!r}", remedy=did_you_mean(name, kind.fields))


_BLOCK_POINTER_ATTRIBUTES: dict[str, Callable[[BlockPointer], Operand]] = {
    "dtype": lambda pointer: pointer.base.type,
    "type": lambda pointer: pointer.base.type,
    "shape": lambda pointer: pointer.block,
}
_BLOCK_POINTER_METHODS = ("advance", "store")
_VALUE_ATTRIBUTES: dict[str, Callable[[Value], Operand]] = {
    "dtype": element,
    "type": lambda value: value.type,
    "shape": shape,
    "numel": lambda value: value.type.num_elems if isinstance(value.type, TileType) else 1,
}


def _value_attribute(frame: Frame, owner: Value, name: str) -> Operand:
    if name in _VALUE_ATTRIBUTES:
        return _VALUE_ATTRIBUTES[name](owner)
    if name in METHODS:
        return BoundMethod(owner, METHODS[name])
    if name == "T":
        return trans(frame.emit, owner)
    raise mistake(
        f"{show(owner)} has no attribute {name!r}",
        remedy=did_you_mean(name, [*_VALUE_ATTRIBUTES, *METHODS, "T"]),
    )


def _descriptor_attribute(frame: Frame, owner: Value, kind: DescriptorType, name: str) -> Operand:
    if name in descriptors.ATTRIBUTES:
        return descriptors.ATTRIBUTES[name](frame.emit, owner, kind)
    if name in DESCRIPTOR_METHODS:
        return BoundMethod(owner, DESCRIPTOR_METHODS[name])
    raise mistake(
        f"a tensor descriptor has no attribute {name!r}",
        remedy=did_you_mean(name, [*descriptors.ATTRIBUTES, *DESCRIPTOR_METHODS]),
    )


# ---- operators --------------------------------------------------------------------------------


def _binary(frame: Frame, node: ast.BinOp) -> Operand:
    # A long sum is a tree that leans left; walking down its spine instead of recursing keeps
    # its length from being limited by Python's stack.
    spine: list[ast.BinOp] = [node]
    while isinstance(spine[-1].left, ast.BinOp):
        spine.append(spine[-1].left)
    result = frame.visit(spine[-1].left)
    for one in reversed(spine):
        right = frame.visit(one.right)
        op = BINARY.get(type(one.op))
        if op is None:
            raise unsupported(one.op)
        if one is node:
            result = _apply(frame, op, result, right)
        else:
            with at(frame.loc(one)):
                result = _apply(frame, op, result, right)
    return result


def _apply(frame: Frame, op: BinaryOperator, left: Operand, right: Operand) -> Operand:
    for one in (left, right):
        if isinstance(one, Unbound) or is_descriptor(one):
            raise not_a_value(one, "a value")
    return operators.binary(frame.emit, op, left, right)


def _unary(frame: Frame, node: ast.UnaryOp) -> Operand:
    operand = frame.visit(node.operand)
    if is_descriptor(operand):
        raise not_a_value(operand, "a value")
    return operators.unary(frame.emit, UNARY[type(node.op)], operand)


def _boolean(frame: Frame, node: ast.BoolOp) -> Operand:
    combine = operators.logical_or if isinstance(node.op, ast.Or) else operators.logical_and
    parts = (frame.visit(part) for part in node.values)
    return _short_circuit(frame, parts, combine, stops_on=isinstance(node.op, ast.Or))


def _short_circuit(
    frame: Frame, parts: Iterable[Operand], combine: operators.Emit, *, stops_on: bool
) -> Operand:
    """Combine operands: a constant ends the chain or has no say; run-time ones are all computed."""
    result: Value | None = None
    constant: Operand = None
    for part in parts:
        if isinstance(part, Value):
            result = part if result is None else combine(frame.emit, result, part)
            continue
        constant = part
        if bool(part) is stops_on:
            return part
    return constant if result is None else result


def _compare(frame: Frame, node: ast.Compare) -> Operand:
    def results() -> Iterable[Operand]:
        left = frame.visit(node.left)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = frame.visit(part)
            yield _compare_two(frame, op, left, right)
            left = right

    if len(node.ops) == 1:
        return next(iter(results()))
    return _short_circuit(frame, results(), operators.logical_and, stops_on=False)


def _compare_two(frame: Frame, op: ast.cmpop, left: Operand, right: Operand) -> Operand:
    known = COMPARE.get(type(op))
    if known is not None:
        return _apply(frame, known, left, right)
    if isinstance(op, ast.Is | ast.IsNot):
        same = left is right or (
            not isinstance(left, Value) and type(left) is type(right) and left == right
        )
        return same is isinstance(op, ast.Is)
    is_text = isinstance(left, str) and isinstance(right, str)
    if isinstance(left, Value) or not (is_text or isinstance(right, tuple)):
        raise mistake(f"`in` looks for a constant in a tuple, got {show(left)} and {show(right)}")
    return (left in right) is isinstance(op, ast.In)  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]


# ---- structure --------------------------------------------------------------------------------


def _tuple(frame: Frame, node: ast.Tuple | ast.List) -> Operand:
    items: list[Operand] = []
    for one in node.elts:
        if isinstance(one, ast.Starred):
            inner = frame.visit(one.value)
            if not is_tuple(inner):
                raise mistake(f"`*` unpacks a tuple, got {show(inner)}")
            items.extend(inner)
        else:
            items.append(frame.visit(one))
    return tuple(items)


def _slice(frame: Frame, node: ast.Slice) -> Operand:
    parts = (
        None if one is None else frame.visit(one) for one in (node.lower, node.upper, node.step)
    )
    return Slice(*parts)


def _subscript(frame: Frame, node: ast.Subscript) -> Operand:
    owner = frame.visit(node.value)
    index = frame.visit(node.slice)
    if isinstance(owner, Value):
        return subscript(frame.emit, owner, index)
    if isinstance(owner, str):
        owner = tuple(owner)
    if not is_tuple(owner):
        raise mistake(f"{show(owner)} has no items")
    items = owner
    if isinstance(index, Slice):
        bounds = (
            None if part is None else static_int(part, "each part of a slice")
            for part in (index.start, index.stop, index.step)
        )
        try:
            return items[slice(*bounds)]
        except ValueError as error:
            raise mistake(f"cannot slice {show(owner)}: {error}") from error
    position = static_int(index, "the index of a tuple")
    if not -len(items) <= position < len(items):
        raise mistake(f"the tuple has {len(items)} items, there is none at {position}")
    return items[position]


def _conditional(frame: Frame, node: ast.IfExp) -> Operand:
    condition = frame.visit(node.test)
    if not isinstance(condition, Value):
        return frame.visit(node.body if static_truth(condition) else node.orelse)
    emit = frame.emit
    truth = scalar_truth(frame, condition)
    with emit.into(Block()) as then:
        if_true = to_value(emit, frame.visit(node.body))
        emit(scf.Yield([if_true]))
    with emit.into(Block()) as orelse:
        if_false = to_value(emit, frame.visit(node.orelse))
        emit(scf.Yield([if_false]))
    if if_true.type != if_false.type:
        raise mistake(
            "both sides of a run-time `if … else` must have one type, "
            f"got {show(if_true)} and {show(if_false)}",
            remedy="cast one of them with .to(...), or use tl.where",
        )
    return emit(scf.If(truth, then, orelse)).outs[0]


def scalar_truth(frame: Frame, condition: Value) -> Value:
    """Return a run-time condition as an i1 scalar. Raises: CompileError for a larger tile."""
    if is_descriptor(condition):
        raise not_a_value(condition, "a condition")
    if isinstance(condition.type, TileType) and condition.type.num_elems != 1:
        raise mistake(
            f"the condition has {condition.type.num_elems} elements, {show(condition)}: "
            "it is not one truth value",
            remedy="reduce it (tl.max of it as integers, tl.sum), or use tl.where or a mask",
        )
    # A pointer is true if it is not null.
    return cast(frame.emit, to_scalar(frame.emit, condition), I1)


def static_truth(condition: Operand) -> bool:
    """Return the truth of a constant condition. Raises: CompileError if it has none."""
    if isinstance(condition, int | float | str | tuple) or condition is None:
        return bool(condition)  # pyright: ignore[reportUnknownArgumentType]
    raise not_a_value(condition, "a condition")


def _comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Operand:
    if len(node.generators) != 1:
        raise mistake("nested comprehensions are not part of the kernel language")
    generator = node.generators[0]
    items = frame.visit(generator.iter)
    if not is_tuple(items):
        raise mistake(f"a comprehension goes over a tuple, got {show(items)}")
    outer = dict(frame.values)
    made: list[Operand] = []
    for item in items:
        bind(frame, generator.target, item)
        if all(static_truth(frame.visit(test)) for test in generator.ifs):
            made.append(frame.visit(node.elt))
    frame.values = outer
    return tuple(made)


def bind(frame: Frame, target: ast.expr, value: Operand) -> None:
    """Give a value, as it is, to the names of an assignment's target."""
    if isinstance(target, ast.Name):
        frame.values[target.id] = value
        if isinstance(value, Value) and not value.hint:
            value.hint = target.id
    elif isinstance(target, ast.Tuple | ast.List):
        if not is_tuple(value):
            raise mistake(f"cannot unpack {show(value)}", remedy="only a tuple can be unpacked")
        items = value
        starred = [one for one in target.elts if isinstance(one, ast.Starred)]
        if starred:
            raise unsupported(starred[0], frame.loc(starred[0]))
        if len(items) != len(target.elts):
            raise mistake(f"expected {len(target.elts)} values to unpack, got {len(items)}")
        for one, item in zip(target.elts, items, strict=True):
            bind(frame, one, item)
    elif isinstance(target, ast.Subscript):
        raise mistake(
            "an item of a tile cannot be assigned",
            remedy="use tl.where to replace elements, or tl.store to write memory",
        )
    else:
        owner = frame.visit(target.value) if isinstance(target, ast.Attribute) else None
        if not isinstance(owner, Draft) or not isinstance(target, ast.Attribute):
            raise mistake(
                "an attribute cannot be assigned",
                remedy="assign to a variable",
                loc=frame.loc(target),
            )
        if frame.emit.depth != owner.depth:
            raise mistake(
                f"the field {target.attr!r} is set under a run-time condition",
                remedy="let a variable have the value, and set the field once",
            )
        owner.items[target.attr] = value


def _walrus(frame: Frame, node: ast.NamedExpr) -> Operand:
    value = decay(frame, frame.visit(node.value))
    bind(frame, node.target, value)
    return value


def decay(frame: Frame, value: Operand) -> Operand:
    """Return what a plain assignment keeps of a value: numbers become run-time scalars."""
    if is_tuple(value):
        if isinstance(value, Record) and value.kind.is_aggregate:
            return value
        return with_items(value, (decay(frame, item) for item in value))
    if isinstance(value, int | float):
        return to_value(frame.emit, value)
    return value


def _format(frame: Frame, node: ast.JoinedStr) -> Operand:
    parts: list[str] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            value = frame.visit(part.value)
            if isinstance(value, Value):
                raise mistake(f"an f-string takes constants, got a run-time {show(value)}")
            parts.append(text_of(value))
    return "".join(parts)


EXPRESSIONS = type_cast(
    "dict[type[ast.AST], ExpressionHandler]",
    {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.BoolOp: _boolean,
        ast.Compare: _compare,
        ast.Call: call,
        ast.Tuple: _tuple,
        ast.List: _tuple,
        ast.Slice: _slice,
        ast.Subscript: _subscript,
        ast.IfExp: _conditional,
        ast.ListComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.NamedExpr: _walrus,
        ast.JoinedStr: _format,
    },
)
