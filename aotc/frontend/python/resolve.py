"""Collect the statements binding each name of a module.

Nothing is evaluated here. A module-level name may be bound several times, inside `if` and `try`.
All its bindings are listed with their guards, and `globals.py` decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from aotc.frontend.source import SourceFile
from aotc.python_source import without_collector

Guard = tuple[ast.expr, bool]

LOCALS = "<locals>"
_CACHED_MODULES = 512


@dataclass(frozen=True, eq=False)
class Binding:
    """Binding of a module-level name by a statement.

    `guards` are the enclosing tests with their required outcomes; `is_fallback` marks an `except`
    clause. For an import, `alias` is the part binding the name.
    """

    statement: ast.stmt
    guards: tuple[Guard, ...] = ()
    is_fallback: bool = False
    alias: ast.alias | None = None


@lru_cache(maxsize=_CACHED_MODULES)
def bindings(file: SourceFile) -> dict[str, tuple[Binding, ...]]:
    """Return the bindings of every module-level name, in source order; `*` holds star imports."""
    by_name: dict[str, list[Binding]] = {}
    with without_collector():
        for name, binding in _module_bindings(file.tree.body, (), is_fallback=False):
            by_name.setdefault(name, []).append(binding)
        return {name: tuple(listed) for name, listed in by_name.items()}


def _module_bindings(
    body: Sequence[ast.stmt], guards: tuple[Guard, ...], *, is_fallback: bool
) -> Iterator[tuple[str, Binding]]:
    for statement in body:
        if isinstance(statement, ast.If):
            for branch, outcome in ((statement.body, True), (statement.orelse, False)):
                inner = (*guards, (statement.test, outcome))
                yield from _module_bindings(branch, inner, is_fallback=is_fallback)
        elif isinstance(statement, ast.Try):
            for branch in (statement.body, statement.orelse, statement.finalbody):
                yield from _module_bindings(branch, guards, is_fallback=is_fallback)
            for handler in statement.handlers:
                yield from _module_bindings(handler.body, guards, is_fallback=True)
        elif isinstance(statement, ast.With):
            yield from _module_bindings(statement.body, guards, is_fallback=is_fallback)
        elif isinstance(statement, ast.For | ast.While):
            for name in dict.fromkeys(_bound_in_loop(statement)):
                yield name, Binding(statement, guards, is_fallback)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, Binding(statement, guards, is_fallback, alias)
        else:
            for name in bound_names(statement):
                yield name, Binding(statement, guards, is_fallback)


def _bound_in_loop(loop: ast.For | ast.While) -> Iterator[str]:
    """Yield the variables assigned in a loop, its target first."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


_CHANGING_METHODS = frozenset(
    (
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update"),
        *("add", "discard", "setdefault", "popitem", "appendleft"),
    )
)


@lru_cache(maxsize=_CACHED_MODULES)
def changes(file: SourceFile) -> dict[str, tuple[ast.stmt, ...]]:
    """Return the module statements changing a container in place, by name, in source order.

    These are calls such as `x.append(…)`, item assignments, and loops assigning to the name.
    """
    by_name: dict[str, list[ast.stmt]] = {}
    for statement in file.tree.body:
        is_definition = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        if not is_definition and _may_change(statement, file.lines):
            for name in dict.fromkeys(_changed_names(statement)):
                by_name.setdefault(name, []).append(statement)
    return {name: tuple(listed) for name, listed in by_name.items()}


def _may_change(statement: ast.stmt, lines: Sequence[str]) -> bool:
    """Return whether the text of a statement may change a container; most tables cannot.

    Scanning lines is much faster than walking the tree.
    """
    if isinstance(statement, ast.For | ast.While | ast.If | ast.With | ast.Try):
        return True
    end = statement.end_lineno or statement.lineno
    return any("[" in line or "." in line for line in lines[statement.lineno - 1 : end])


