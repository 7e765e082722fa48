"""Statements: one handler for each kind of syntax node, in kernels and around them.

A handler also gets the statements after its own. Branches are in `branches.py`, loops in
`loops.py`. Host conditions are constant, so a `return`, `break` or `continue` simply ends the path.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import cast as type_cast

from aotc.frontend.emitter import mistake
from aotc.frontend.language.constants import MissingKeyError, missing_key, truth_of
from aotc.frontend.language.convert import not_a_value
from aotc.frontend.language.operators import BINARY, BinaryOperator, binary
from aotc.frontend.language.program import device_assert
from aotc.frontend.python.branches import translate_if
from aotc.frontend.python.expressions import bind, decay
from aotc.frontend.python.frame import Bind, Flow, Frame, Item, LoopExit, Returned, StatementHandler
from aotc.frontend.python.loops import run_while, translate_for, translate_while
from aotc.frontend.python.scope import (
    is_constexpr_annotation,
    is_docstring,
)
from aotc.frontend.python.unsupported import unsupported
from aotc.frontend.values import Closure, Operand, Unbound, is_tuple, show
from aotc.ir.core import Value

# ---- assignment -------------------------------------------------------------------------------


def _assign(frame: Frame, node: ast.Assign, _rest: Sequence[Item]) -> Flow:
    value = frame.visit(node.value)
    for target in node.targets:
        _assign_to(frame, target, value)
    return None


def _assign_to(frame: Frame, target: ast.expr, value: Operand) -> None:
    bind(frame, target, _converted(frame, target, value))


def _converted(frame: Frame, target: ast.expr, value: Operand) -> Operand:
    """Convert a value for assignment; a variable declared constexpr takes it unchanged."""
    if isinstance(target, ast.Attribute):
        return value  # fields of an aggregate keep constants
    if isinstance(target, ast.Name) and target.id in frame.declared:
        del frame.declared[target.id]
        return value
    if (
        frame.declared
        and isinstance(target, ast.Tuple | ast.List)
        and is_tuple(value)
        and len(target.elts) == len(value)
    ):
        return tuple(map(partial(_converted, frame), target.elts, value))
    return decay(frame, value)


def _annotated_assign(frame: Frame, node: ast.AnnAssign, _rest: Sequence[Item]) -> Flow:
    is_constexpr = frame.in_kernel and is_constexpr_annotation(node.annotation)
    if not is_constexpr or isinstance(node.target, ast.Attribute):
        if node.value is not None:
            _assign_to(frame, node.target, frame.visit(node.value))
        return None
    if not isinstance(node.target, ast.Name):
        raise mistake("only a variable can be a constexpr")
    name = node.target.id
    if node.value is None:
        frame.declared[name] = None
        return None
    defined = name in frame.values and not isinstance(frame.values[name], Unbound)
    # An unrolled loop repeats the same definition.
    if defined and frame.constexprs.get(name) is not node:
        raise mistake(f"{name} is already defined, and a constexpr cannot be reassigned")
    frame.constexprs[name] = node
    frame.values[name] = frame.visit(node.value)
    return None


def _augmented_assign(frame: Frame, node: ast.AugAssign, _rest: Sequence[Item]) -> Flow:
    if not frame.in_kernel and not isinstance(node.target, ast.Name):
        _augmented_item(frame, node, node.target)
        return None
    target, op = augmented(node)
    left = frame.visit(ast.Name(target.id, ast.Load(), **_position(target)))
    right = frame.visit(node.value)
    for operand in (left, right):
        if isinstance(operand, Unbound):
            raise not_a_value(operand, "a value")
    bind(frame, target, decay(frame, binary(frame.emit, op, left, right)))
    return None


def _augmented_item(
    frame: Frame, node: ast.AugAssign, target: ast.Attribute | ast.Subscript
) -> None:
    """Change an item of a container, or an option of a config."""
    op = BINARY.get(type(node.op))
    if op is None:
        raise unsupported(node.op)
    read = copy(target)
    read.ctx = ast.Load()
    value = binary(frame.emit, op, frame.visit(read), frame.visit(node.value))
    bind(frame, target, value)


def augmented(node: ast.AugAssign) -> tuple[ast.Name, BinaryOperator]:
    """Return the variable and the operator of `x += y` and its like. Raises: CompileError."""
    if not isinstance(node.target, ast.Name):
        raise mistake("only a variable can be the target of this assignment")
    op = BINARY.get(type(node.op))
    if op is None:
        raise unsupported(node.op)
    return node.target, op


def _position(node: ast.expr) -> dict[str, int]:
    return {
        "lineno": node.lineno,
        "col_offset": node.col_offset,
        "end_lineno": node.end_lineno or node.lineno,
        "end_col_offset": node.end_col_offset or node.col_offset + 1,
    }


def _bind(frame: Frame, item: Bind, _rest: Sequence[Item]) -> Flow:
    bind(frame, item.target, item.value)
    return None


# ---- expressions and checks -------------------------------------------------------------------


def _expression(frame: Frame, node: ast.Expr, _rest: Sequence[Item]) -> Flow:
    if is_docstring(node):
        return None
    frame.visit(node.value)
    return None


def _assert(frame: Frame, node: ast.Assert, _rest: Sequence[Item]) -> Flow:
    message = "" if node.msg is None else frame.visit(node.msg)
    condition = frame.visit(node.test)
    is_true = condition if isinstance(condition, Value) else truth_of(condition)
    device_assert(frame.emit, is_true, message)
    return None


def _pass(frame: Frame, node: ast.Pass, _rest: Sequence[Item]) -> Flow:
    del frame, node


def _raise(frame: Frame, node: ast.Raise, _rest: Sequence[Item]) -> Flow:
    del frame
    detail = "" if node.exc is None else f": {ast.unparse(node.exc)}"
    raise mistake(f"this `raise` is reached with the given types and constants{detail}")


# ---- returns ---------------------------------------------------------------------


def _return(frame: Frame, node: ast.Return, _rest: Sequence[Item]) -> Flow:
    if frame.loop_depth:
        raise mistake(
            "a `return` cannot leave a run-time loop",
            remedy="set a flag in the loop and return after it",
        )
    value = None if node.value is None else frame.visit(node.value)
    if value is not None and frame.in_kernel and len(frame.program.stack) == 1:
        raise mistake(
            f"a kernel returns nothing, {frame.name} returns {show(value)}",
            remedy="store results with tl.store",
        )
    return Returned(value)


# ---- host code --------------------------------------------------------------------------------


def _try(frame: Frame, node: ast.Try, _rest: Sequence[Item]) -> Flow:
    """Run a `try`. Only `KeyError` can be caught; unsupported code is an error anyway."""
    handler = next((clause for clause in node.handlers if _catches_missing_keys(clause)), None)
    try:
        flow = frame.run([*node.body, *node.orelse])
    except MissingKeyError:
        if handler is None:
            raise
        flow = frame.run(handler.body)
    return flow or frame.run(node.finalbody)


def _catches_missing_keys(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None
        or (isinstance(kind, ast.Name) and kind.id in ("KeyError", "LookupError", "Exception"))
        for kind in kinds
    )


def _define(frame: Frame, node: ast.FunctionDef, _rest: Sequence[Item]) -> Flow:
    frame.values[node.name] = Closure(frame.file, node, frame.values)
    return None


def _import(frame: Frame, node: ast.Import | ast.ImportFrom, _rest: Sequence[Item]) -> Flow:
    """Bind the names of an import inside a function."""
    for alias in node.names:
        if alias.name != "*":
            name = alias.asname or alias.name.partition(".")[0]
            frame.values[name] = frame.program.globals.imported(frame.file, node, alias)
    return None


def _delete(frame: Frame, node: ast.Delete, _rest: Sequence[Item]) -> Flow:
    for target in node.targets:
        if isinstance(target, ast.Name):
            frame.values[target.id] = Unbound("was deleted")
            continue
        owner = frame.visit(target.value) if isinstance(target, ast.Subscript) else None
        if not isinstance(target, ast.Subscript) or not isinstance(owner, dict | list):
            raise unsupported(node, frame.loc(node))
        index = frame.visit(target.slice)
        try:
            del type_cast("dict[Operand, Operand]", owner)[index]
        except (KeyError, IndexError, TypeError) as error:
            raise missing_key(index) from error
    return None


def _break(frame: Frame, node: ast.Break, _rest: Sequence[Item]) -> Flow:
    del frame, node
    return LoopExit.BREAK


def _continue(frame: Frame, node: ast.Continue, _rest: Sequence[Item]) -> Flow:
    del frame, node
    return LoopExit.CONTINUE


STATEMENTS = type_cast(
    "dict[type[object], StatementHandler]",
    {
        ast.Assign: _assign,
        ast.AnnAssign: _annotated_assign,
        ast.AugAssign: _augmented_assign,
        ast.Expr: _expression,
        ast.Assert: _assert,
        ast.Pass: _pass,
        ast.Raise: _raise,
        ast.Return: _return,
        ast.If: translate_if,
        ast.For: translate_for,
        ast.While: translate_while,
        Bind: _bind,
    },
)
"""The statements of kernels."""

HOST_STATEMENTS = {
    **STATEMENTS,
    **type_cast(
        "dict[type[object], StatementHandler]",
        {
            ast.Break: _break,
            ast.Continue: _continue,
            ast.FunctionDef: _define,
            ast.Delete: _delete,
            ast.Import: _import,
            ast.ImportFrom: _import,
            ast.Try: _try,
            ast.While: run_while,
        },
    ),
}
"""The statements of host code; its loops run during evaluation."""
