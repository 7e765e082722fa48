"""Translate calls: bind arguments, inline source functions, call builtins of the language.

As in Triton, a constant argument stays constant inside the callee, annotated or not. A function
returning under run-time conditions must return one type on every path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from dataclasses import replace
from functools import partial
from typing import cast as type_cast

from aotc.frontend.emitter import mistake
from aotc.frontend.language.arguments import bind_arguments, default_expressions, parameters_of
from aotc.frontend.language.builtins import DESCRIPTOR_METHODS, METHODS, MODULES, call_builtin
from aotc.frontend.language.constants import (
    constexpr_like,
    items_of,
    not_known,
    unwrap,
    without_constexpr,
)
from aotc.frontend.language.convert import missing
from aotc.frontend.language.descriptors import ATTRIBUTES as DESCRIPTOR_ATTRIBUTES
from aotc.frontend.language.dtypes import attributes_of
from aotc.frontend.language.language_classes import LanguageClass, classes_in, is_instance
from aotc.frontend.language.records import make_record, named_tuple
from aotc.frontend.python.classes import initializer, object_type, record_type
from aotc.frontend.python.frame import Frame, LoopExit, Program, Returned
from aotc.frontend.python.jit_decorators import is_triton_jit, refuse_foreign
from aotc.frontend.python.named_functions import function_named
from aotc.frontend.python.outer_names import outer_names
from aotc.frontend.python.python_names import PYTHON_NAMES
from aotc.frontend.python.resolve import class_names
from aotc.frontend.values import (
    BoundMethod,
    Builtin,
    Class,
    Closure,
    Config,
    Constexpr,
    Decorator,
    Draft,
    External,
    Function,
    Loop,
    Missing,
    Module,
    Operand,
    Partial,
    Record,
    RecordType,
    StaticCall,
    show,
)
from aotc.ir.core import Value
from aotc.ir.diagnostics import CompileError, IRError, current_loc
from aotc.ir.types import DescriptorType, PointerType, ScalarType, TileType

REFLECTION = ("isinstance", "hasattr", "getattr")
"""Python's reflection functions, answered from types; a kernel may call them."""

_CAST = METHODS["cast"]
_VERSION_PARSERS = ("packaging.version.parse", "packaging.version.Version")


def call(frame: Frame, node: ast.Call) -> Operand:
    """Translate a call expression."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    is_reflection = name in REFLECTION and (frame.in_kernel or name == "getattr")
    if name == "hasattr" and not frame.in_kernel and _is_known_gpu_property(frame, node):
        return True
    function = _reflection(frame, node) if is_reflection else None
    if function is not None:
        return function[0]
    target = frame.visit(node.func)
    args = frame.visit_items(node.args)
    kwargs: dict[str, Operand] = {}
    for keyword in node.keywords:
        value = frame.visit(keyword.value)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs |= type_cast("dict[str, Operand]", value)
        elif not (isinstance(value, External) and isinstance(target, External)):
            raise mistake(
                f"`**` unpacks a dictionary, got {show(value)}", remedy="name each argument"
            )
    return call_operand(frame, target, args, kwargs)


def _is_known_gpu_property(frame: Frame, node: ast.Call) -> bool:
    """Return whether `hasattr` asks about a GPU property with a target answer."""
    if len(node.args) != 2 or not isinstance(node.args[1], ast.Constant):
        return False
    owner = frame.visit(node.args[0])
    path = f"{owner.path}.{node.args[1].value}" if isinstance(owner, External) else ""
    return bool(path) and frame.program.globals.asks_about_gpu(path)


def _reflection(frame: Frame, node: ast.Call) -> tuple[Operand] | None:
    """Answer `isinstance`, `hasattr` and `getattr`; None if the call is none of them."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    max_args = 3 if name == "getattr" else 2
    if name not in REFLECTION or name in frame.values or not 2 <= len(node.args) <= max_args:
        return None
    if name == "getattr":
        return (_getattr(frame, node),)
    subject = frame.visit(node.args[0])
    argument = frame.visit(node.args[1])
    if name == "hasattr":
        if isinstance(subject, Module):
            return (argument in MODULES[subject.name],)
        if isinstance(subject, Record):
            owner = subject.kind.owner
            names = (*subject.kind.fields, *(class_names(owner.node) if owner else ()))
            return (argument in names,)
        if not isinstance(subject, Value):
            return (_has_attribute(frame, node, subject, argument),)
        if isinstance(subject.type, DescriptorType):
            return (argument in DESCRIPTOR_METHODS or argument in DESCRIPTOR_ATTRIBUTES,)
        return (argument in METHODS or argument in ("dtype", "shape", "type", "numel", "T"),)
    return (any(_is_instance(frame, subject, kind) for kind in classes_in(argument)),)


