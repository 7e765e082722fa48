"""Calls in a kernel: binding arguments, inlining functions of the source, calling the language's.

A constant passed to a function is a constant inside it, annotated or not, as in Triton. What a
function returns under run-time conditions must have one type on every path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotc.frontend.arguments import bind_arguments, default_expressions, parameters_of
from aotc.frontend.builtins import DESCRIPTOR_METHODS, METHODS, call_builtin
from aotc.frontend.classes import initializer, record_type
from aotc.frontend.convert import missing
from aotc.frontend.descriptors import ATTRIBUTES as DESCRIPTOR_ATTRIBUTES
from aotc.frontend.emitter import mistake
from aotc.frontend.frame import Frame, Program
from aotc.frontend.globals import unwrap
from aotc.frontend.records import make_record
from aotc.frontend.resolve import class_names
from aotc.frontend.static import Evaluator, call_function
from aotc.frontend.values import (
    BoundMethod,
    Builtin,
    Class,
    Draft,
    External,
    Function,
    Loop,
    Missing,
    Operand,
    Record,
    RecordType,
    StaticCall,
    is_tuple,
    show,
)
from aotc.ir.core import Value
from aotc.ir.diagnostics import current_loc
from aotc.ir.types import DescriptorType, ScalarType

_CAST = METHODS["cast"]


def call(frame: Frame, node: ast.Call) -> Operand:
    """Translate a call expression."""
    function = _reflection(frame, node) if isinstance(node.func, ast.Name) else None
    if function is not None:
        return function[0]
    target = frame.visit(node.func)
    args: list[Operand] = []
    for one in node.args:
        if isinstance(one, ast.Starred):
            items = frame.visit(one.value)
            if not is_tuple(items):
                raise mistake(f"`*` unpacks a tuple, got {show(items)}")
            args.extend(items)
        else:
            args.append(frame.visit(one))
    kwargs: dict[str, Operand] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise mistake("`**` arguments are not part of the kernel language")
        kwargs[keyword.arg] = frame.visit(keyword.value)
    return call_operand(frame.program, target, args, kwargs)


def _reflection(frame: Frame, node: ast.Call) -> tuple[Operand] | None:
    """Answer `isinstance(x, …)` and `hasattr(x, …)`, whose arguments are not ordinary values."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in ("isinstance", "hasattr") or name in frame.values or len(node.args) != 2:
        return None
    subject = frame.visit(node.args[0])
    other = frame.visit(node.args[1])
    if name == "hasattr":
        if isinstance(subject, Record):
            owner = subject.kind.owner
            names = (*subject.kind.fields, *(class_names(owner.node) if owner else ()))
            return (other in names,)
        if not isinstance(subject, Value):
            raise mistake(f"hasattr() asks about a value, got {show(subject)}")
        if isinstance(subject.type, DescriptorType):
            return (other in DESCRIPTOR_METHODS or other in DESCRIPTOR_ATTRIBUTES,)
        return (other in METHODS or other in ("dtype", "shape", "type", "numel", "T"),)
    kinds = other if is_tuple(other) else (other,)
    return (any(_is_instance(subject, one) for one in kinds),)


def _is_instance(subject: Operand, kind: Operand) -> bool:
    if isinstance(kind, External) and kind.path == "triton.language.tensor":
        return isinstance(subject, Value) and not isinstance(subject.type, DescriptorType)
    if isinstance(kind, External) and kind.path == "triton.language.tensor_descriptor":
        return isinstance(subject, Value) and isinstance(subject.type, DescriptorType)
    if isinstance(kind, Class):
        owner = subject.kind.owner if isinstance(subject, Record) else None
        return owner is not None and owner.node is kind.node
    if isinstance(kind, RecordType):
        return isinstance(subject, Record) and subject.kind is kind
    if isinstance(kind, StaticCall):
        if kind.name == "tl.constexpr":
            return not isinstance(subject, Value | tuple)
        return type(subject).__name__ == kind.name
    raise mistake(
        f"isinstance() does not know {show(kind)}", remedy="use tl.tensor or tl.constexpr"
    )


