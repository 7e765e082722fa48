"""Evaluate the decorators applied to a kernel by the code around it.

A decorator may be a function of the file, the result of a call, or applied after the definition,
as in `k = triton.autotune(…)(k)`. Calls of Triton's decorators are recorded; an unknown decorator
leaves the function unchanged.
"""

from __future__ import annotations

from contextlib import suppress

from aotc.frontend.python.calls import call_operand
from aotc.frontend.python.frame import Program
from aotc.frontend.python.resolve import bindings
from aotc.frontend.values import Decorator, External, Function
from aotc.ir.diagnostics import CompileError, Loc


def decorators_of(program: Program, function: Function, name: str) -> tuple[Decorator, ...]:
    """Return the autotuners and heuristics of a kernel, the innermost first."""
    if function.decorators:
        return function.decorators
    if len(bindings(function.file).get(name, ())) > 1:
        with suppress(CompileError):
            rebound = program.globals.lookup(function.file, name)
            if (
                isinstance(rebound, Function)
                and rebound.node is function.node
                and rebound.decorators
            ):
                decorators = _definition_decorators(program, function)
                return (*decorators, *rebound.decorators)
    return _definition_decorators(program, function)


def unknown_decorator(program: Program, function: Function) -> tuple[str, Loc] | None:
    """Return the reason and location of the first unevaluable decorator, or None."""
    frame = program.host_frame(function.file)
    decorated = function
    for node in reversed(function.node.decorator_list):
        loc = function.file.loc(node)
        try:
            result = call_operand(frame, frame.visit(node), (decorated,), {})
        except CompileError as error:
            return error.message, loc
        if isinstance(result, Function) and result.node is function.node:
            decorated = result
        elif isinstance(result, External):
            return f"{result}", loc
    return None


def _definition_decorators(program: Program, function: Function) -> tuple[Decorator, ...]:
    decorated = function
    frame = program.host_frame(function.file)
    for node in reversed(function.node.decorator_list):
        with suppress(CompileError):
            result = call_operand(frame, frame.visit(node), (decorated,), {})
            if isinstance(result, Function) and result.node is function.node:
                decorated = result
    return decorated.decorators
