"""Functions that a constant names: manifests and live launches have no functions among their values.

    act, ops.act                    a function as the kernel's file knows it
    ops.py:act                      a function of another file
    make.<locals>.act               a function that is written in `make`
    triton.language.math.exp        a function of the language

A function that is written in another one sees the functions beside it. The variables of the outer function
are known to its calls only, so reading them is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from aotc.frontend.builtins import ALIASES, MODULES, module_member
from aotc.frontend.constants import unwrap
from aotc.frontend.emitter import mistake
from aotc.frontend.frame import Program
from aotc.frontend.resolve import find_definition, own_nodes
from aotc.frontend.scope import names_assigned_by
from aotc.frontend.source import SourceFile
from aotc.frontend.values import Builtin, Function, Module, Operand, Unbound, show

LOCALS = "<locals>"
_WORD = r"[^\W\d]\w*"
_NAME = re.compile(
    rf"(?:(?P<file>[^:]+\.py|<[^:<>]+>):)?(?P<name>{_WORD}(?:\.(?:{LOCALS}\.)?{_WORD})*)"
)


def is_function_name(text: str) -> bool:
    """Return whether a text is written like the name of a function."""
    return _NAME.fullmatch(text) is not None


def function_named(program: Program, file: SourceFile, text: str) -> Operand:
    """Return the function that a constant of a kernel in `file` names.

    Raises: CompileError if it names nothing, or something else.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise mistake(f"{text!r} cannot be called: it is no name of a function")
    path, name = match["file"], match["name"]
    if path:
        is_text = path.startswith("<")
        file = program.globals.open(path if is_text else str(Path(file.path).parent / path))
    if LOCALS in name:
        return _local_function(program, file, name)
    member = None if path else _language_member(name)
    if member is None:
        expression = ast.parse(name, mode="eval").body
        member = unwrap(program.host_frame(file).visit(expression))
    if not isinstance(member, Function | Builtin):
        raise mistake(f"{text!r} is called, so it must name a function; it is {show(member)}")
    return member


def _language_member(name: str) -> Operand:
    """Return what `triton.language.….name` is, None for other names."""
    module, _, member = name.rpartition(".")
    module = ALIASES.get(module, module)
    in_language = module.startswith(("triton.language", "aotc.language"))
    return module_member(Module(module), member) if in_language and module in MODULES else None


# ---- functions in functions --------------------------------------------------------------------


def _local_function(program: Program, file: SourceFile, qualname: str) -> Function:
    node = _definition(file, qualname.split("."))
    if node is None:
        raise mistake(f"{file.path} has no function {qualname!r}")
    return program.globals.describe(file, node, qualname)


def outer_names(program: Program, function: Function) -> dict[str, Operand]:
    """Return what a function in a function sees of the outer ones, by name."""
    if LOCALS not in function.qualname:
        return {}
    own = {*names_assigned_by(function.node.body)}
    reads = [
        node.id
        for statement in function.node.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id not in own
    ]
    seen: dict[str, Operand] = {}
    parts = function.qualname.split(".")
    for end in (index for index, part in enumerate(parts) if part == LOCALS):
        outer = _definition(function.file, parts[:end])
        bound = {} if outer is None else _bound_in(outer)
        for name in (name for name in dict.fromkeys(reads) if name in bound):
            reason = f"is a variable of {'.'.join(parts[:end])}, whose call is not known here"
            qualname = ".".join((*parts[: end + 1], name))
            is_function = isinstance(bound[name], ast.FunctionDef)
            seen[name] = (
                _local_function(program, function.file, qualname)
                if is_function
                else Unbound(reason)
            )
    return seen


def _definition(file: SourceFile, parts: Sequence[str]) -> ast.FunctionDef | None:
    return find_definition(file.tree.body, [part for part in parts if part != LOCALS])


def _bound_in(function: ast.FunctionDef) -> dict[str, ast.AST]:
    """Return the names that a function binds, and what binds each; inner functions are left out."""
    parameters = function.args
    listed = (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)
    starred = (one for one in (parameters.vararg, parameters.kwarg) if one is not None)
    bound: dict[str, ast.AST] = {one.arg: one for one in (*listed, *starred)}
    for node in own_nodes(function.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound[node.name] = node
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = node
    return bound
