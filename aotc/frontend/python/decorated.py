"""Which decorators the code around a kernel applies to it, found by evaluating that code.

A kernel may be decorated by a function of the file, by what a call returns, or after its
definition, as in `k = triton.autotune(…)(k)`. Calls of Triton's decorators are known; what others
return that nobody knows leaves a function as it is.
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
                decorators = _of_definition(program, function)
                return (*decorators, *rebound.decorators)
    return _of_definition(program, function)


def unknown_decorator(program: Program, function: Function) -> tuple[str, Loc] | None:
    """Return why the first decorator that cannot be evaluated cannot, and its place; None if all can."""
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


def _of_definition(program: Program, function: Function) -> tuple[Decorator, ...]:
    decorated = function
    frame = program.host_frame(function.file)
    for node in reversed(function.node.decorator_list):
        with suppress(CompileError):
            result = call_operand(frame, frame.visit(node), (decorated,), {})
            if isinstance(result, Function) and result.node is function.node:
                decorated = result
    return decorated.decorators
