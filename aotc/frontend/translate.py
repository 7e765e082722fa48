"""Translate a kernel of a source file, with types and constants, to tile IR.

The file is parsed, never executed; neither Triton nor the file's imports need to exist. The same
files and arguments give the same IR, op for op.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn
from typing import cast as type_cast

from aotc.frontend import signature as signatures
from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.arguments import default_expressions
from aotc.frontend.language.constants import unwrap
from aotc.frontend.language.hints import attach_hints
from aotc.frontend.python.calls import call_operand
from aotc.frontend.python.decorated import decorators_of, unknown_decorator
from aotc.frontend.python.expressions import EXPRESSIONS, HOST_EXPRESSIONS
from aotc.frontend.python.frame import Captures, Frame, Program, Syntax
from aotc.frontend.python.globals import Globals
from aotc.frontend.python.jit_decorators import refuse_foreign
from aotc.frontend.python.launch_expressions import launch_expression
from aotc.frontend.python.outer_names import outer_names, plain_parts
from aotc.frontend.python.resolve import (
    bindings,
    decorator_call,
    decorator_calls,
    dotted_name,
    find_definition,
    function_names,
)
from aotc.frontend.python.scope import is_const_annotation, is_constexpr_annotation
from aotc.frontend.python.statements import HOST_STATEMENTS, STATEMENTS
from aotc.frontend.signature import bind_parameters, constant_operand
from aotc.frontend.source import SourceFile
from aotc.frontend.values import (
    Closure,
    Config,
    Decorator,
    External,
    Function,
    Operand,
    is_tuple,
    show,
)
from aotc.ir.core import Block, Kernel
from aotc.ir.diagnostics import CompileError, Loc, at, current_loc, did_you_mean
from aotc.ir.dialects import scf
from aotc.ir.parameter_access import parameter_access
from aotc.limits import CompileLimits
from aotc.module_search import Search

_KERNEL = Syntax(EXPRESSIONS, STATEMENTS)
_HOST = Syntax(HOST_EXPRESSIONS, HOST_STATEMENTS)
_DEFAULT_CONFIG = {"num_warps": 4, "num_stages": 3}


@dataclass(frozen=True)
class Translation:
    """A translated kernel, with the files read and the remarks.

    `source_files` pairs the path of every file read with the SHA-256 of its contents, the kernel's
    own file first. `searches` pairs every search for an imported module with its result.
    """

    kernel: Kernel
    source_files: tuple[tuple[str, str], ...]
    searches: tuple[tuple[Search, str | None], ...] = ()
    remarks: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()


def translate(
    source: str,
    kernel: str,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    *,
    num_warps: int = 4,
    num_ctas: int = 1,
    target: str = "sm_90a",
    facts: Mapping[str, object] | None = None,
    captured: Mapping[str, object] | None = None,
    debug: bool = False,
    max_ops: int = CompileLimits.operations,
) -> Translation:
    """Translate the function `kernel` of the file `source` into tile IR.

    `signature` gives the types of run-time arguments (`"*fp16:16"`, `"i32"`, `"i32=1"`),
    `constants` the values of the others. `kernel` may be dotted, for a method or a nested function.
    Without `debug`, here or as `@triton.jit(debug=True)`, assertions in the kernel are type-checked
    and dropped, as in Triton. `max_ops` bounds the expansion of calls and static loops. `facts`
    override the target's answers about the GPU. `captured` are values of the kernel's outer variables.

    Raises: CompileError for any mistake in the source or in the arguments.
    """
    with _readable_errors():
        program = Program(_KERNEL, _HOST, target, facts or {})
        module = program.globals
        file = module.open(source)
        function = _find_kernel(module, file, kernel)
        where = file.loc(function.node)
        with at(where):
            arguments = bind_parameters(program, function, signature, constants, num_warps)
            body = Block(arguments.types, [info.name for info in arguments.params])

            def call(callee: Operand, args: Sequence[Operand]) -> Operand:
                isolated = callee.without_values() if isinstance(callee, Closure) else callee
                return call_operand(frame, isolated, args, {})

            program.emit = Emitter(
                body,
                call,
                debug=debug or _asks_for_debug(function),
                num_warps=num_warps,
                max_ops=max_ops,
                num_ctas=num_ctas,
            )
            passed = arguments.cast_to_declared(program.emit, body.args)
            values = {**_captures(program, function, captured or {}), **arguments.values(passed)}
            frame = Frame(program, function.file, values, None, in_kernel=True, function=function)
            with program.calling(function):
                frame.run(function.node.body)
            program.emit(scf.Return())
            attach_hints(program.emit)
            name = _symbol(function)
            kernel_ir = Kernel(name, arguments.params, body, num_warps=num_warps, loc=where)
            if program.emit.runs_by_cta and num_ctas > 1:
                kernel_ir.num_ctas, kernel_ir.runs_by_cta = num_ctas, True
            _check_constants(function, signature, kernel_ir)
            _evaluate_decorators(program, function)
    files = tuple((path, source_file.digest) for path, source_file in module.files.items())
    searches = tuple(module.searches.items())
    prints = (*program.host_emit.prints, *program.emit.prints)
    messages = (tuple(dict.fromkeys([*program.host_emit.remarks, *program.emit.remarks])), prints)
    return Translation(kernel_ir, files, searches, *messages)


def _captures(
    program: Program, function: Function, captured: Mapping[str, object]
) -> dict[str, Operand]:
    """Return the captured and outer variables of a kernel."""
    captures = {name: constant_operand(constant, name) for name, constant in captured.items()}
    program.captures = Captures(function.file, plain_parts(function.qualname), captures)
    return {**outer_names(program, function), **captures}


def _evaluate_decorators(program: Program, function: Function) -> None:
    """Evaluate decorators reading the environment, for their remarks."""
    if any("environ" in line or "getenv" in line for line in function.file.lines):
        with suppress(CompileError):
            decorators_of(program, function, function.node.name)


def _check_constants(function: Function, signature: Mapping[str, str], kernel: Kernel) -> None:
    """Refuse a write through a pointer declared constant. Raises: CompileError."""
    declared = [
        parameter
        for parameter in _parameters(function)
        if is_const_annotation(parameter.annotation)
        or signature.get(parameter.arg, "").startswith("*k")
    ]
    access = parameter_access(kernel) if declared else {}
    for parameter in declared:
        if access.get(parameter.arg) in ("write", "both"):
            raise mistake(
                f"{parameter.arg} points at constants, and {function.qualname} writes there",
                loc=function.file.loc(parameter),
                remedy="leave out tl.const, or write through another pointer",
            )


def _asks_for_debug(function: Function) -> bool:
    """Return whether the kernel is decorated with `@triton.jit(debug=True)`."""
    call = decorator_call(function.node, "jit")
    return call is not None and any(
        keyword.arg == "debug"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def _symbol(function: Function) -> str:
    """Return the kernel's symbol in the cubin. Raises: CompileError for an unusable name."""
    name = function.node.name
    if not name.isascii() or name == "_":
        raise mistake(
            f"the name of a kernel must be of ASCII letters, digits and `_`, and more than `_`; "
            f"got {name!r}",
            remedy="rename it; the name becomes a symbol in the cubin",
        )
    return name


