"""Sample values of host expressions, for constants that launches compute.

A host parameter has its default, an axis of a tensor a typical extent. Constants computed from
each other agree: `BK = min(next_power_of_2(K), 64)` is 32 where `K` was taken for 32.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from aotc.package.init.launches import Host
from aotc.package.init.nodes import defaults, is_none
from aotc.tuple_constant import tuple_of

EXTENT = 64
"""The extent of a tensor's axis, where nothing tells it."""

_MAX_DEPTH = 12
_SIZES = ("size", "numel", "nelement")


@dataclass(frozen=True, slots=True)
class Samples:
    """Evaluate expressions of a host function; `values` are known by an expression's text."""

    host: Host
    values: Mapping[str, object] = field(default_factory=dict[str, object])

    def value(self, node: ast.expr, depth: int = 0) -> object:
        """Return a value that the expression may have. Raises: LookupError."""
        if depth > _MAX_DEPTH:
            raise LookupError
        return self.host.literal(_Substitution(self, depth).visit(copy.deepcopy(node)))

    def of_variable(self, name: str, depth: int) -> object:
        """Return a parameter's default, or what a variable may be. Raises: LookupError."""
        if name in self.host.parameters and self.host.node is not None:
            default = defaults(self.host.node).get(name)
            if default is None or is_none(default):
                raise LookupError
            return self.value(default, depth)
        for expression in self.host.assignments.get(name, ()):
            value = self._value_or(expression, depth, _OPEN)
            if value is not _OPEN:
                return value
        raise LookupError

    def of_call(self, node: ast.Call, depth: int) -> object:
        """Return the result of a host function with one return. Raises: LookupError."""
        function = self.host.function(node)
        children = ast.walk(function.node) if function is not None else ()
        results = [child.value for child in children if isinstance(child, ast.Return)]
        if function is None or len(results) != 1 or results[0] is None:
            raise LookupError
        inner = Host(self.host.survey, function.file, function.node)
        arguments = dict(zip(inner.parameters, node.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        values = {name: self._value_or(part, depth, _OPEN) for name, part in arguments.items()}
        by_name = {name: value for name, value in values.items() if value is not _OPEN}
        return Samples(inner, by_name).value(results[0], depth)

    def _value_or(self, node: ast.expr, depth: int, default: object) -> object:
        try:
            return self.value(node, depth)
        except LookupError:
            return default


_OPEN = object()


class _Substitution(ast.NodeTransformer):
    """Replace what the host computes with from launches by constants."""

    def __init__(self, samples: Samples, depth: int) -> None:
        self._samples = samples
        self._depth = depth + 1

    def visit(self, node: ast.AST) -> ast.expr:
        if isinstance(node, ast.expr):
            value = self._samples.values.get(ast.unparse(node), _OPEN)
            if value is not _OPEN:
                return _constant(value)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        host = self._samples.host
        if node.id in host.parameters or node.id in host.assigned:
            return _constant(self._samples.of_variable(node.id, self._depth))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return _constant(EXTENT)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SIZES:
            return _constant(EXTENT)
        if self._samples.host.function(node) is not None:
            try:
                return _constant(self._samples.of_call(node, self._depth))
            except LookupError:
                pass  # the evaluator may know it as a whole
        node.args = [self.visit(arg) for arg in node.args]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        try:
            is_first = bool(self._samples.host.literal(self.visit(node.test)))
        except LookupError:
            is_first = True
        return self.visit(node.body if is_first else node.orelse)


def _constant(value: object) -> ast.expr:
    if not isinstance(value, bool | int | float | str):
        raise LookupError  # noqa: TRY004 - it is open
    if isinstance(value, str) and tuple_of(value) is not None:
        return ast.parse(value, mode="eval").body
    return ast.Constant(value)