def call_operand(
    program: Program, function: Operand, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Call what an expression evaluated to. Raises: CompileError."""
    if isinstance(function, Builtin):
        return call_builtin(program.emit, function, args, kwargs)
    if isinstance(function, BoundMethod):
        return call_operand(program, function.function, (function.receiver, *args), kwargs)
    if isinstance(function, Function):
        return _call_source_function(program, function, args, kwargs)
    if isinstance(function, Class | RecordType):
        return _make(program, function, args, kwargs)
    if isinstance(function, StaticCall):
        return _call_static(function, args, kwargs)
    if isinstance(function, Missing):
        raise missing(function)
    if isinstance(function, str):
        return call_operand(program, _function_named(program, function), args, kwargs)
    if isinstance(function, ScalarType):
        # Real kernels write `tl.float32(0.0)` for a run-time scalar of that type.
        return call_builtin(program.emit, _CAST, (*args, function), kwargs)
    if isinstance(function, External):
        raise mistake(
            f"{function.path} is not known without running the file",
            remedy="call functions of tl, or @triton.jit functions whose source is near the "
            "kernel's; compute constants on the host and pass them as `tl.constexpr`",
        )
    if isinstance(function, Loop):
        raise mistake(
            f"{function.name} can only stand in a `for` statement",
            remedy="write the loop as a statement, with tl.static_range to unroll it",
        )
    raise mistake(f"{show(function)} cannot be called")


_NAME = re.compile(r"(?:(?P<file>[^:]+\.py):)?(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def _function_named(program: Program, text: str) -> Operand:
    """Return the function that a constant names, as the kernel's file knows it, or another one.

    Manifests have no functions among their values, and real kernels take some as constants.
    """
    match = _NAME.fullmatch(text)
    file = program.stack[0].file
    if match is None:
        raise mistake(f"{text!r} cannot be called: it is no name of a function")
    if match["file"]:
        file = program.globals.open(str(Path(file.path).parent / match["file"]))
    name = ast.parse(match["name"], mode="eval").body
    found = unwrap(Evaluator(program.globals, file).evaluate(name))
    if not isinstance(found, Function | Builtin):
        raise mistake(f"{text!r} is called, so it must name a function; it is {show(found)}")
    return found


def _call_static(
    function: StaticCall, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    for one in (*args, *kwargs.values()):
        if isinstance(one, Value) and not function.takes_values:
            raise mistake(f"{function.name} takes constants, got a run-time {show(one)}")
    try:
        return function.call(*args, **kwargs)
    except TypeError as error:
        raise mistake(f"{function.name} does not take these arguments: {error}") from error


def _make(
    program: Program,
    function: Class | RecordType,
    args: Sequence[Operand],
    kwargs: Mapping[str, Operand],
) -> Operand:
    """Make a record of a class."""
    is_class = isinstance(function, Class)
    kind = record_type(program.globals, function) if is_class else function
    if kind is None:
        raise mistake(
            f"a kernel makes no objects of the class {function}",
            remedy="make it a typing.NamedTuple, or a @triton.language.core._aggregate",
        )
    init = initializer(kind)
    if init is None or kind.owner is None:
        return make_record(kind, args, kwargs)
    draft = Draft(kind, program.emit.depth)
    body = Function(kind.owner.file, init, f"{kind}.__init__")
    _run(program, body, bind_call(program, body, (draft, *args), kwargs))
    return make_record(kind, (), draft.items)


def _call_source_function(
    program: Program, function: Function, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    if function.is_constexpr:
        for one in (*args, *kwargs.values()):
            if isinstance(one, Value):
                raise mistake(f"{function.qualname} takes constants, got a run-time {show(one)}")
        return unwrap(call_function(program.globals, function, args, kwargs))
    if not function.is_jit:
        raise mistake(
            f"{function.qualname} is a plain Python function, which a kernel cannot call",
            remedy=f"decorate it with @triton.jit in {function.file.path}",
        )
    return _run(program, function, bind_call(program, function, args, kwargs))


def _run(program: Program, function: Function, values: dict[str, Operand]) -> Operand:
    """Translate the body of a function in place of a call; return what it returns."""
    frame = Frame(program, function, values, current_loc())
    program.enter(function)
    flow = frame.run(function.node.body)
    program.stack.pop()
    return None if flow is None else flow.value


def bind_call(
    program: Program, function: Function, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> dict[str, Operand]:
    """Return the arguments by parameter name, defaults filled in. Raises: CompileError."""
    node = function.node.args
    values = bind_arguments(parameters_of(function.qualname, node), args, kwargs)
    for name, default in default_expressions(node).items():
        if name not in values:
            values[name] = unwrap(Evaluator(program.globals, function.file).evaluate(default))
    return values