@contextmanager
def _readable_errors() -> Generator[None]:
    """Turn an overflow of Python's stack by deep source into a diagnostic."""
    innermost: Loc | None = None
    try:
        yield
    except RecursionError:
        innermost = current_loc()
    else:
        return
    raise CompileError(
        "the source is nested too deeply to be translated",
        innermost,
        remedy="assign parts of it to variables",
    )


def _find_kernel(module: Globals, file: SourceFile, kernel: str) -> Function:
    path = [part for part in kernel.split(".") if part != "<locals>"]
    node = find_definition(file.tree.body, path) if path and all(path) else None
    if node is not None:
        function = module.describe(file, node, kernel)
        # A decorator of the file's own may apply Triton's.
        is_kernel = function.is_jit or (node.decorator_list and not function.foreign)
        if not is_kernel and not _is_rebound(module, file, kernel):
            raise _refuse_function(function, file.loc(node))
        return function
    value = module.lookup(file, kernel)
    if isinstance(value, Function):
        if not value.is_jit:
            raise _refuse_function(value, value.file.loc(value.node))
        return value
    names = function_names(file)
    raise mistake(
        f"{file.path} has no function {kernel!r}",
        loc=Loc(file.path, 1),
        remedy=did_you_mean(kernel, names) or f"it has {', '.join(names) or 'no functions'}",
    )


def _refuse_function(function: Function, loc: Loc) -> CompileError:
    """Return the error for a function without a jit decorator."""
    if function.foreign:
        return refuse_foreign(function.qualname, function.foreign, loc)
    return mistake(
        f"{function.qualname} is a plain Python function",
        loc=loc,
        remedy="decorate it with @triton.jit",
    )


