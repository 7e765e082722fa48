"""Expressions: one handler for each kind of syntax node, in kernels and around them.

An expression yields a run-time value, or a constant computed by Python; see `values.py`.
`and`, `or`, `if … else` and comparisons short-circuit on constants. The skipped arm is never
evaluated and may contain unsupported code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Iterable, Sequence
from typing import cast as type_cast

from aotc.config import CONFIG_KEYS
from aotc.frontend.emitter import mistake
from aotc.frontend.language import operators
from aotc.frontend.language.constants import (
    constexpr_like,
    items_of,
    missing_key,
    not_known,
    truth_of,
    unwrap,
    without_constexpr,
)
from aotc.frontend.language.convert import cast, not_a_value, static_int, to_scalar, to_value
from aotc.frontend.language.language_classes import TupleType
from aotc.frontend.language.operators import BINARY, COMPARE, UNARY, BinaryOperator
from aotc.frontend.language.shapes import subscript
from aotc.frontend.python.calls import call
from aotc.frontend.python.frame import ExpressionHandler, Frame
from aotc.frontend.python.merge import merge_chosen
from aotc.frontend.python.names import visit_attribute, visit_name
from aotc.frontend.python.resolve import class_names
from aotc.frontend.python.unsupported import unsupported
from aotc.frontend.values import (
    Argument,
    Class,
    Closure,
    Config,
    Draft,
    External,
    Missing,
    Operand,
    Record,
    Slice,
    Unbound,
    is_descriptor,
    is_tuple,
    show,
    text_of,
    with_items,
)
from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import at
from aotc.ir.types import I1, PointerType, ScalarType, TileType


def _constant(frame: Frame, node: ast.Constant) -> Operand:
    if isinstance(node.value, bytes | complex) or node.value is ...:
        raise mistake(
            f"the constant {node.value!r} is not part of the language", loc=frame.loc(node)
        )
    return node.value


# ---- operators --------------------------------------------------------------------------------


def _binary(frame: Frame, node: ast.BinOp) -> Operand:
    # A long sum is a left-leaning tree: walk its spine in a loop, since recursion would
    # overflow Python's stack.
    spine: list[ast.BinOp] = [node]
    while isinstance(spine[-1].left, ast.BinOp):
        spine.append(spine[-1].left)
    result = frame.visit(spine[-1].left)
    for link in reversed(spine):
        right = frame.visit(link.right)
        op = BINARY.get(type(link.op))
        if op is None:
            raise unsupported(link.op)
        if link is node:
            result = _apply(frame, op, result, right)
        else:
            with at(frame.loc(link)):
                result = _apply(frame, op, result, right)
    return result


def _apply(frame: Frame, op: BinaryOperator, left: Operand, right: Operand) -> Operand:
    for operand in (left, right):
        if isinstance(operand, Unbound) or is_descriptor(operand):
            raise not_a_value(operand, "a value")
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
    """Combine operands: a constant ends the chain or drops out; run-time ones are all computed."""
    result: Value | None = None
    constant: Operand = None
    for part in parts:
        if isinstance(part, Value):
            result = part if result is None else combine(frame.emit, result, part)
            continue
        constant = part
        if truth_of(part) is stops_on:
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
    lhs, rhs = unwrap(left), unwrap(right)
    compare = COMPARE.get(type(op))
    if compare is not None and not _compares_unsupported_dtype(op, lhs, rhs):
        return _apply(frame, compare, left, right)
    if compare is not None:
        return isinstance(op, ast.NotEq)
    if isinstance(op, ast.Is | ast.IsNot):
        for part, other in ((lhs, rhs), (rhs, lhs)):
            if isinstance(part, Argument) and other is not None:
                raise not_known(part)
            if isinstance(part, External) and part.path.endswith((")", "]")):
                raise not_known(part)  # a call's result may be None
        same = lhs is rhs or (not isinstance(lhs, Value) and type(lhs) is type(rhs) and lhs == rhs)
        return same is isinstance(op, ast.Is)
    if isinstance(rhs, External) and rhs.path == "os.environ":
        frame.program.remark_unset(lhs)
        return isinstance(op, ast.NotIn)  # the environment is empty, for reproducible builds
    for part in (lhs, rhs):
        if isinstance(part, External):
            raise not_known(part)
    is_text = isinstance(lhs, str) and isinstance(rhs, str)
    if isinstance(lhs, Value) or not (is_text or isinstance(rhs, tuple | dict)):
        raise mistake(
            f"`in` looks for a constant in a tuple, a dictionary or a string, "
            f"got {show(left)} and {show(right)}"
        )
    return (lhs in rhs) is isinstance(op, ast.In)  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]


def _compares_unsupported_dtype(op: ast.cmpop, lhs: Operand, rhs: Operand) -> bool:
    """Return whether `==` or `!=` compares a dtype with an unsupported dtype: always unequal."""
    pair = (lhs, rhs)
    return isinstance(op, ast.Eq | ast.NotEq) and any(
        isinstance(unsupported_dtype, Missing) and isinstance(dtype, ScalarType | PointerType)
        for unsupported_dtype, dtype in (pair, pair[::-1])
    )


# ---- structure --------------------------------------------------------------------------------


def _tuple(frame: Frame, node: ast.Tuple) -> Operand:
    return tuple(frame.visit_items(node.elts))


def _list(frame: Frame, node: ast.List | ast.Set) -> Operand:
    return _list_operand(frame, frame.visit_items(node.elts))


def _list_operand(frame: Frame, items: list[Operand]) -> Operand:
    """Return a list on the host, a tuple in a kernel: kernels have no growing containers."""
    return tuple(items) if frame.in_kernel else items


def _dict(frame: Frame, node: ast.Dict) -> Operand:
    mapping: dict[Operand, Operand] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        item = frame.visit(value)
        if key is not None:
            mapping[_key(frame.visit(key))] = item
        elif isinstance(item, dict):
            mapping.update(type_cast("dict[Operand, Operand]", item))
        else:
            raise mistake(f"`**` unpacks a dictionary, got {show(item)}")
    return mapping


_DTYPE = re.compile(r"torch\.[a-z]+\d*\w*")
_DTYPE_ALIASES = {
    "torch.half": "torch.float16",
    "torch.float": "torch.float32",
    "torch.double": "torch.float64",
    "torch.short": "torch.int16",
    "torch.int": "torch.int32",
    "torch.long": "torch.int64",
}


def _key(key: Operand) -> Operand:
    key = unwrap(key)
    if isinstance(key, External) and _DTYPE.fullmatch(key.path):
        return External(_DTYPE_ALIASES.get(key.path, key.path))
    if isinstance(key, External):
        raise not_known(key)
    if not isinstance(key, int | float | str | tuple | ScalarType | None):
        raise mistake(f"a key must be a constant, got {show(key)}")
    return key  # pyright: ignore[reportUnknownVariableType]


def _lambda(frame: Frame, node: ast.Lambda) -> Operand:
    if frame.in_kernel:
        return Closure(frame.file, node, dict(frame.values), frame.function)
    return Closure(frame.file, node, frame.values)


def _slice(frame: Frame, node: ast.Slice) -> Operand:
    parts = (
        None if bound is None else frame.visit(bound)
        for bound in (node.lower, node.upper, node.step)
    )
    return Slice(*parts)


def _subscript(frame: Frame, node: ast.Subscript) -> Operand:
    owner = frame.visit(node.value)
    index = frame.visit(node.slice)
    if isinstance(owner, Value):
        return subscript(frame.emit, owner, index)
    if isinstance(owner, External) and isinstance(index, str) and not frame.in_kernel:
        return frame.program.globals.external(f"{owner.path}[{index!r}]")
    if isinstance(owner, Class) and isinstance(index, str) and not frame.in_kernel:
        if index not in class_names(owner.node):
            raise missing_key(index)
        return frame.program.globals.member(owner, index)
    return _item(owner, index)


def _kind_name(container: Operand) -> str:
    plain = without_constexpr(container)
    return "tuple" if is_tuple(plain) else type(plain).__name__


def _item(owner: Operand, index: Operand) -> Operand:
    """Index a constant or a tuple. Raises: CompileError for a missing item."""
    container_operand = without_constexpr(owner)
    if isinstance(container_operand, External):
        raise not_known(container_operand)
    if isinstance(container_operand, TupleType):
        container_operand = container_operand.types
    if not isinstance(container_operand, tuple | list | dict | str):
        raise mistake(f"{show(owner)} has no items")
    container = type_cast("dict[Operand, Operand]", container_operand)
    try:
        if isinstance(container_operand, dict):
            return constexpr_like([owner], container[_key(index)])
        if isinstance(index, Slice):
            bounds = (
                None if part is None else static_int(unwrap(part), "each part of a slice")
                for part in (index.start, index.stop, index.step)
            )
            return constexpr_like([owner], container[slice(*bounds)])
        position = static_int(unwrap(index), "the index of a tuple")
        if not -len(container) <= position < len(container):
            raise mistake(
                f"the {_kind_name(owner)} has {len(container)} items, there is none at {position}"
            )
        return constexpr_like([owner], container[position])
    except KeyError as error:
        raise missing_key(index) from error
    except ValueError as error:
        raise mistake(f"cannot slice {show(owner)}: {error}") from error


def _conditional(frame: Frame, node: ast.IfExp) -> Operand:
    condition = frame.visit(node.test)
    if not isinstance(condition, Value):
        return frame.visit(node.body if truth_of(condition) else node.orelse)
    truth = scalar_truth(frame, condition)
    sides: list[tuple[Block, Operand]] = []
    for part in (node.body, node.orelse):
        with frame.emit.into(Block()) as arm:
            sides.append((arm, frame.visit(part)))
    return merge_chosen(frame, truth, sides)


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


def _comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Operand:
    outer = dict(frame.values)
    items = [frame.visit(node.elt) for _ in _generate(frame, node.generators)]
    frame.values = outer
    return _list_operand(frame, items)


def _dict_comprehension(frame: Frame, node: ast.DictComp) -> Operand:
    outer = dict(frame.values)
    mapping = {
        _key(frame.visit(node.key)): frame.visit(node.value)
        for _ in _generate(frame, node.generators)
    }
    frame.values = outer
    return mapping


def _generate(frame: Frame, generators: Sequence[ast.comprehension]) -> Generator[None]:
    """Bind the variables of a comprehension to each combination passing its conditions."""
    if not generators:
        yield
        return
    first, rest = generators[0], generators[1:]
    for item in items_of(frame.visit(first.iter), "a comprehension goes over a tuple"):
        frame.count()
        bind(frame, first.target, item)
        if all(truth_of(_condition(frame, test)) for test in first.ifs):
            yield from _generate(frame, rest)


def _condition(frame: Frame, test: ast.expr) -> Operand:
    condition = frame.visit(test)
    if isinstance(condition, Value):
        raise not_a_value(condition, "a condition")
    return condition


def bind(frame: Frame, target: ast.expr, value: Operand) -> None:
    """Bind a value, unconverted, to the names of an assignment target."""
    if isinstance(target, ast.Name):
        frame.values[target.id] = value
        if isinstance(value, Value) and not value.hint:
            value.hint = target.id
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(frame, target, value)
    elif isinstance(target, ast.Subscript):
        owner = frame.visit(target.value)
        if not isinstance(owner, dict | list):
            raise mistake(
                f"an item of {show(owner)} cannot be assigned",
                remedy="use tl.where to replace elements, or tl.store to write memory",
            )
        container = type_cast("dict[Operand, Operand]", owner)
        try:
            container[_key(frame.visit(target.slice))] = value
        except (IndexError, TypeError) as error:
            raise mistake(f"cannot assign this item: {error}") from error
    else:
        owner = frame.visit(target.value) if isinstance(target, ast.Attribute) else None
        if isinstance(owner, Config) and isinstance(target, ast.Attribute):
            _set_option(owner, target.attr, value)
            return
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


def _unpack(frame: Frame, target: ast.Tuple | ast.List, value: Operand) -> None:
    starred = [
        position for position, element in enumerate(target.elts) if isinstance(element, ast.Starred)
    ]
    if starred and (frame.in_kernel or len(starred) > 1):
        raise unsupported(target.elts[starred[0]], frame.loc(target.elts[starred[0]]))
    items = list(items_of(value, "only a tuple can be unpacked"))
    if starred:
        first, num_after = starred[0], len(target.elts) - starred[0] - 1
        last = max(first, len(items) - num_after)
        items[first:last] = [items[first:last]]
    if len(items) != len(target.elts):
        minimum = "at least " * bool(starred)
        expected = len(target.elts) - len(starred)
        raise mistake(
            f"expected {minimum}{expected} values to unpack, got {len(items) - len(starred)}"
        )
    for element, item in zip(target.elts, items, strict=True):
        bind(frame, element.value if isinstance(element, ast.Starred) else element, item)


def _set_option(config: Config, name: str, value: Operand) -> None:
    if name == "kwargs" and isinstance(value, dict):
        config.kwargs.clear()
        config.kwargs.update(type_cast("dict[str, Operand]", value))
    elif name in CONFIG_KEYS:
        config.options[name] = value
    elif name != "pre_hook":
        raise mistake(f"a triton.Config has no attribute {name!r}")


def _yield(frame: Frame, node: ast.Yield | ast.YieldFrom) -> Operand:
    frame.count()
    frame.yielded = frame.yielded or []
    value = None if node.value is None else frame.visit(node.value)
    if isinstance(node, ast.YieldFrom):
        frame.yielded += items_of(value, "`yield from` goes over a list")
    else:
        frame.yielded.append(value)
    return None


def _walrus(frame: Frame, node: ast.NamedExpr) -> Operand:
    value = decay(frame, frame.visit(node.value))
    bind(frame, node.target, value)
    return value


def decay(frame: Frame, value: Operand) -> Operand:
    """Convert a value for plain assignment: in a kernel, numbers become run-time scalars."""
    if not frame.in_kernel:
        return value
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
            parts.append(_formatted(frame, part))
    return "".join(parts)


def _formatted(frame: Frame, part: ast.FormattedValue) -> str:
    value = unwrap(frame.visit(part.value))
    if isinstance(value, Value):
        raise mistake(f"an f-string takes constants, got a run-time {show(value)}")
    if isinstance(value, External):
        raise not_known(value)
    convert = {ord("r"): repr, ord("a"): ascii}.get(part.conversion)
    if convert is None and part.format_spec is None:
        return text_of(value)
    if not isinstance(value, int | float | str):  # a dtype in the message of a static_assert
        value, convert = text_of(value), None
    spec = "" if part.format_spec is None else frame.visit(part.format_spec)
    try:
        return format(value if convert is None else convert(value), str(spec))
    except ValueError as error:
        raise mistake(f"cannot format {show(value)}: {error}") from error


EXPRESSIONS = type_cast(
    "dict[type[ast.AST], ExpressionHandler]",
    {
        ast.Constant: _constant,
        ast.Name: visit_name,
        ast.Attribute: visit_attribute,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.BoolOp: _boolean,
        ast.Compare: _compare,
        ast.Call: call,
        ast.Tuple: _tuple,
        ast.List: _list,
        ast.Slice: _slice,
        ast.Subscript: _subscript,
        ast.IfExp: _conditional,
        ast.ListComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.NamedExpr: _walrus,
        ast.JoinedStr: _format,
        ast.Lambda: _lambda,
    },
)
"""The expressions of kernels."""

HOST_EXPRESSIONS = {
    **EXPRESSIONS,
    **type_cast(
        "dict[type[ast.AST], ExpressionHandler]",
        {
            ast.Set: _list,
            ast.Dict: _dict,
            ast.SetComp: _comprehension,
            ast.DictComp: _dict_comprehension,
            ast.Yield: _yield,
            ast.YieldFrom: _yield,
        },
    ),
}
"""The expressions of host code: also containers and function values."""
