"""Variables of the functions around a kernel, which `[kernel.captures]` gives.

What calls of such a function in the same file agree on is a value of the source. The others are guessed
as if they were `tl.constexpr` parameters, since a kernel uses them alike.
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
    """Return a function that takes what it captures as constants."""
    made = copy.copy(node)
    made.args = copy.copy(node.args)
    annotation = ast.Attribute(ast.Name("tl", ast.Load()), "constexpr", ast.Load())
    names = [one for one in captures if one not in {each.arg for each in node.args.kwonlyargs}]
    made.args.kwonlyargs = [*node.args.kwonlyargs, *(ast.arg(one, annotation) for one in names)]
    made.args.kw_defaults = [*node.args.kw_defaults, *(None for _ in names)]
    return ast.fix_missing_locations(made)


def with_constants(function: Function, captures: Collection[str]) -> Function:
    """Return a function's record with what it captures among its constants."""
    more = tuple(Parameter(name, is_constexpr=True, has_default=False) for name in captures)
    return replace(function, parameters=(*function.parameters, *more))


def passed_captures(
    survey: Survey, file: SourceFile, kernel: str, captures: Collection[str]
) -> dict[str, Line]:
    """Return the captured parameters whose value calls in the file, or a default, tell."""
    outer = [*_outer_functions(file.tree, kernel.split(".")[:-1])]
    found: dict[str, Line] = {}
    for name in captures:
        node = next((one for one in reversed(outer) if name in _parameters(one)), None)
        values = [] if node is None else _values(survey, file, node, name)
        if len(values) == 1:
            found[name] = Line(values[0], is_given=True)
        elif values:
            found[name] = todo(values[0], f"callers pass {', '.join(values)}: a table for each")
    return found


def move_captures(constants: Constants, captures: Mapping[str, Line | None]) -> dict[str, Line]:
    """Return the lines of captures; the guesses for them, of one value each, are taken out."""
    made: dict[str, Line] = {}
    for name, given in captures.items():
        guessed: Line | None = None
        for lines in (constants.constants, constants.choices, constants.configs):
            guessed = lines.pop(name, None) or guessed
        if given is not None:
            made[name] = given
        elif guessed is not None:
            values = listed(guessed)
            value = toml(values[0]) if values else guessed.value
            made[name] = todo(value, "what the function around the kernel has")
    constants.where[:] = [
        one for one in constants.where if not any(name in one.split() for name in captures)
    ]
    return made


def _outer_functions(tree: ast.Module, path: list[str]) -> Iterator[ast.FunctionDef]:
    body: list[ast.stmt] = tree.body
    for name in path:
        inside = (one for statement in body for one in ast.walk(statement))
        node = next(
            (
                one
                for one in inside
                if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name
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
    return [one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def _values(survey: Survey, file: SourceFile, node: ast.FunctionDef, name: str) -> list[str]:
    """Return what calls pass for a parameter, as TOML; nothing if one of them passes what varies."""
    names = [one for one in _parameters(node) if one not in ("self", "cls")]
    default = _default(node, name)
    passed: list[ast.expr] = []
    for call in (one for one in ast.walk(file.tree) if isinstance(one, ast.Call)):
        if dotted_name(call.func).rpartition(".")[2] != node.name:
            continue
        given = dict(zip(names, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
        value = given.get(name, default)
        if value is None:
            return []
        passed.append(value)
    if not passed and default is not None:
        passed.append(default)
    values = [_value(survey, file, one) for one in passed]
    return list(dict.fromkeys(values)) if all(values) else []


def _default(node: ast.FunctionDef, name: str) -> ast.expr | None:
    args = node.args
    positional = [one.arg for one in (*args.posonlyargs, *args.args)]
    defaults = dict(zip(reversed(positional), reversed(args.defaults), strict=False))
    keywords = zip((one.arg for one in args.kwonlyargs), args.kw_defaults, strict=True)
    return {**defaults, **{key: one for key, one in keywords if one is not None}}.get(name)


def _value(survey: Survey, file: SourceFile, node: ast.expr) -> str:
    """Return an expression's value as TOML, or "" if it varies or no manifest can say it."""
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
