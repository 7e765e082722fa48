"""Resolve functions named by string constants.

Values in manifests and live launches cannot be functions, so a string names one:

    act, ops.act                    a function as the kernel's file knows it
    ops.py:act                      a function of another file
    make.<locals>.act               a function nested in `make`
    triton.language.math.exp        a function of the language

`outer_names` resolves the variables a nested function reads from outer functions.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from aotc.frontend.emitter import mistake
from aotc.frontend.language.builtins import ALIASES, MODULES, module_member
from aotc.frontend.language.constants import unwrap
from aotc.frontend.python.frame import Program
from aotc.frontend.python.resolve import LOCALS, find_definition
from aotc.frontend.source import SourceFile
from aotc.frontend.values import Builtin, Function, Module, Operand, show

_WORD = r"[^\W\d]\w*"
_NAME = re.compile(
    rf"(?:(?P<file>[^:]+\.py|<[^:<>]+>):)?(?P<name>{_WORD}(?:\.(?:{LOCALS}\.)?{_WORD})*)"
)


def is_function_name(text: str) -> bool:
    """Return whether a text has the form of a function name."""
    return _NAME.fullmatch(text) is not None


def function_named(program: Program, file: SourceFile, text: str) -> Operand:
    """Return the function named by a constant of a kernel in `file`.

    Raises: CompileError if the name is undefined or no function.
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
    """Return the language's member `triton.language.….name`; None for other names."""
    module, _, member = name.rpartition(".")
    module = ALIASES.get(module, module)
    in_language = module.startswith(("triton.language", "aotc.language"))
    return module_member(Module(module), member) if in_language and module in MODULES else None


def _local_function(program: Program, file: SourceFile, qualname: str) -> Function:
    parts = [part for part in qualname.split(".") if part != LOCALS]
    node = find_definition(file.tree.body, parts)
    if node is None:
        raise mistake(f"{file.path} has no function {qualname!r}")
    return program.globals.describe(file, node, qualname)