def _changed_names(statement: ast.stmt) -> Iterator[str]:
    in_loop = isinstance(statement, ast.For | ast.While)
    changed: list[str] = []
    loops: list[ast.For] = []
    for node in ast.walk(statement):
        owner: ast.expr | None = None
        loops += [node] if isinstance(node, ast.For) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value if node.func.attr in _CHANGING_METHODS else None
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            owner = node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            changed += [node.target.id] * in_loop
        if owner is not None:
            changed += _root_name(owner)
    yield from changed
    for loop in loops:
        # `for config in configs: config.num_warps = 8` changes the items of `configs`.
        if {*changed} & {*_bound_in_loop(loop)}:
            yield from (part.id for part in ast.walk(loop.iter) if isinstance(part, ast.Name))


def _root_name(node: ast.expr) -> list[str]:
    """Return the root variable of an expression such as `x["a"].b`, in a list, or none."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return [node.id] if isinstance(node, ast.Name) else []


@lru_cache(maxsize=_CACHED_MODULES)
def rebound_names(file: SourceFile) -> tuple[str, ...]:
    """Return the names declared `global` in functions: running the file may change them."""
    if not any("global " in line for line in file.lines):
        return ()
    return tuple(
        name for node in ast.walk(file.tree) if isinstance(node, ast.Global) for name in node.names
    )


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names bound by one simple statement or definition."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        return
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
            continue
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def class_statement(node: ast.ClassDef, name: str) -> ast.stmt | None:
    """Return the last statement of a class defining a name, or None."""
    for statement in reversed(node.body):
        if isinstance(statement, ast.AnnAssign) and statement.value is None:
            continue
        if name in bound_names(statement):
            return statement
    return None


def class_names(node: ast.ClassDef) -> list[str]:
    """Return the names defined in a class."""
    return [name for statement in node.body for name in bound_names(statement)]


def class_fields(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """Return the declared fields of a class, `name: type`, with their defaults."""
    return {
        statement.target.id: statement.value
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


# ---- definitions -----------------------------------------------------------------------------


def find_definition(body: Sequence[ast.stmt], path: Sequence[str]) -> ast.FunctionDef | None:
    """Return the function at a dotted path through classes and functions, or None.

    The last definition wins, as it does in Python.
    """
    function: ast.FunctionDef | None = None
    for statement in body:
        for branch in _branches(statement):
            function = find_definition(branch, path) or function
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef) or statement.name != path[0]:
            continue
        if len(path) > 1:
            function = find_definition(statement.body, path[1:]) or function
        elif isinstance(statement, ast.FunctionDef):
            function = statement
    return function


def _branches(statement: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(statement, ast.If):
        return [statement.orelse, statement.body]
    if isinstance(statement, ast.Try):
        return [*(handler.body for handler in statement.handlers), statement.body]
    if isinstance(statement, ast.With):
        return [statement.body]
    return []


def function_names(file: SourceFile) -> list[str]:
    """Return the module-level functions of a file."""
    return [
        name
        for name, listed in bindings(file).items()
        if any(isinstance(binding.statement, ast.FunctionDef) for binding in listed)
    ]


def own_nodes(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, nested functions and classes excluded."""
    left = [*reversed(body)]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            left += reversed([*ast.iter_child_nodes(node)])


# ---- decorators -------------------------------------------------------------------------------


def dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` of a name or attribute, called or not, and "" for anything else."""
    if isinstance(node, ast.Call):
        return dotted_name(node.func)
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def decorator_names(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """Return the last part of each decorator's name: `jit` for `@triton.jit`."""
    return [dotted_name(decorator).rpartition(".")[2] for decorator in node.decorator_list]


def decorator_call(node: ast.FunctionDef, name: str) -> ast.Call | None:
    """Return the first decorator `@….name(…)`, or None."""
    return next(iter(decorator_calls(node, name)), None)


def decorator_calls(node: ast.FunctionDef, name: str) -> list[ast.Call]:
    """Return the decorators `@….name(…)`, the outermost first."""
    return [
        decorator
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and dotted_name(decorator).rpartition(".")[2] == name
    ]
