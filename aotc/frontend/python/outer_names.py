"""Resolve names a nested function reads from outer functions.

These are sibling functions, imports and variables. A variable is known if the manifest captures
it, or if its only assignment reads constants and captured variables. All others depend on a call
of the outer function.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from aotc.frontend.language.constants import unwrap
from aotc.frontend.python.frame import Program
from aotc.frontend.python.resolve import LOCALS, bound_names, find_definition, own_nodes
from aotc.frontend.python.scope import names_assigned_by
from aotc.frontend.source import SourceFile
from aotc.frontend.values import Function, Operand, Unbound
from aotc.ir.diagnostics import CompileError


def plain_parts(qualname: str) -> tuple[str, ...]:
    """Return the parts of a dotted name, with or without `<locals>`."""
    return tuple(part for part in qualname.split(".") if part != LOCALS)


def outer_names(program: Program, function: Function) -> dict[str, Operand]:
    """Return the outer variables read by a nested function, by name."""
    scopes = _scopes(program, function)
    if not scopes:
        return {}
    local_names = {*parameter_names(function.node.args), *names_assigned_by(function.node.body)}
    reads = [
        node.id
        for statement in function.node.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id not in local_names
    ]
    values: dict[str, Operand] = {}
    for name in dict.fromkeys(reads):
        for depth, scope in enumerate(scopes):
            if name in scope.bound:
                values[name] = unwrap(_value(scopes[depth:], name, ()))
                break
    return values


def parameter_names(parameters: ast.arguments) -> list[str]:
    """Return the names of parameters, `*args` and `**kwargs` among them."""
    named = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)
    starred = (
        parameter for parameter in (parameters.vararg, parameters.kwarg) if parameter is not None
    )
    return [parameter.arg for parameter in (*named, *starred)]


@dataclass(frozen=True)
class _Scope:
    """A function around another, by its dotted name."""

    program: Program
    file: SourceFile
    node: ast.FunctionDef
    parts: tuple[str, ...]
    prefix: str

    @cached_property
    def captured(self) -> Mapping[str, Operand]:
        captures = self.program.captures
        holds = captures is not None and captures.hold_in(self.file, self.parts)
        return captures.values if captures is not None and holds else {}

    @cached_property
    def bound(self) -> dict[str, ast.AST]:
        return _bound_in(self.node)

    @cached_property
    def assignments(self) -> dict[str, ast.stmt]:
        """The sole binding statement of each name bound once."""
        statements: dict[str, list[ast.stmt]] = {}
        for statement in self.node.body:
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            for name in _imported(statement) if is_import else bound_names(statement):
                statements.setdefault(name, []).append(statement)
        stores = [
            node.id
            for node in own_nodes(self.node.body)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        sole = {
            name: bound_statements[0]
            for name, bound_statements in statements.items()
            if len(bound_statements) == 1
        }
        parameters = parameter_names(self.node.args)
        return {
            name: statement
            for name, statement in sole.items()
            if stores.count(name) <= 1 and name not in parameters
        }


def _imported(statement: ast.stmt) -> list[str]:
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]


def _scopes(program: Program, function: Function) -> list[_Scope]:
    """Return the functions around a function, the innermost first."""
    if "." not in function.qualname:
        return []
    scopes: list[_Scope] = []
    name_parts = function.qualname.split(".")
    for end in range(len(name_parts) - 1, 0, -1):
        parts = plain_parts(".".join(name_parts[:end]))
        node = (
            None
            if name_parts[end - 1] == LOCALS
            else find_definition(function.file.tree.body, parts)
        )
        if node is None:
            continue
        prefix = ".".join(name_parts[: end + 1] if name_parts[end] == LOCALS else name_parts[:end])
        scopes.append(_Scope(program, function.file, node, parts, prefix))
    return scopes


def _value(scopes: Sequence[_Scope], name: str, waiting: tuple[str, ...]) -> Operand:
    """Evaluate a variable of the first scope; `waiting` are the names under evaluation."""
    scope = scopes[0]
    bound = scope.bound[name]
    if isinstance(bound, ast.FunctionDef):
        return scope.program.globals.describe(scope.file, bound, f"{scope.prefix}.{name}")
    if name in scope.captured:
        return scope.captured[name]
    unknown = Unbound(
        f"is a variable of {'.'.join(scope.parts)}, whose value is not known here",
        remedy=f"give it in the manifest, as `{name} = …` in [kernel.captures], or pass it",
    )
    statement = scope.assignments.get(name)
    if statement is None or name in waiting:
        return unknown
    frame = scope.program.host_frame(scope.file, _outer_reads(scopes, statement, (*waiting, name)))
    try:
        return frame.assigned(statement, name)
    except CompileError:
        return unknown


def _outer_reads(
    scopes: Sequence[_Scope], statement: ast.stmt, waiting: tuple[str, ...]
) -> dict[str, Operand]:
    """Return the outer variables read by an assignment of the first scope."""
    values: dict[str, Operand] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for depth, scope in enumerate(scopes):
                if node.id in scope.bound:
                    values.setdefault(node.id, _value(scopes[depth:], node.id, waiting))
                    break
    return values


def _bound_in(function: ast.FunctionDef) -> dict[str, ast.AST]:
    """Return the binding node of each name in a function, inner functions excluded."""
    bound: dict[str, ast.AST] = dict.fromkeys(parameter_names(function.args), function.args)
    for node in own_nodes(function.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= dict.fromkeys(_imported(node), node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = node
    return bound