def _is_rebound(module: Globals, file: SourceFile, kernel: str) -> bool:
    """Return whether the file turns the function into a kernel later: `f = triton.jit(f)`."""
    if len(bindings(file).get(kernel, ())) < 2:
        return False
    value = module.lookup(file, kernel)
    return isinstance(value, Function) and value.is_jit


@dataclass(frozen=True)
class KernelParameter:
    """A parameter of a kernel's function; `annotation` is its source text, such as "tl.int64"."""

    name: str
    is_constexpr: bool
    has_default: bool
    annotation: str


def kernel_parameters(source: str, kernel: str) -> tuple[KernelParameter, ...]:
    """Return the parameters of the function `kernel` of the file `source`, in order.

    Raises: CompileError if there is no such kernel.
    """
    with _readable_errors():
        program = Program(_KERNEL, _HOST, "", {})
        function = _find_kernel(program.globals, program.globals.open(source), kernel)
    defaults = default_expressions(function.node.args)
    return tuple(
        KernelParameter(
            parameter.arg,
            is_constexpr_annotation(parameter.annotation),
            parameter.arg in defaults,
            "" if parameter.annotation is None else ast.unparse(parameter.annotation),
        )
        for parameter in _parameters(function)
    )


def heuristic_problems(source: str, kernel: str, *, target: str = "") -> dict[str, str]:
    """Return the reason each heuristic of a kernel needs a launch, or "" if it needs none.

    The kernel's other constants are taken as 16. Raises: CompileError if there is no such kernel.
    """
    with _readable_errors():
        program = Program(_KERNEL, _HOST, target, {})
        function = _find_kernel(program.globals, program.globals.open(source), kernel)
        with at(function.file.loc(function.node)):
            return signatures.heuristic_problems(program, function, 16)


