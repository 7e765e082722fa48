"""Find a file's launches of a kernel, and infer their arguments from the host code.

Nothing is executed. A local variable assigned once is followed to its expression: a literal, a
module constant, or an expression over other variables.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from aotc.frontend.language.constants import unwrap
from aotc.frontend.python.resolve import dotted_name
from aotc.frontend.source import SourceFile
from aotc.frontend.survey.support import Survey
from aotc.frontend.values import Function, show
from aotc.ir.diagnostics import CompileError
from aotc.ir.types import SCALARS
from aotc.package.init.dtypes import dtype_name
from aotc.tuple_constant import tuple_text

Kind: TypeAlias = Literal["int", "float", "bool", "tensor", ""]

_MAX_DEPTH = 6
_INTEGER_METHODS = ("stride", "numel", "size", "dim", "nelement", "element_size", "bit_length")
_INTEGER_FUNCTIONS = ("int", "len", "cdiv", "next_power_of_2")
_ALLOCATIONS = ("empty", "zeros", "ones", "full", "tensor", "arange", "new_empty", "new_zeros")
_ANNOTATIONS: Mapping[str, Kind] = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "torch.Tensor": "tensor",
    "Tensor": "tensor",
}
_MANY = object()


@dataclass
class Host:
    """The function (or module) around a launch; resolves its expressions."""

    survey: Survey
    file: SourceFile
    node: ast.FunctionDef | None

    @cached_property
    def assignments(self) -> dict[str, list[ast.expr]]:
        """All expressions assigned to each local variable, in order."""
        assignments: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.node) if self.node is not None else ():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                for name, value in (
                    _pairs(target, node.value) if isinstance(node, ast.Assign) else ()
                ):
                    if isinstance(value, ast.expr):
                        assignments.setdefault(name, []).append(value)
        return assignments

    @cached_property
    def assigned(self) -> dict[str, ast.expr | object]:
        """The expression assigned to each local variable, `_MANY` for several."""
        assigned: dict[str, ast.expr | object] = {}
        for node in ast.walk(self.node) if self.node is not None else ():
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name, value in _pairs(target, node.value):
                        assigned[name] = _MANY if name in assigned else value
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                assigned[node.target.id] = _MANY
            elif isinstance(node, ast.FunctionDef) and node is not self.node:
                assigned[node.name] = _MANY if node.name in assigned else node
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assigned.setdefault(node.id, _MANY)
        return assigned

    @cached_property
    def module_lambdas(self) -> dict[str, ast.expr]:
        """Module-level lambdas by name, if assigned once."""
        assigned: dict[str, list[ast.expr]] = {}
        for node in _module_level(self.file.tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
                    assigned.setdefault(target.id, []).append(node.value)
        return {
            k: v[0] for k, v in assigned.items() if len(v) == 1 and isinstance(v[0], ast.Lambda)
        }

    @cached_property
    def parameters(self) -> dict[str, ast.arg]:
        """The parameters of the function."""
        if self.node is None:
            return {}
        args = self.node.args
        return {arg.arg: arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}

    def expand(self, node: ast.expr) -> ast.expr | ast.FunctionDef:
        """Follow local variables and module lambdas to their expression."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(node, ast.Name):
                break
            value = self.assigned.get(node.id, self.module_lambdas.get(node.id))
            if node.id in self.parameters or not isinstance(value, ast.expr):
                return value if isinstance(value, ast.FunctionDef) else node
            node = value
        return node

    def literal(self, node: ast.expr) -> object:
        """Return an expression's value if constant. Raises: LookupError."""
        expanded = self.expand(node)
        names = {child.id for child in ast.walk(expanded) if isinstance(child, ast.Name)}
        is_local = any(name in self.parameters or name in self.assigned for name in names)
        if isinstance(expanded, ast.FunctionDef) or is_local:
            raise LookupError
        try:
            value = unwrap(self.survey.host_frame(self.file).visit(expanded))
        except CompileError:
            raise LookupError from None
        dtype = dtype_name(expanded)
        if dtype:
            return dtype
        if value is None or isinstance(value, bool | int | float | str):
            return value
        text = tuple_text(value)
        if text:
            return text
        name = show(value)
        if name in SCALARS:
            return name
        raise LookupError

    def function(self, node: ast.expr) -> Function | None:
        """Return the host function called by an expression, None if unknown."""
        if not isinstance(node, ast.Call):
            return None
        try:
            callee = self.survey.host_frame(self.file).visit(node.func)
        except CompileError:
            return None
        return callee if isinstance(callee, Function) and not callee.is_jit else None

    def kind(self, node: ast.expr, depth: int = 0) -> Kind:
        """Return the Python type of an argument, "" if unknown."""
        if depth > _MAX_DEPTH:
            return ""
        if isinstance(node, ast.Name):
            return self._kind_of_name(node.id, depth)
        if isinstance(node, ast.Constant):
            return _kind_of_value(node.value)
        if isinstance(node, ast.UnaryOp):
            return "bool" if isinstance(node.op, ast.Not) else self.kind(node.operand, depth + 1)
        if isinstance(node, ast.Compare):
            return "bool"
        if isinstance(node, ast.BoolOp | ast.IfExp):
            parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
            kinds: set[Kind] = {self.kind(operand, depth + 1) for operand in parts}
            return kinds.pop() if len(kinds) == 1 else ""
        if isinstance(node, ast.BinOp):
            kinds = {self.kind(operand, depth + 1) for operand in (node.left, node.right)}
            if "float" in kinds or (isinstance(node.op, ast.Div) and kinds == {"int"}):
                return "float"
            return "int" if kinds == {"int"} else ""
        if isinstance(node, ast.Subscript):
            return "int" if _is_shape(node.value) else ""
        if isinstance(node, ast.Call):
            return self._kind_of_call(node)
        return ""

    def _kind_of_name(self, name: str, depth: int) -> Kind:
        if name in self.parameters:
            return self._kind_of_parameter(name)
        value = self.assigned.get(name)
        if isinstance(value, ast.expr):
            return self.kind(value, depth + 1)
        if value is not None:
            return ""
        try:
            return _kind_of_value(self.literal(ast.Name(name, ast.Load())))
        except LookupError:
            return ""

    def _kind_of_parameter(self, name: str) -> Kind:
        annotation = self.parameters[name].annotation
        if annotation is None:
            return ""
        return _ANNOTATIONS.get(ast.unparse(annotation)) or ""

    @staticmethod
    def _kind_of_call(node: ast.Call) -> Kind:
        name = dotted_name(node.func).rpartition(".")[2] or (
            node.func.attr if isinstance(node.func, ast.Attribute) else ""
        )
        if name in ("float", "bool"):
            return _ANNOTATIONS[name]
        if name in _INTEGER_FUNCTIONS or name in _INTEGER_METHODS:
            return "int"
        return "tensor" if name in _ALLOCATIONS or name.endswith("_like") else ""

    def dtype(self, node: ast.expr) -> str:
        """Return the dtype named in a tensor's allocation, "" if none is."""
        allocation = self.expand(node)
        if not isinstance(allocation, ast.Call):
            return ""
        for keyword in allocation.keywords:
            if keyword.arg == "dtype":
                expanded = self.expand(keyword.value)
                return "" if isinstance(expanded, ast.FunctionDef) else dtype_name(expanded)
        return ""

    def has_own_dtype(self, node: ast.expr) -> bool:
        """Return whether a tensor's allocation names a dtype other than another tensor's."""
        allocation = self.expand(node)
        return isinstance(allocation, ast.Call) and any(
            keyword.arg == "dtype" and not ast.unparse(keyword.value).endswith(".dtype")
            for keyword in allocation.keywords
        )


