"""Translate a launch's grid to manifest expressions over the kernel's arguments and constants.

The grid is a tuple, or a lambda or function returning one. Host names are replaced by the kernel
argument they are passed as, by a constant, or by the value assigned to a local variable.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aotc.config import CONFIG_KEYS
from aotc.frontend.python.resolve import dotted_name
from aotc.package.init.launches import Host, Launch

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_FUNCTIONS = {"cdiv": "cdiv", "min": "min", "max": "max"}
_MAX_RANK, _MAX_DEPTH = 3, 20


def grid_of(launch: Launch, names: Collection[str]) -> list[str] | None:
    """Return the grid's expressions over the kernel's `names`; None if it needs others."""
    grid = launch.host.expand(launch.grid)
    meta = ""
    if isinstance(grid, ast.Lambda):
        meta, grid = _parameter(grid.args), grid.body
    elif isinstance(grid, ast.FunctionDef):
        returned = [child.value for child in ast.walk(grid) if isinstance(child, ast.Return)]
        meta = _parameter(grid.args)
        if len(returned) != 1 or returned[0] is None:
            return None
        grid = returned[0]
    parts = grid.elts if isinstance(grid, ast.Tuple | ast.List) else []
    if not 1 <= len(parts) <= _MAX_RANK:
        return None
    kernel_names = {
        ast.unparse(value): name
        for name, value in launch.arguments.items()
        if name in names and not isinstance(value, ast.Constant)
    }
    writer = _Writer(launch.host, meta, kernel_names, names)
    try:
        return [ast.unparse(writer.write(part, 0)) for part in parts]
    except LookupError:
        return None


def _parameter(args: ast.arguments) -> str:
    return args.args[0].arg if len(args.args) == 1 else ""


@dataclass(frozen=True)
class _Writer:
    """Rewrite host expressions in the kernel's names; LookupError if one needs others."""

    host: Host
    meta: str
    kernel_names: Mapping[str, str]
    names: Collection[str]

    def write(self, node: ast.expr, depth: int) -> ast.expr:
        if depth > _MAX_DEPTH:
            raise LookupError
        named = self.kernel_names.get(ast.unparse(node))
        if named is not None:
            return ast.Name(named)
        if isinstance(node, ast.Subscript):
            return self.of_meta(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
            left, right = (self.write(operand, depth + 1) for operand in (node.left, node.right))
            return ast.BinOp(left, node.op, right)
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        return self.leaf(node, depth)

    def of_meta(self, node: ast.Subscript) -> ast.expr:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        is_meta = isinstance(node.value, ast.Name) and node.value.id == self.meta
        if is_meta and isinstance(key, str) and (key in self.names or key in CONFIG_KEYS):
            return ast.Name(key)
        raise LookupError

    def call(self, node: ast.Call, depth: int) -> ast.expr:
        name = dotted_name(node.func).rpartition(".")[2]
        if name == "int" and len(node.args) == 1:
            return self.write(node.args[0], depth + 1)
        if name == "ceil" and len(node.args) == 1:
            ratio = node.args[0]
            if isinstance(ratio, ast.BinOp) and isinstance(ratio.op, ast.Div):
                return self.function("cdiv", [ratio.left, ratio.right], depth)
        if name in _FUNCTIONS and len(node.args) == 2 and not node.keywords:
            return self.function(name, node.args, depth)
        raise LookupError

    def function(self, name: str, args: list[ast.expr], depth: int) -> ast.expr:
        return ast.Call(ast.Name(name), [self.write(arg, depth + 1) for arg in args], [])

    def leaf(self, node: ast.expr, depth: int) -> ast.expr:
        try:
            value = self.host.literal(node)
        except LookupError:
            value = None
        if isinstance(value, int) and not isinstance(value, bool):
            return ast.Constant(value)
        expanded = self.host.expand(node) if isinstance(node, ast.Name) else node
        if expanded is node or isinstance(expanded, ast.FunctionDef):
            raise LookupError
        return self.write(expanded, depth + 1)