def _has_attribute(frame: Frame, node: ast.Call, subject: Operand, name: Operand) -> bool:
    """Answer `hasattr` for a compile-time operand. Raises: CompileError for an unknown object."""
    if not isinstance(name, str):
        raise mistake(f"hasattr() takes the name as a constant string, got {show(name)}")
    if isinstance(subject, External):
        raise not_known(subject)
    if subject is None or isinstance(subject, int | float | str):
        return hasattr(subject, name)  # as in Triton: the Python object decides
    if isinstance(subject, ScalarType | PointerType | TileType):
        return name in attributes_of(subject)
    try:
        frame.visit(ast.copy_location(ast.Attribute(node.args[0], name, ast.Load()), node))
    except CompileError:
        return False
    return True


def _getattr(frame: Frame, node: ast.Call) -> Operand:
    """Evaluate `getattr(x, "name")`; a third argument is the default."""
    name = unwrap(frame.visit(node.args[1]))
    if not isinstance(name, str):
        raise mistake(f"getattr() takes the name as a constant string, got {show(name)}")
    attribute = ast.copy_location(ast.Attribute(node.args[0], name, ast.Load()), node)
    try:
        return frame.visit(attribute)
    except CompileError:
        if len(node.args) == 2:
            raise
        return frame.visit(node.args[2])


def _is_instance(frame: Frame, subject: Operand, kind: Operand) -> bool:
    if not isinstance(kind, Class | RecordType):
        return is_instance(subject, kind)
    if not isinstance(subject, Record):
        return False
    if isinstance(kind, RecordType):
        return subject.kind is kind
    owner = subject.kind.owner
    return owner is not None and _is_subclass(frame, owner, kind)


def _is_subclass(frame: Frame, owner: Class, kind: Class) -> bool:
    """Return whether a class is `kind`, or extends it."""
    bases = frame.program.globals.bases(owner)
    return owner.node is kind.node or any(
        isinstance(base, Class) and _is_subclass(frame, base, kind) for base in bases
    )


