"""Report Python syntax outside the kernel language, with a replacement.

The table is keyed by names of syntax nodes, since some exist only in later versions of Python.
A node in neither this table nor a handler table is refused by its name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from aotc.frontend.emitter import mistake
from aotc.ir.diagnostics import CompileError, Loc

_ARGUMENTS = "pass values as arguments and return them"
_NO_CONTAINER = "use a tuple, or one variable for each value"
_JIT_FUNCTION = "move it to module level and decorate it with @triton.jit"
_NO_EXCEPTIONS = "kernels raise nothing to catch"
_NOT_ASYNC = "a kernel runs on the GPU from its start to its end; leave it out"

_SYNTAX: Mapping[str, tuple[str, str]] = {
    # node: (description, remedy)
    "AsyncFor": ("`async for`", _NOT_ASYNC),
    "AsyncFunctionDef": ("a nested function", _JIT_FUNCTION),
    "AsyncWith": ("`async with`", _NOT_ASYNC),
    "Await": ("`await`", _NOT_ASYNC),
    "Break": ("`break`", "a loop runs its whole range; use a mask, or a `while` with a condition"),
    "ClassDef": ("a class", "keep values in variables and tuples"),
    "Continue": ("`continue`", "put the rest of the body under an `if`"),
    "Delete": ("`del`", "leave it out; a variable costs nothing once it is not used any more"),
    "Dict": ("a dictionary", _NO_CONTAINER),
    "DictComp": ("a dictionary", _NO_CONTAINER),
    "FunctionDef": ("a nested function", _JIT_FUNCTION),
    "Global": ("`global`", _ARGUMENTS),
    "Import": ("an import inside a kernel", "import at module level"),
    "ImportFrom": ("an import inside a kernel", "import at module level"),
    "Match": ("`match`", "use `if` and `elif`"),
    "MatMult": ("the operator `@`", "write tl.dot"),
    "Nonlocal": ("`nonlocal`", _ARGUMENTS),
    "Set": ("a set", _NO_CONTAINER),
    "SetComp": ("a set", _NO_CONTAINER),
    "Starred": ("`*` in front of a name to assign", "name each value, or slice the tuple"),
    "Try": ("`try`", _NO_EXCEPTIONS),
    "TryStar": ("`try`", _NO_EXCEPTIONS),
    "TypeAlias": ("a type alias", "leave it out"),
    "With": ("`with`", "there is nothing to open or close in a kernel"),
    "Yield": ("`yield`", "a kernel stores its results with tl.store"),
    "YieldFrom": ("`yield`", "a kernel stores its results with tl.store"),
}


def unsupported(node: ast.AST, loc: Loc | None = None) -> CompileError:
    """Return the error for syntax outside the kernel language."""
    name = type(node).__name__
    feature, remedy = _SYNTAX.get(name, (f"{name} syntax", ""))
    message = f"{feature} is not part of the kernel language"
    return mistake(message, remedy=remedy, loc=loc, feature=feature)