@dataclass
class Launch:
    """One `kernel[grid](…)`: its arguments by parameter, and the options of the launch."""

    host: Host
    line: int
    grid: ast.expr
    arguments: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    options: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    is_whole: bool = True


def launches_of(
    survey: Survey, file: SourceFile, kernel: str, parameters: tuple[str, ...]
) -> list[Launch]:
    """Return a file's launches of a kernel, by line."""
    launches = [
        _launch(Host(survey, file, around), node, node.func.slice, parameters)
        for around, node in _calls(file.tree, None)
        if isinstance(node.func, ast.Subscript)
        if kernel in _launched(Host(survey, file, around), node.func.value)
    ]
    return sorted(launches, key=lambda launch: launch.line)


def _launched(host: Host, node: ast.expr, depth: int = 0) -> list[str]:
    """Return the possible kernels before a grid: by name, variable, or `wrap(kernel)`."""
    if isinstance(node, ast.Call) and node.args:
        return _launched(host, node.args[0], depth)
    if isinstance(node, ast.IfExp):
        return _launched(host, node.body, depth) + _launched(host, node.orelse, depth)
    names = [_last(node)]
    value = host.assigned.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(value, ast.expr) and depth < _MAX_DEPTH:
        names += _launched(host, value, depth + 1)
    return names


def _launch(host: Host, node: ast.Call, grid: ast.expr, parameters: tuple[str, ...]) -> Launch:
    launch = Launch(host, node.lineno, grid)
    for name, value in zip(parameters, node.args, strict=False):
        if isinstance(value, ast.Starred):
            launch.is_whole = False
            break
        launch.arguments[name] = value
    for keyword in node.keywords:
        if keyword.arg is None:
            launch.is_whole = False
        elif keyword.arg in parameters:
            launch.arguments[keyword.arg] = keyword.value
        else:
            launch.options[keyword.arg] = keyword.value
    return launch


def _calls(
    node: ast.AST, around: ast.FunctionDef | None
) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    """Yield all calls, each with the outermost function around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield around, child
        inner = child if isinstance(child, ast.FunctionDef) and around is None else around
        yield from _calls(child, inner)


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module's nodes outside functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _module_level(child)


def _last(node: ast.expr) -> str:
    return dotted_name(node).rpartition(".")[2]


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr | object]]:
    """Yield each name of an assignment's target with its value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        is_tuple = isinstance(value, ast.Tuple | ast.List)
        parts = value.elts if is_tuple and len(value.elts) == len(target.elts) else []
        for index, element in enumerate(target.elts):
            if parts:
                yield from _pairs(element, parts[index])
            elif isinstance(element, ast.Name):
                yield element.id, ast.Subscript(value, ast.Constant(index), ast.Load())


def _is_shape(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return method in ("size", "stride") and not node.args
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _kind_of_value(value: object) -> Kind:
    kinds: Mapping[type, Kind] = {bool: "bool", int: "int", float: "float"}
    return kinds.get(type(value), "")
