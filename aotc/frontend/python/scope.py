"""Query names and returns of a function from syntax alone.

A loop carries the variables assigned in its body and defined before it. The source shows them, so
no body is translated twice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

_CACHED_NODES = 8192


def assigned_names(node: ast.AST) -> tuple[str, ...]:
    """Return the names assigned in `node`, nested statements included, in source order."""
    # A chain of `elif` nests as deep as it is long; filling the cache from the inside out
    # avoids deep recursion.
    for link in reversed(_elif_chain(node)):
        _assigned_names(link)
    return _assigned_names(node)


def _elif_chain(node: ast.AST) -> list[ast.If]:
    """Return the links of a chain after the first."""
    links: list[ast.If] = []
    while isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        links.append(node)
    return links


@lru_cache(maxsize=_CACHED_NODES)
def _assigned_names(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    return names_assigned_by(ast.iter_child_nodes(node))


def names_assigned_by(nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    """Return the names assigned in `nodes`, in source order."""
    return tuple(dict.fromkeys(name for node in nodes for name in assigned_names(node)))


def has_return(node: ast.stmt) -> bool:
    """Return whether `node` is or contains a `return`."""
    for link in reversed(_elif_chain(node)):
        _has_return(link)
    return _has_return(node)


@lru_cache(maxsize=_CACHED_NODES)
def _has_return(node: ast.stmt) -> bool:
    return isinstance(node, ast.Return) or any(has_return(statement) for statement in nested(node))


def nested(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements directly inside a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, ())


def first_return(nodes: Iterable[ast.stmt]) -> ast.Return | None:
    """Return the first `return` in `nodes`, nested statements included."""
    for node in nodes:
        statement = node if isinstance(node, ast.Return) else first_return(nested(node))
        if statement is not None:
            return statement
    return None


def is_docstring(node: ast.stmt) -> bool:
    """Return whether a statement is a bare string expression."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_constexpr_annotation(node: ast.expr | None) -> bool:
    """Return whether an annotation is `tl.constexpr`, also as a string."""
    return _is_annotation(node, "constexpr")


def is_const_annotation(node: ast.expr | None) -> bool:
    """Return whether an annotation is `tl.const`: a pointer to read-only memory."""
    return _is_annotation(node, "const")


def _is_annotation(node: ast.expr | None, name: str) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2] == name
    if isinstance(node, ast.Subscript):
        return _is_annotation(node.value, name)
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.Name) and node.id == name