def launch_heuristics(
    source: str,
    kernel: str,
    arguments: Collection[str],
    constants: Collection[str],
    *,
    target: str = "",
    facts: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Return the conditions of boolean heuristics decided by launch integers.

    A condition is an expression over `arguments`, integers of a launch, and `constants`, parameters
    fixed at build time. Raises: CompileError if there is no such kernel.
    """
    with _readable_errors():
        program = Program(_KERNEL, _HOST, target, facts or {})
        function = _find_kernel(program.globals, program.globals.open(source), kernel)
        with at(function.file.loc(function.node)):
            heuristics = signatures.heuristics_of(program, function)
            texts = {
                name: launch_expression(program, heuristic, arguments, constants)
                for name, heuristic in heuristics.items()
            }
    return {name: text for name, text in texts.items() if text is not None}


# ---- autotuning -------------------------------------------------------------------------------


def autotune_configs(
    source: str,
    kernel: str,
    constants: Mapping[str, object] | None = None,
    *,
    target: str = "",
    facts: Mapping[str, object] | None = None,
) -> list[dict[str, object]]:
    """Return the configurations of the kernel's `@triton.autotune`, in order.

    Each holds the constants of one `triton.Config`, with its `num_warps` and `num_stages`.
    `early_config_prune` sees `constants` as launch arguments, and the GPU of `target` and `facts`.
    A `perf_model` only orders benchmarks and is ignored.

    Raises: CompileError if there is no such decorator or it cannot be evaluated.
    """
    with _readable_errors():
        program = Program(_KERNEL, _HOST, target, facts or {})
        module = program.globals
        file = module.open(source)
        function = _find_kernel(module, file, kernel)
        with at(file.loc(function.node)):
            call = _autotuner(function)
            config_lists = [] if call is None else _listed_configs(call) or call.args[:1]
            if call is not None and config_lists:
                items = unwrap(program.host_frame(function.file).visit(config_lists[0]))
                prune, loc = _prune_expression(call), file.loc(config_lists[0])
            else:
                autotuner = _evaluated_autotuner(program, function, kernel)
                if "configs" not in autotuner.kwargs and not autotuner.args:
                    raise mistake("@triton.autotune lists no configs", loc=autotuner.loc)
                items = unwrap(
                    autotuner.kwargs.get("configs", autotuner.args[0] if autotuner.args else None)
                )
                prune, loc = autotuner.kwargs.get("prune_configs_by"), autotuner.loc
            items = tuple(type_cast("list[Operand]", items)) if isinstance(items, list) else items
            if prune is not None and is_tuple(items) and items:
                items = _pruned(program, function, prune, items, constants or {})
            configs = (
                [item for item in items if isinstance(item, Config)] if is_tuple(items) else []
            )
            if not configs or not is_tuple(items) or len(configs) != len(items):
                raise mistake(
                    "the configs of @triton.autotune must be a list of triton.Config, "
                    f"got {show(items)}",
                    loc=loc,
                )
    return [_config_values(config) for config in configs]


def _autotuner(function: Function) -> ast.Call | None:
    """Return the decorator listing configs: `triton.autotune`, or any with `configs=`."""
    autotuners = decorator_calls(function.node, "autotune")
    if len(autotuners) > 1:
        _refuse_stacked(function.qualname, len(autotuners), function.file.loc(autotuners[1]))
    calls = [
        decorator for decorator in function.node.decorator_list if isinstance(decorator, ast.Call)
    ]
    return next(
        (call for call in (*autotuners, *calls) if call in autotuners or _listed_configs(call)),
        None,
    )


def _evaluated_autotuner(program: Program, function: Function, kernel: str) -> Decorator:
    """Return the autotuner applied to a kernel anywhere in its file.

    Raises: CompileError if there is none, or several.
    """
    autotuners = [
        decorator
        for decorator in decorators_of(program, function, kernel)
        if decorator.name == "autotune"
    ]
    if len(autotuners) == 1:
        return autotuners[0]
    if autotuners:
        _refuse_stacked(kernel, len(autotuners), autotuners[1].loc)
    problem = unknown_decorator(program, function)
    if problem is not None:
        reason, loc = problem
        raise mistake(
            f"{kernel} has no @triton.autotune decorator that is known without running the file: {reason}",
            remedy="list its configurations in the manifest",
            loc=loc,
        )
    raise mistake(
        f"{kernel} has no @triton.autotune decorator",
        remedy="list its configurations in the manifest",
    )


def _refuse_stacked(kernel: str, count: int, loc: Loc | None) -> NoReturn:
    raise mistake(
        f"{kernel} has {count} @triton.autotune decorators, which Triton cannot launch: each passes num_warps",
        remedy="make one of them, with all configs; or list the configs in the manifest",
        loc=loc,
    )


def _listed_configs(call: ast.Call) -> list[ast.expr]:
    return [keyword.value for keyword in call.keywords if keyword.arg == "configs"]


def _prune_expression(call: ast.Call) -> ast.expr | None:
    """Return the pruning function of an autotuner, or a dictionary of options."""
    for keyword in call.keywords:
        if keyword.arg != "prune_configs_by":
            continue
        options: dict[object, ast.expr | None] = {}
        if isinstance(keyword.value, ast.Dict):
            keys = [
                key.value if isinstance(key, ast.Constant) else key for key in keyword.value.keys
            ]
            options = dict(zip(keys, keyword.value.values, strict=True))
        elif isinstance(keyword.value, ast.Call) and dotted_name(keyword.value.func) == "dict":
            options = {key.arg: key.value for key in keyword.value.keywords}
        if not options or any(not isinstance(key, str) for key in options):
            return keyword.value
        return options.get("early_config_prune")
    return None


def _pruned(
    program: Program,
    function: Function,
    prune_argument: ast.expr | Operand,
    configs: Sequence[Operand],
    constants: Mapping[str, object],
) -> Operand:
    """Return the configs left by an autotuner's pruning function, given launch constants.

    `prune_argument` is an expression or its value.
    """
    args: dict[str, Operand] = {
        name: constant_operand(constants[name], name)
        if name in constants
        else External(f"the argument {name}")
        for name in (parameter.arg for parameter in _parameters(function))
    }
    try:
        frame = program.host_frame(function.file)
        prune = (
            frame.visit(prune_argument) if isinstance(prune_argument, ast.expr) else prune_argument
        )
        if isinstance(prune, dict):
            prune = type_cast("dict[str, Operand]", prune).get("early_config_prune")
        pruned = configs if prune is None else call_operand(frame, prune, [list(configs), args], {})
    except CompileError as error:
        raise CompileError(
            f"the early_config_prune of {function.qualname} cannot be evaluated at build time: "
            f"{error.message}",
            function.file.loc(prune_argument)
            if isinstance(prune_argument, ast.expr)
            else error.loc,
            remedy='fix what it asks for, in [kernel.constants] or as in n = "i32=64"; or list the '
            "configs in the manifest, and say in `where` which it drops",
        ) from error
    return unwrap(pruned)


def _parameters(function: Function) -> Sequence[ast.arg]:
    args = function.node.args
    return (*args.posonlyargs, *args.args, *args.kwonlyargs)


def _config_values(config: Config) -> dict[str, object]:
    values = {name: unwrap(value) for name, value in config.values.items() if value is not None}
    return {
        **values,
        **{name: value for name, value in _DEFAULT_CONFIG.items() if name not in values},
    }
