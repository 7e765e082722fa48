"""Recognize Triton's `jit` decorator under any imported name.

`numba.cuda.jit`, Gluon's `jit` and others look alike but mean other languages. A decorator with
known source may apply Triton's inside, so it is accepted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from aotc.frontend.emitter import mistake
from aotc.frontend.python.resolve import dotted_name
from aotc.frontend.values import External, Operand
from aotc.ir.diagnostics import CompileError, Loc

_JIT = re.compile(
    r"(?:.*\.)?triton(?:\.runtime(?:\.jit)?)?\.(?:jit|JITFunction)|aotc\.language\.jit"
)
_GLUON = "triton.experimental.gluon."


def is_triton_jit(path: str) -> bool:
    """Return whether a dotted name denotes Triton's decorator.

    >>> is_triton_jit("vllm.triton_utils.triton.jit"), is_triton_jit("numba.cuda.jit")
    (True, False)
    """
    return _JIT.fullmatch(path) is not None


def foreign_decorator(visit: Callable[[ast.expr], Operand], node: ast.FunctionDef) -> str:
    """Return the path of a decorator from another language, or "".

    `visit` evaluates a name of the function's file.
    """
    decorators = node.decorator_list
    if any(is_triton_jit(dotted_name(decorator)) for decorator in decorators):
        return ""
    foreign = ""
    for decorator in decorators:
        try:
            value = visit(decorator.func if isinstance(decorator, ast.Call) else decorator)
        except CompileError:
            return ""
        if not isinstance(value, External) or is_triton_jit(value.path):
            return ""
        if not value.path.startswith("triton.") or value.path.startswith(_GLUON):
            foreign = foreign or value.path
    return foreign


def refuse_foreign(qualname: str, decorator: str, loc: Loc | None = None) -> CompileError:
    """Return the error for a foreign function used as a kernel."""
    origin = "Gluon's, another language" if decorator.startswith(_GLUON) else "not Triton's"
    return mistake(
        f"{qualname} is decorated with @{decorator}, which is {origin}",
        loc=loc,
        remedy="decorate it with @triton.jit, if it is written in Triton's language",
        feature=f"a function decorated with @{decorator}",
    )