def call_operand(
    frame: Frame, function: Operand, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Call an operand with arguments. Raises: CompileError."""
    caller = CALLERS.get(type(function))
    if caller is None:
        raise mistake(f"{show(function)} cannot be called")
    return caller(frame, function, args, kwargs)


def _call_builtin(
    frame: Frame, function: Builtin, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    return call_builtin(frame.emit, function, args, kwargs)


def _call_method(
    frame: Frame, method: BoundMethod, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    return call_operand(frame, method.function, (method.receiver, *args), kwargs)


def _call_missing(
    frame: Frame, function: Missing, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    del frame, args, kwargs
    raise missing(function)


def _call_loop(
    frame: Frame, function: Loop, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    del frame, args, kwargs
    raise mistake(
        f"{function.name} can only stand in a `for` statement",
        remedy="write the loop as a statement, with tl.static_range to unroll it",
    )


def _call_dtype(
    frame: Frame, dtype: ScalarType, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    # Real kernels write `tl.float32(0.0)` for a typed run-time scalar.
    return call_builtin(frame.emit, _CAST, (*args, dtype), kwargs)


def _call_named(
    frame: Frame, text: str, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    if not frame.in_kernel:
        raise mistake(f"{text!r} cannot be called")
    return call_operand(
        frame, function_named(frame.program, frame.program.stack[0].file, text), args, kwargs
    )


def _call_closure(
    frame: Frame, closure: Closure, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    arguments = bind_arguments(
        parameters_of(str(closure), closure.node.args, on_host=True), args, kwargs
    )
    frame.count()
    if closure.within is not None and isinstance(closure.node, ast.Lambda):
        return _call_lambda(frame, closure, closure.node, arguments)
    if frame.in_kernel:
        raise mistake(
            f"{closure} is a plain Python function, which a kernel cannot call",
            remedy=f"write it with `def` and @triton.jit in {closure.file.path}",
            feature="a call of a plain Python function",
        )
    inner = frame.program.host_frame(closure.file, {**closure.values, **arguments})
    if isinstance(closure.node, ast.Lambda):
        return inner.visit(closure.node.body)
    for name, default in default_expressions(closure.node.args).items():
        if name not in arguments:
            inner.values[name] = inner.visit(default)
    flow = inner.run(closure.node.body)
    if inner.yielded is not None:
        return inner.yielded
    return flow.value if isinstance(flow, Returned) else None


def _call_lambda(
    frame: Frame, closure: Closure, node: ast.Lambda, arguments: Mapping[str, Operand]
) -> Operand:
    """Inline a lambda written in a kernel."""
    program, function = frame.program, closure.within
    if function is None:
        raise IRError("only a lambda of a kernel is inlined")
    inner = Frame(
        program,
        closure.file,
        {**closure.values, **arguments},
        current_loc(),
        in_kernel=True,
        function=function,
    )
    for name, default in default_expressions(node.args).items():
        if name not in arguments:
            inner.values[name] = inner.visit(default)
    with program.calling(function):
        return inner.visit(node.body)


def _call_external(
    frame: Frame, function: External, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Call an unknown function: an error in kernels; on the host mostly unknown again."""
    if function.path in ("torch.finfo", "torch.iinfo") and len(args) == 1:
        dtype = args[0].path if isinstance(args[0], External) else show(args[0])
        return External(f"{function.path}({dtype.removeprefix('torch.')})")
    if frame.in_kernel:
        raise mistake(
            f"{function.path} is not known without running the file",
            remedy="call functions of tl, or @triton.jit functions whose source is near the "
            "kernel's; compute constants on the host and pass them as `tl.constexpr`",
            feature=f"{function.path}, which only running the file would tell",
        )
    name = function.path.rpartition(".")[2]
    if function.path in _VERSION_PARSERS and len(args) == 1 and isinstance(args[0], str):
        return tuple(int(part) for part in re.findall(r"\d+", args[0])[:3])
    if name == "Config":
        values = args[0] if args else kwargs.get("kwargs", {})
        if not isinstance(values, dict):
            raise (
                not_known(values)
                if isinstance(values, External)
                else mistake(f"triton.Config takes a dictionary of constants, got {show(values)}")
            )
        options = {
            key: option for key, option in kwargs.items() if key not in ("kwargs", "pre_hook")
        }
        positional = dict(zip(("num_warps", "num_stages", "num_ctas"), args[1:], strict=False))
        return Config(type_cast("dict[str, Operand]", values), {**positional, **options})
    library_call = _call_library(frame, function.path, args, kwargs)
    if library_call is not None:
        return library_call[0]
    if name.endswith("autotune") or "configs" in kwargs or function.path == "triton.heuristics":
        kind = "heuristics" if name == "heuristics" else "autotune"
        return Decorator(kind, tuple(args), kwargs, current_loc())
    if function.path == "collections.namedtuple":
        constants = {name: unwrap(argument) for name, argument in kwargs.items()}
        return named_tuple([unwrap(argument) for argument in args], constants)
    if function.path in ("os.environ.get", "os.getenv"):
        frame.program.remark_unset(args[0] if args else kwargs.get("key"))
        return args[1] if len(args) > 1 else kwargs.get("default")
    if is_triton_jit(function.path) and not args:
        return function  # `triton.jit(do_not_specialize=…)` takes the function next
    is_decorator = not kwargs or is_triton_jit(function.path)
    if len(args) == 1 and is_decorator and isinstance(args[0], Function):
        # `f = triton.jit(f)`, or a decorator called as a function.
        inner = args[0]
        if name == "constexpr_function":
            return replace(inner, is_jit=False, is_constexpr=True)
        if is_triton_jit(function.path):
            return replace(inner, is_jit=True, is_constexpr=False, foreign="")
        return replace(inner, foreign=function.path) if name.endswith("jit") else inner
    if name == "constexpr_function" and len(args) == 1 and isinstance(args[0], StaticCall):
        return args[0]  # a builtin over constants needs no wrapper
    return frame.program.globals.external(f"{function.path}()")


def _call_library(
    frame: Frame, path: str, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> tuple[Operand] | None:
    """Evaluate a standard-library function of arbitrary operands; None if it is not one."""
    if path == "functools.partial" and args:
        return (Partial(args[0], tuple(args[1:]), kwargs),)
    if path == "functools.reduce" and len(args) in (2, 3):
        items = [*args[2:], *items_of(args[1], "functools.reduce goes over a list")]
        if not items:
            raise mistake("functools.reduce of nothing has no value")
        total = items[0]
        for operand in items[1:]:
            frame.count()
            total = call_operand(frame, args[0], (total, operand), {})
        return (total,)
    if path == "importlib.util.find_spec" and args and isinstance(args[0], str):
        return (_find_spec(frame, args[0]),)
    if path == "collections.OrderedDict":
        return (call_operand(frame, PYTHON_NAMES["dict"], args, kwargs),)
    if path in ("copy.copy", "copy.deepcopy") and len(args) == 1:
        return (_copy(args[0]),)
    return None


def _find_spec(frame: Frame, name: str) -> Operand:
    """Return True for a module found at build time, else an unknown object."""
    module_name = name.lstrip(".")
    module = frame.program.globals.module(frame.file, module_name, len(name) - len(module_name))
    is_there = module_name.partition(".")[0] in ("torch", "triton") or not isinstance(
        module, External
    )
    return True if is_there else External(f"importlib.util.find_spec({name!r})")


def _copy(value: Operand) -> Operand:
    """Copy nested containers and configs; all other operands are immutable."""
    if isinstance(value, list):
        return [_copy(child) for child in type_cast("list[Operand]", value)]
    if isinstance(value, dict):
        named = type_cast("dict[Operand, Operand]", value)
        return {key: _copy(child) for key, child in named.items()}
    if isinstance(value, Config):
        return Config(dict(value.kwargs), dict(value.options))
    return value


def _call_partial(
    frame: Frame, partial_call: Partial, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    return call_operand(
        frame, partial_call.function, (*partial_call.args, *args), {**partial_call.kwargs, **kwargs}
    )


def _decorate(
    frame: Frame, decorator: Decorator, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Record a decorator on a function."""
    del frame
    if len(args) != 1 or kwargs or not isinstance(args[0], Function):
        raise mistake(f"@{decorator.name} decorates a function, got {', '.join(map(show, args))}")
    return replace(args[0], decorators=(*args[0].decorators, decorator))


def _call_static(
    frame: Frame, function: StaticCall, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, Value) and not function.takes_values:
            raise mistake(f"{function.name} takes constants, got a run-time {show(argument)}")
        if isinstance(argument, External):
            raise not_known(argument)
    convert = (
        partial(_to_python, frame) if function.name in _CALLBACK_FUNCTIONS else without_constexpr
    )
    positional = [convert(argument) for argument in args]
    named = {name: convert(argument) for name, argument in kwargs.items()}
    try:
        result = function.call(*positional, **named)
    except TypeError as error:
        raise mistake(f"{function.name} does not take these arguments: {error}") from error
    except (ValueError, KeyError, IndexError, ArithmeticError) as error:
        raise mistake(f"{function.name}(…) failed: {error}") from error
    if isinstance(result, KeysView | ValuesView | ItemsView):
        result = list(type_cast("Sequence[Operand]", result))
    if function.name == "tl.constexpr" and not frame.in_kernel:
        return Constexpr(unwrap(result))
    return constexpr_like(args, result)


_CALLBACK_FUNCTIONS = ("filter", "map", "max", "min", "sort", "sorted", "itertools.starmap")
"""Python functions with callback arguments; all others treat functions as plain values."""


def _to_python(frame: Frame, value: Operand) -> Operand:
    """Convert an argument of a Python function; source functions become callables."""
    if not frame.in_kernel and isinstance(value, Closure | Function | Partial | StaticCall):

        def call_source_function(*args: Operand) -> Operand:
            return call_operand(frame, value, args, {})

        return call_source_function
    return without_constexpr(value)


def _make_object(
    frame: Frame,
    function: Class | RecordType,
    args: Sequence[Operand],
    kwargs: Mapping[str, Operand],
) -> Operand:
    """Make a record of a class."""
    program = frame.program
    is_class = isinstance(function, Class)
    kind = record_type(program.globals, function) if is_class else function
    if is_class and kind is None and not frame.in_kernel:
        kind = object_type(program.globals, function)
    init = None if kind is None else initializer(kind)
    if not frame.in_kernel and kind is None:
        return External(f"{function}()")
    if kind is None:
        raise mistake(
            f"a kernel makes no objects of the class {function}",
            remedy="make it a typing.NamedTuple, or a @triton.language.core._aggregate",
            feature="an object of a plain class",
        )
    if init is None or kind.owner is None:
        return make_record(kind, args, kwargs)
    draft = Draft(kind, frame.emit.depth)
    body = Function(kind.owner.file, init, f"{kind}.__init__", is_jit=frame.in_kernel)
    bound = _bind(program, body, (draft, *args), kwargs)
    _run(program, body, bound, in_kernel=frame.in_kernel)
    return make_record(kind, (), draft.items)


def _call_function(
    frame: Frame, function: Function, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Call a source function: inline it in a kernel, or evaluate it on the host."""
    program = frame.program
    if frame.in_kernel and function.is_constexpr:
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, Value):
                raise mistake(
                    f"{function.qualname} takes constants, got a run-time {show(argument)}"
                )
    elif frame.in_kernel:
        refuse_plain(function)
    inline = frame.in_kernel and not function.is_constexpr
    result = _run(program, function, _bind(program, function, args, kwargs), in_kernel=inline)
    return unwrap(result) if frame.in_kernel and not inline else result


def refuse_plain(function: Function) -> None:
    """Refuse a plain or foreign function in a kernel. Raises: CompileError."""
    if not function.is_jit and not function.is_constexpr:
        if function.foreign:
            raise refuse_foreign(function.qualname, function.foreign)
        raise mistake(
            f"{function.qualname} is a plain Python function, which a kernel cannot call",
            remedy=f"decorate it with @triton.jit in {function.file.path}",
            feature="a call of a plain Python function",
        )


def _run(
    program: Program, function: Function, values: dict[str, Operand], *, in_kernel: bool
) -> Operand:
    """Run a function body inline; return its value."""
    values = {**outer_names(program, function), **values}
    frame = Frame(
        program, function.file, values, current_loc(), in_kernel=in_kernel, function=function
    )
    with program.calling(function):
        flow = frame.run(function.node.body)
    if frame.yielded is not None:
        return frame.yielded
    if isinstance(flow, LoopExit):
        raise mistake(f"a `{flow.value}` outside a loop in {function.qualname}")
    return None if flow is None else flow.value


def _bind(
    program: Program, function: Function, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> dict[str, Operand]:
    """Return the arguments by parameter name, defaults filled in. Raises: CompileError."""
    node = function.node.args
    on_host = not function.is_jit and not function.is_constexpr
    parameters = parameters_of(function.qualname, node, on_host=on_host)
    values = bind_arguments(parameters, args, kwargs)
    for name, default in default_expressions(node).items():
        if name not in values:
            values[name] = unwrap(program.host_frame(function.file).visit(default))
    return values


_Caller = Callable[[Frame, Operand, Sequence[Operand], Mapping[str, Operand]], Operand]

CALLERS = type_cast(
    "dict[type[object], _Caller]",
    {
        BoundMethod: _call_method,
        Builtin: _call_builtin,
        Class: _make_object,
        Closure: _call_closure,
        Decorator: _decorate,
        Partial: _call_partial,
        External: _call_external,
        Function: _call_function,
        Loop: _call_loop,
        Missing: _call_missing,
        RecordType: _make_object,
        ScalarType: _call_dtype,
        LanguageClass: _call_static,
        StaticCall: _call_static,
        str: _call_named,
    },
)
"""Call handler by operand type; other types cannot be called."""
