"""Translate boolean heuristics to expressions over launch arguments.

`lambda args: args["n"] % args["BLOCK"] == 0` is decided at launch. Its text in the language of
grids and guards (`aotc.ir.expression`) lets a package hold both variants, each guarded by its
condition. The function's syntax is translated: free names besides its argument must be constants.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from aotc.frontend.language.constants import unwrap
from aotc.frontend.python.frame import Frame, Program
from aotc.frontend.python.resolve import dotted_name
from aotc.frontend.values import Closure, Function, Operand
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError

_OPERATORS: dict[type[ast.operator | ast.cmpop], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_FUNCTIONS = {"min": 2, "max": 2, "cdiv": 2}
_MAX_DEPTH = 8


class _NoExpressionError(Exception):
    """A launcher cannot compute this."""


def launch_expression(
    program: Program, heuristic: Operand, arguments: Collection[str], constants: Collection[str]
) -> str | None:
    """Return the launch-time condition of a boolean heuristic, or None if there is none.

    The expression ranges over `arguments`, integers of a launch, and `constants` from a config or the
    manifest. It must use an argument.
    """
    body_expression = _expression_of(program, heuristic)
    if body_expression is None or len(body_expression.names) != 1:
        return None
    printer = _Printer(
        program, body_expression.frame, arguments, constants, launch_args=body_expression.names[0]
    )
    try:
        text = printer.truth(body_expression.body)
    except (_NoExpressionError, CompileError):
        return None
    return text if _names(text) & {*arguments} else None


@dataclass(frozen=True)
class _Expression:
    """A single-expression function: its frame, parameter names and body."""

    frame: Frame
    names: tuple[str, ...]
    body: ast.expr


def _expression_of(program: Program, function: Operand) -> _Expression | None:
    if isinstance(function, Closure):
        frame = program.host_frame(function.file, function.values)
    elif isinstance(function, Function) and not function.is_jit:
        frame = program.host_frame(function.file)
    else:
        return None
    node, parameters = function.node, function.node.args
    if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.defaults:
        return None
    body: ast.expr | None = None
    if isinstance(node, ast.Lambda):
        body = node.body
    else:
        statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
        statement = statements[0] if len(statements) == 1 else None
        body = statement.value if isinstance(statement, ast.Return) else None
    names = tuple(parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args))
    return None if body is None else _Expression(frame, names, body)


def _names(text: str) -> set[str]:
    return {*expression.free_names(expression.parse(text))}


@dataclass(frozen=True)
class _Printer:
    """Printer of expressions over launch arguments, `args["name"]`.

    `bound` maps parameters of a called function to expressions of its caller.
    """

    program: Program
    frame: Frame
    arguments: Collection[str]
    constants: Collection[str]
    launch_args: str = ""
    bound: Mapping[str, tuple[_Printer, ast.expr]] = field(
        default_factory=dict[str, "tuple[_Printer, ast.expr]"]
    )
    depth: int = 0

    def truth(self, node: ast.expr) -> str:
        """Return the text of a boolean expression."""
        match node:
            case ast.BoolOp(op, values):
                connective = " and " if isinstance(op, ast.And) else " or "
                return connective.join(f"({self.truth(operand_node)})" for operand_node in values)
            case ast.UnaryOp(ast.Not(), operand):
                return f"not ({self.condition(operand)})"
            case ast.Compare(left, ops, comparators):
                texts = [self.number(operand_node) for operand_node in (left, *comparators)]
                signs = [self._operator(op) for op in ops]
                pairs = zip(texts, signs, texts[1:], strict=False)
                return " and ".join(f"({a} {sign} {b})" for a, sign, b in pairs)
            case ast.Call(ast.Name("bool"), [argument], []):
                return f"({self.condition(argument)}) != 0"
            case ast.Name(name) if name in self.bound:
                caller, passed = self.bound[name]
                return caller.truth(passed)
            case ast.Call() if (inner := self._inline(node)) is not None:
                printer, body = inner
                return printer.truth(body)
            case _:
                return str(int(self._constant(node, bool)))

    def condition(self, node: ast.expr) -> str:
        """Return the text of a condition; a number is compared with 0."""
        try:
            return self.truth(node)
        except _NoExpressionError:
            return f"({self.number(node)}) != 0"

    def number(self, node: ast.expr) -> str:
        match node:
            case ast.Subscript(ast.Name(owner), ast.Constant(str(name))) if (
                owner == self.launch_args
            ):
                if name not in self.arguments and name not in self.constants:
                    raise _NoExpressionError
                return name
            case ast.Name(name) if name in self.bound:
                caller, passed = self.bound[name]
                return caller.number(passed)
            case ast.BinOp(left, op, right):
                divisor = self.number(right)
                if isinstance(op, ast.FloorDiv | ast.Mod):
                    self._check_divisor(divisor)
                return f"({self.number(left)} {self._operator(op)} {divisor})"
            case ast.UnaryOp(ast.USub(), operand):
                return f"(-{self.number(operand)})"
            case ast.Call(function, arguments, []) if (
                name := (dotted_name(function) or "").removeprefix("triton.").removeprefix("tl.")
            ) in _FUNCTIONS and len(arguments) == _FUNCTIONS[name]:
                first, second = map(self.number, arguments)
                if name == "cdiv":
                    self._check_divisor(second)
                return f"{name}({first}, {second})"
            case ast.Call() if (inner := self._inline(node)) is not None:
                printer, body = inner
                return printer.number(body)
            case _:
                return f"({self._constant(node, int)})"

    def _inline(self, node: ast.Call) -> tuple[_Printer, ast.expr] | None:
        """Return the printer and body of an inlined source function; None for another call."""
        names = {part.id for part in ast.walk(node.func) if isinstance(part, ast.Name)}
        if self.depth >= _MAX_DEPTH or names & {self.launch_args, *self.bound}:
            return None
        callee = _expression_of(self.program, self.frame.visit(node.func))
        if callee is None:
            return None
        passed = dict(zip(callee.names, node.args, strict=False))
        passed |= {
            keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None
        }
        if len(node.args) + len(node.keywords) != len(callee.names) or {*passed} != {*callee.names}:
            return None
        bound = {name: (self, value) for name, value in passed.items()}
        return replace(
            self, frame=callee.frame, launch_args="", bound=bound, depth=self.depth + 1
        ), callee.body

    def _check_divisor(self, text: str) -> None:
        """Refuse a launch argument as a divisor: it may be 0, and `and` does not short-circuit."""
        if _names(text) & {*self.arguments}:
            raise _NoExpressionError

    def _operator(self, op: ast.operator | ast.cmpop) -> str:
        if type(op) not in _OPERATORS:
            raise _NoExpressionError
        return _OPERATORS[type(op)]

    def _constant(self, node: ast.expr, kind: type[int]) -> int:
        """Evaluate an expression without launch arguments. Raises: _NoExpressionError."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        is_launch = bool(names & {self.launch_args, *self.bound})
        value = None if is_launch else unwrap(self.frame.visit(node))
        if not isinstance(value, kind):
            raise _NoExpressionError
        return value
