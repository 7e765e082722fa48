"""Queries on syntax nodes of kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def is_loop(node: ast.stmt) -> bool:
    """Return whether a statement is a rolled loop."""
    if isinstance(node, ast.For):
        called = node.iter.func if isinstance(node.iter, ast.Call) else node.iter
        return not dotted_path(called).endswith("static_range")
    return isinstance(node, ast.While)


def is_none(node: ast.expr) -> bool:
    """Return whether a node is `None`."""
    return isinstance(node, ast.Constant) and node.value is None


def is_integer_literal(node: ast.expr) -> bool:
    """Return whether a node is an integer literal."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def is_negative(node: ast.expr) -> bool:
    """Return whether a node is a negative integer literal, such as an ignore index."""
    is_minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return is_minus and isinstance(node, ast.UnaryOp) and is_integer_literal(node.operand)


def dotted_path(node: ast.expr) -> str:
    """Return `a.b.c` of names and attributes, and "" for anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted_path(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def parameter_names(node: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names of all parameters, in order."""
    return tuple(parameter.arg for parameter in parameters(node))


def parameters(node: ast.FunctionDef) -> Iterator[ast.arg]:
    """Yield all parameters, in order."""
    yield from (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)


def defaults(node: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the defaults of parameters."""
    positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    by_name = dict(zip(reversed(positional), reversed(node.args.defaults), strict=False))
    for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None:
            by_name[arg.arg] = default
    return by_name
