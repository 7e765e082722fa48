"""Which heuristics of a kernel a launcher can decide: truth values of integers that launches pass.

`lambda args: args["n"] % args["BLOCK"] == 0` is known when the kernel is launched. Of such a function
there is a text in the language of grids and guards (`aotc.ir.expression`), so that both values can be
built, each with the condition under which it is right. The function's own text is translated, not what
it gives: names that it sees besides its argument must be constants.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from aotc.frontend.constants import unwrap
from aotc.frontend.frame import Frame, Program
from aotc.frontend.resolve import dotted_name
from aotc.frontend.values import Closure, Function, Operand
from aotc.ir.diagnostics import CompileError

_OPERATORS: dict[type[ast.operator | ast.cmpop], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_FUNCTIONS = {"min": 2, "max": 2, "cdiv": 2}


class _NoExpressionError(Exception):
    """A launcher cannot compute this."""


def launch_expression(
    program: Program, heuristic: Operand, arguments: Collection[str], constants: Collection[str]
) -> str | None:
    """Return the text of a heuristic's truth value, or None if it is none that a launcher computes.

    It is one of `arguments`, integers that a launch passes, and of `constants`, which a config or the
    manifest gives; what no argument decides is not the launcher's.
    """
    if isinstance(heuristic, Closure):
        frame = program.host_frame(heuristic.file, heuristic.values)
    elif isinstance(heuristic, Function):
        frame = program.host_frame(heuristic.file)
    else:
        return None
    given, body = heuristic.node.args, _body(heuristic.node)
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    if body is None or len(names) != 1 or given.vararg or given.kwarg or given.kwonlyargs:
        return None
    texts = _Texts(frame, names[0], arguments, constants)
    try:
        text = texts.truth(body)
    except (_NoExpressionError, CompileError):
        return None
    return text if texts.has_arguments else None


def _body(node: ast.Lambda | ast.FunctionDef) -> ast.expr | None:
    if isinstance(node, ast.Lambda):
        return node.body
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    only = statements[0] if len(statements) == 1 else None
    return only.value if isinstance(only, ast.Return) else None


class _Texts:
    """The text of expressions over the arguments of a launch, `args["name"]`."""

    def __init__(
        self, frame: Frame, given: str, arguments: Collection[str], constants: Collection[str]
    ) -> None:
        self._frame, self._given = frame, given
        self._arguments, self._constants = arguments, constants
        self.has_arguments = False

    def truth(self, node: ast.expr) -> str:
        """Return the text of what is True or False in Python as well."""
        match node:
            case ast.BoolOp(op, values):
                word = " and " if isinstance(op, ast.And) else " or "
                return word.join(f"({self.truth(one)})" for one in values)
            case ast.UnaryOp(ast.Not(), operand):
                return f"not ({self.condition(operand)})"
            case ast.Compare(left, ops, comparators):
                texts = [self.number(one) for one in (left, *comparators)]
                signs = [self._operator(op) for op in ops]
                pairs = zip(texts, signs, texts[1:], strict=False)
                return " and ".join(f"({a} {sign} {b})" for a, sign, b in pairs)
            case ast.Call(ast.Name("bool"), [argument], []):
                return f"({self.condition(argument)}) != 0"
            case _:
                return str(int(self._constant(node, bool)))

    def condition(self, node: ast.expr) -> str:
        """Return the text of what is only asked whether it is true."""
        try:
            return self.truth(node)
        except _NoExpressionError:
            return f"({self.number(node)}) != 0"

    def number(self, node: ast.expr) -> str:
        match node:
            case ast.Subscript(ast.Name(given), ast.Constant(str(name))) if given == self._given:
                if name not in self._arguments and name not in self._constants:
                    raise _NoExpressionError
                self.has_arguments |= name in self._arguments
                return name
            case ast.BinOp(left, op, right):
                divisor = right if isinstance(op, ast.FloorDiv | ast.Mod) else None
                text = f"({self.number(left)} {self._operator(op)} {self.number(right)})"
                self._check_divisor(divisor)
                return text
            case ast.UnaryOp(ast.USub(), operand):
                return f"(-{self.number(operand)})"
            case ast.Call(function, arguments, []):
                name = (dotted_name(function) or "").removeprefix("triton.").removeprefix("tl.")
                if len(arguments) == _FUNCTIONS.get(name):
                    self._check_divisor(arguments[1] if name == "cdiv" else None)
                    return f"{name}({', '.join(map(self.number, arguments))})"
            case _:
                pass
        return f"({self._constant(node, int)})"

    def _check_divisor(self, node: ast.expr | None) -> None:
        """Refuse to divide by what a launch passes: both sides of `and` are computed, it may be 0."""
        names = {one.value for one in ast.walk(node or ast.Pass()) if isinstance(one, ast.Constant)}
        if any(name in self._arguments for name in names):
            raise _NoExpressionError

    def _operator(self, op: ast.operator | ast.cmpop) -> str:
        if type(op) not in _OPERATORS:
            raise _NoExpressionError
        return _OPERATORS[type(op)]

    def _constant(self, node: ast.expr, kind: type[int]) -> int:
        """Return what an expression of the file is without the launch. Raises: _NoExpressionError."""
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        value = None if self._given in names else unwrap(self._frame.visit(node))
        if not isinstance(value, kind):
            raise _NoExpressionError
        return value
