"""Find unsupported features of kernels from the source alone, without types.

The evaluator walks each function once, with the handlers of `untyped`. Checks on types or values
are left to a build and count as supported.

An `if` decided by module constants has one live arm, as in translation.

Invariant: `translate` also refuses everything refused here, once it reaches the line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aotc.frontend.emitter import mistake
from aotc.frontend.language.arguments import parameters_of
from aotc.frontend.python.expressions import HOST_EXPRESSIONS
from aotc.frontend.python.frame import (
    Frame,
    Steps,
    Syntax,
)
from aotc.frontend.python.globals import describe_function
from aotc.frontend.python.jit_decorators import is_triton_jit
from aotc.frontend.python.outer_names import outer_names
from aotc.frontend.python.resolve import bindings, dotted_name, own_nodes
from aotc.frontend.python.scope import is_constexpr_annotation, names_assigned_by
from aotc.frontend.python.statements import HOST_STATEMENTS
from aotc.frontend.source import SourceFile
from aotc.frontend.survey.untyped import (
    UNKNOWN,
    UNTYPED_EXPRESSIONS,
    UNTYPED_STATEMENTS,
    Findings,
    Key,
    Refusal,
    Untyped,
    key_of,
    refuse,
    run,
)
from aotc.frontend.values import (
    Class,
    External,
    Function,
    Unbound,
)
from aotc.ir.diagnostics import CompileError

_BEFORE_BRACKET = re.compile(r"(\w+)\)?\[")


@dataclass(frozen=True, slots=True)
class FunctionSupport:
    """Unsupported features and callees of one jit function.

    `is_launched`: its file launches it on a grid; `returns`: it returns a value. `decorator` is a
    library's own decorator of the jit function, such as `pointwise_dynamic`. `captures` are unknown
    variables of outer functions.
    """

    key: Key
    name: str
    refusals: tuple[Refusal, ...]
    uses: tuple[Key, ...]
    is_launched: bool = False
    returns: bool = False
    decorator: str = ""
    captures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnnamedKernel:
    """Kernels without a name for manifests, by the creating call."""

    file: str
    line: int
    name: str
    maker: str


class Survey(Untyped):
    """Survey of any number of files; each file is read once, each function walked once."""

    def __init__(self, target: str) -> None:
        super().__init__(
            Syntax(UNTYPED_EXPRESSIONS, UNTYPED_STATEMENTS),
            Syntax(HOST_EXPRESSIONS, HOST_STATEMENTS),
            target,
            {},
        )
        self.target = target
        self.findings = Findings()
        self._cache: dict[Key, tuple[FunctionSupport, list[Function]]] = {}

    def functions(self, path: str) -> list[FunctionSupport]:
        """Return the support of each jit function of a file, then of their callees.

        Raises: CompileError if the file is not Python.
        """
        file = self.globals.open(path)
        launched = _launched_names(file)
        waiting = list(self._jit_functions(file))
        supports: dict[Key, FunctionSupport] = {}
        while waiting:
            function = waiting.pop(0)
            key = key_of(function)
            if key in supports:
                continue
            support, callees = self._support(key, function)
            is_launched = function.file is file and function.node.name in launched
            supports[key] = replace(support, is_launched=is_launched)
            waiting += callees
        return list(supports.values())

    def unnamed(self, path: str) -> list[UnnamedKernel]:
        """Return the calls of `triton.jit` on unknown objects."""
        file = self.globals.open(path)
        if not any("jit(" in line and not line.lstrip().startswith("@") for line in file.lines):
            return []
        return [
            UnnamedKernel(file.path, node.lineno, ast.unparse(node.args[0]), "triton.jit")
            for node in ast.walk(file.tree)
            if isinstance(node, ast.Call) and node.args
            if self._is_jit(file, node.func) and not self._is_function(file, node.args[0])
        ]

    def _is_function(self, file: SourceFile, node: ast.expr) -> bool:
        try:
            return isinstance(self.host_frame(file).visit(node), Function)
        except CompileError:
            return False

    def _support(self, key: Key, function: Function) -> tuple[FunctionSupport, list[Function]]:
        cached = self._cache.get(key)
        if cached is None:
            findings = self._examine(function)
            refusals, uses = tuple(findings.refusals), tuple(findings.uses)
            support = FunctionSupport(
                key,
                function.qualname,
                refusals,
                uses,
                returns=_returns(function.node),
                decorator=_outer_decorator(function.node),
                captures=tuple(findings.captures),
            )
            cached = self._cache[key] = (support, list(findings.uses.values()))
        return cached

    def _examine(self, function: Function) -> Findings:
        """Walk the body of a function once."""
        outer, self.findings = self.findings, Findings()
        self.host_steps = Steps("evaluating the globals of the kernel's file takes too long")
        node, file = function.node, function.file
        parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        names = [
            parameter.arg for parameter in (*parameters, node.args.vararg) if parameter is not None
        ]
        frame = Frame(self, file, {}, None, in_kernel=True, function=function)
        try:
            outer_values = outer_names(self, function)
            self.findings.captures = [
                name for name, value in outer_values.items() if isinstance(value, Unbound)
            ]
            frame.values |= outer_values
            unknown = (*self.findings.captures, *names, *names_assigned_by(node.body))
            frame.values |= dict.fromkeys(unknown, UNKNOWN)
            parameters_of(function.qualname, node.args)
            self.findings.classes = self._classes_of(file, parameters)
            self.findings.constants = frozenset(
                parameter.arg
                for parameter in parameters
                if is_constexpr_annotation(parameter.annotation)
            )
            run(frame, node.body)
        except CompileError as error:
            refuse(frame, node, error)
        except RecursionError:
            refuse(frame, node, mistake("the source is nested too deeply to be translated"))
        findings, self.findings = self.findings, outer
        return findings

    def _classes_of(self, file: SourceFile, parameters: Sequence[ast.arg]) -> list[Class]:
        """Return the classes of possible objects in a function."""
        classes = [
            Class(file, binding.statement, name)
            for name, listed in bindings(file).items()
            for binding in listed
            if isinstance(binding.statement, ast.ClassDef)
        ]
        for parameter in parameters:
            if isinstance(parameter.annotation, ast.Name | ast.Attribute):
                try:
                    annotation = self.host_frame(file).visit(parameter.annotation)
                except CompileError:
                    continue
                classes += [annotation] if isinstance(annotation, Class) else []
        return classes

    # -- the jit functions of a file -------------------------------------------

    def _jit_functions(self, file: SourceFile) -> Iterator[Function]:
        for node, qualname in _definitions(file.tree, ""):
            is_jit = any(self._is_jit(file, decorator) for decorator in node.decorator_list)
            if is_jit and not self._is_ruled_out(file, node, qualname):
                yield describe_function(file, node, self._global_name(file, node, qualname))
        for name, listed in bindings(file).items():
            for binding in listed:
                call = (
                    binding.statement.value if isinstance(binding.statement, ast.Assign) else None
                )
                if isinstance(call, ast.Call) and self._makes_kernel(file, call):
                    yield from self._wrapped_functions(file, name)

    def _makes_kernel(self, file: SourceFile, call: ast.expr) -> bool:
        """Return whether calls such as `triton.heuristics(…)(triton.jit(f))` make a kernel."""
        while isinstance(call, ast.Call):
            if self._is_jit(file, call.func):
                return True
            if not call.args:
                return False
            call = call.args[0]
        return False

    def _is_ruled_out(self, file: SourceFile, node: ast.FunctionDef, name: str) -> bool:
        """Return whether the name resolves to another of several functions, as for other GPUs."""
        if sum(binding.statement is not node for binding in bindings(file).get(name, ())) == 0:
            return False
        try:
            function = self.globals.lookup(file, name)
        except CompileError:
            return False
        return isinstance(function, Function) and function.is_jit and function.node is not node

    def _global_name(self, file: SourceFile, node: ast.FunctionDef, name: str) -> str:
        """Return a module-level name of a function: its own name may be rebound."""
        if "." in name or self._resolves_to(file, name, node):
            return name
        aliases = (
            alias
            for alias, listed in bindings(file).items()
            for binding in listed
            if isinstance(binding.statement, ast.Assign)
            if isinstance(binding.statement.value, ast.Name) and binding.statement.value.id == name
        )
        return next((alias for alias in aliases if self._resolves_to(file, alias, node)), name)

    def _resolves_to(
        self, file: SourceFile, name: str, node: ast.FunctionDef, *, is_jit: bool = False
    ) -> bool:
        try:
            operand = self.globals.lookup(file, name)
        except CompileError:
            return False
        is_same = isinstance(operand, Function) and operand.node is node
        return is_same and (not is_jit or (isinstance(operand, Function) and operand.is_jit))

    def _wrapped_functions(self, file: SourceFile, name: str) -> Iterator[Function]:
        try:
            function = self.globals.lookup(file, name)
        except CompileError:
            return
        if isinstance(function, Function) and function.file is file:
            qualname = function.qualname
            means_it = "." in qualname or self._resolves_to(
                file, qualname, function.node, is_jit=True
            )
            yield function if means_it else replace(function, qualname=name)

    def _is_jit(self, file: SourceFile, decorator: ast.expr) -> bool:
        """Return whether a decorator is Triton's `jit`, under any name."""
        if not dotted_name(decorator).endswith("jit"):
            return False
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        try:
            operand = self.host_frame(file).visit(node)
        except CompileError:
            return False
        return isinstance(operand, External) and is_triton_jit(operand.path)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Yield every function of a file with its dotted name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            qualname = f"{prefix}{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield child, qualname
            yield from _definitions(child, f"{qualname}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child, prefix)


def _returns(node: ast.FunctionDef) -> bool:
    """Return whether a function returns a value; kernels cannot."""
    return any(
        isinstance(child, ast.Return)
        and child.value is not None
        and not (isinstance(child.value, ast.Constant) and child.value.value is None)
        for child in own_nodes(node.body)
    )


def _outer_decorator(node: ast.FunctionDef) -> str:
    """Return the outermost foreign decorator of a jit function, or ""."""
    for decorator in node.decorator_list:
        name = dotted_name(decorator).rpartition(".")[2]
        if name.endswith("jit"):
            return ""
        if name and name not in ("autotune", "heuristics"):
            return name
    return ""


def _launched_names(file: SourceFile) -> set[str]:
    """Return the names before a bracket, as in `name[grid](…)` or `wrap(name)[grid](…)`."""
    return {name for line in file.lines for name in _BEFORE_BRACKET.findall(line)}
