"""Values for the variables a kernel captures from enclosing functions (`[kernel.captures]`).

If all calls of the enclosing function in the file agree on a value, it is taken. The others are
guessed like `tl.constexpr` parameters, since a kernel uses both alike.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from aotc.frontend.python.resolve import dotted_name
from aotc.frontend.source import SourceFile
from aotc.frontend.survey.support import Survey
from aotc.frontend.values import Function as SourceFunction
from aotc.ir.diagnostics import CompileError
from aotc.package.init.constants import Constants
from aotc.package.init.draft import listed
from aotc.package.init.launches import Host
from aotc.package.init.subject import Line, todo
from aotc.package.manifest.parameters import Function, Parameter
from aotc.package.manifest.toml_text import toml


def with_captures(node: ast.FunctionDef, captures: Collection[str]) -> ast.FunctionDef:
    """Return a copy of a function with its captures as constexpr parameters."""
    extended = copy.copy(node)
    extended.args = copy.copy(node.args)
    annotation = ast.Attribute(ast.Name("tl", ast.Load()), "constexpr", ast.Load())
    names = [name for name in captures if name not in {arg.arg for arg in node.args.kwonlyargs}]
    extended.args.kwonlyargs = [
        *node.args.kwonlyargs,
        *(ast.arg(name, annotation) for name in names),
    ]
    extended.args.kw_defaults = [*node.args.kw_defaults, *(None for _ in names)]
    return ast.fix_missing_locations(extended)


def with_constants(function: Function, captures: Collection[str]) -> Function:
    """Return a function's record with its captures added to the constants."""
    more = tuple(Parameter(name, is_constexpr=True, has_default=False) for name in captures)
    return replace(function, parameters=(*function.parameters, *more))


def passed_captures(
    survey: Survey, file: SourceFile, kernel: str, captures: Collection[str]
) -> dict[str, Line]:
    """Return lines for captured parameters with a known value, from calls or a default."""
    outer = [*_outer_functions(file.tree, kernel.split(".")[:-1])]
    lines: dict[str, Line] = {}
    for name in captures:
        node = next(
            (function for function in reversed(outer) if name in _parameters(function)), None
        )
        values = [] if node is None else _values(survey, file, node, name)
        if len(values) == 1:
            lines[name] = Line(values[0], is_given=True)
        elif values:
            lines[name] = todo(values[0], f"callers pass {', '.join(values)}: a table for each")
    return lines


def move_captures(constants: Constants, captures: Mapping[str, Line | None]) -> dict[str, Line]:
    """Move the lines of captures out of `constants`, with one value each."""
    capture_lines: dict[str, Line] = {}
    for name, passed in captures.items():
        guessed: Line | None = None
        for lines in (constants.constants, constants.choices, constants.configs):
            guessed = lines.pop(name, None) or guessed
        if passed is not None:
            capture_lines[name] = passed
        elif guessed is not None:
            values = listed(guessed)
            value = toml(values[0]) if values else guessed.value
            capture_lines[name] = todo(value, "what the function around the kernel has")
    constants.where[:] = [
        condition
        for condition in constants.where
        if not any(name in condition.split() for name in captures)
    ]
    return capture_lines


def _outer_functions(tree: ast.Module, path: list[str]) -> Iterator[ast.FunctionDef]:
    body: list[ast.stmt] = tree.body
    for name in path:
        inside = (child for statement in body for child in ast.walk(statement))
        node = next(
            (
                child
                for child in inside
                if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == name
            ),
            None,
        )
        if node is None:
            return
        body = node.body
        if isinstance(node, ast.FunctionDef):
            yield node


def _parameters(node: ast.FunctionDef) -> list[str]:
    args = node.args
    return [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def _values(survey: Survey, file: SourceFile, node: ast.FunctionDef, name: str) -> list[str]:
    """Return the values calls pass for a parameter, as TOML; none if any value varies."""
    names = [parameter for parameter in _parameters(node) if parameter not in ("self", "cls")]
    default = _default(node, name)
    passed: list[ast.expr] = []
    for call in (child for child in ast.walk(file.tree) if isinstance(child, ast.Call)):
        if dotted_name(call.func).rpartition(".")[2] != node.name:
            continue
        arguments = dict(zip(names, call.args, strict=False))
        arguments |= {
            keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None
        }
        value = arguments.get(name, default)
        if value is None:
            return []
        passed.append(value)
    if not passed and default is not None:
        passed.append(default)
    values = [_value(survey, file, argument) for argument in passed]
    return list(dict.fromkeys(values)) if all(values) else []


def _default(node: ast.FunctionDef, name: str) -> ast.expr | None:
    args = node.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    defaults = dict(zip(reversed(positional), reversed(args.defaults), strict=False))
    keywords = zip((arg.arg for arg in args.kwonlyargs), args.kw_defaults, strict=True)
    return {**defaults, **{key: default for key, default in keywords if default is not None}}.get(
        name
    )


def _value(survey: Survey, file: SourceFile, node: ast.expr) -> str:
    """Return an expression's value as TOML; "" if it varies or TOML cannot express it."""
    try:
        value = Host(survey, file, None).literal(node)
    except LookupError:
        return _function_name(survey, file, node)
    return toml("None" if value is None else value)


def _function_name(survey: Survey, file: SourceFile, node: ast.expr) -> str:
    try:
        value = survey.host_frame(file).visit(node)
    except CompileError:
        return ""
    is_own = isinstance(value, SourceFunction) and value.is_jit and "." not in value.qualname
    return toml(ast.unparse(node)) if is_own else ""
