"""Translate functions of `@triton.heuristics` to bytecode run by the C extension, without Python.

Translatable: a function of one argument, with one expression over launch arguments, numbers,
comparisons, arithmetic, `and`, `or`, `not`, conditionals, `min`, `max`, `cdiv` and
`next_power_of_2`. Reading globals, closures or attributes of tensors is not translatable. The text
comes from the function's file, and must compile to the function's own code object.

Programs handle bools, None and 64-bit integers. For other values, and on errors, the function is
called instead.

Invariant: a program's answer equals the function's, type included.
"""

from __future__ import annotations

import ast
import builtins
import copy
import linecache
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

# Instructions of `_native_program.c`: (opcode, operand). Jumps go forward, to an instruction's index.
(
    ARGUMENT, INTEGER, BOOL, NONE, ADD, SUB, MUL, FLOORDIV, MOD, NEG, AND, OR, XOR, LEFT, RIGHT, EQ, NE, LT,
    LE, GT, GE, IS, IS_NOT, NOT, MIN, MAX, CDIV, NEXT_POWER_OF_2, TO_BOOL, TO_INT, JUMP, JUMP_IF_FALSE,
    JUMP_IF_FALSE_OR_POP, JUMP_IF_TRUE_OR_POP,
) = range(34)  # fmt: skip
MAX_INSTRUCTIONS, MAX_STACK = 256, 16

Program = tuple[tuple[int, int], ...]

_BINARY: dict[type[ast.operator], int] = {
    ast.Add: ADD, ast.Sub: SUB, ast.Mult: MUL, ast.FloorDiv: FLOORDIV, ast.Mod: MOD, ast.BitAnd: AND,
    ast.BitOr: OR, ast.BitXor: XOR, ast.LShift: LEFT, ast.RShift: RIGHT,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], int] = {
    ast.Eq: EQ, ast.NotEq: NE, ast.Lt: LT, ast.LtE: LE, ast.Gt: GT, ast.GtE: GE, ast.Is: IS,
    ast.IsNot: IS_NOT,
}  # fmt: skip
_OF_TRITON = {"cdiv": (CDIV, 2), "next_power_of_2": (NEXT_POWER_OF_2, 1)}


class _NoProgramError(Exception):
    """The function is not translatable."""


def program_of(function: Callable[..., Any], names: Sequence[str]) -> Program | None:
    """Return the program of a function of an argument mapping, None if not translatable.

    `names` are the arguments in the program's order.
    """
    if not isinstance(function, types.FunctionType) or function.__closure__:
        return None
    if function.__defaults__ or function.__kwdefaults__:
        return None
    text = next(_texts(function.__code__), None)
    if text is None:
        return None
    parameter, body = text
    translator = _Translator(parameter, names, function.__globals__)
    try:
        translator.expression(body)
    except _NoProgramError:
        return None
    is_small = (
        len(translator.instructions) <= MAX_INSTRUCTIONS and translator.max_depth <= MAX_STACK
    )
    return tuple(translator.instructions) if is_small else None


# ---- the text of a function ---------------------------------------------------------------------


@cache
def _functions(path: str) -> tuple[ast.Lambda | ast.FunctionDef, ...]:
    """Parse the functions in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    kinds = (ast.Lambda, ast.FunctionDef)
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def _texts(code: types.CodeType) -> Iterator[tuple[str, ast.expr]]:
    """Yield parameter and expression of functions compiling to a code object."""
    for node in _functions(code.co_filename):
        lines = [
            node.lineno,
            *(decorator.lineno for decorator in getattr(node, "decorator_list", ())),
        ]
        body = _body(node)
        if code.co_firstlineno not in lines or body is None:
            continue
        arguments = node.args
        if (
            arguments.vararg
            or arguments.kwarg
            or arguments.kwonlyargs
            or len(arguments.posonlyargs + arguments.args) != 1
        ):
            continue
        if any(_is_same(code, compiled) for compiled in _compiled(node)):
            yield (arguments.posonlyargs + arguments.args)[0].arg, body


def _body(node: ast.Lambda | ast.FunctionDef) -> ast.expr | None:
    if isinstance(node, ast.Lambda):
        return node.body
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    only = statements[0] if len(statements) == 1 else None
    return only.value if isinstance(only, ast.Return) else None


def _compiled(node: ast.Lambda | ast.FunctionDef) -> Iterator[types.CodeType]:
    """Yield the code objects of a function, compiled alone."""
    if isinstance(node, ast.Lambda):
        whole = compile(ast.Expression(node), "<heuristic>", "eval")
    else:
        plain = copy.copy(node)
        plain.decorator_list, plain.returns = [], None
        whole = compile(ast.Module([plain], []), "<heuristic>", "exec")
    yield from (code for code in whole.co_consts if isinstance(code, types.CodeType))


def _is_same(a: types.CodeType, b: types.CodeType) -> bool:
    parts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount")
    return all(getattr(a, part) == getattr(b, part) for part in parts) and _typed(a) == _typed(b)


def _typed(code: types.CodeType) -> list[tuple[type, object]]:
    """Return constants with their types, since 1 == 1.0 == True."""
    return [(type(literal), repr(literal)) for literal in code.co_consts]


# ---- translating ---------------------------------------------------------------------------------


class _Translator:
    """Emit instructions for an expression, and track the stack depth."""

    def __init__(self, parameter: str, names: Sequence[str], scope: dict[str, Any]) -> None:
        self.instructions: list[tuple[int, int]] = []
        self.max_depth = 0
        self._parameter, self._names, self._globals = parameter, list(names), scope
        self._depth = 0

    def add(self, opcode: int, operand: int = 0, *, change: int = 0) -> int:
        self.instructions.append((opcode, operand))
        self._depth += change
        self.max_depth = max(self.max_depth, self._depth)
        return len(self.instructions) - 1

    def land(self, jump: int) -> None:
        """Set a jump's target to the next instruction."""
        self.instructions[jump] = (self.instructions[jump][0], len(self.instructions))

    def expression(self, node: ast.expr) -> None:
        match node:
            case ast.Subscript(ast.Name(owner), ast.Constant(str(name))) if (
                owner == self._parameter
            ):
                if name not in self._names:
                    raise _NoProgramError
                self.add(ARGUMENT, self._names.index(name), change=1)
            case ast.Constant():
                self.constant(node.value)
            case ast.UnaryOp(ast.USub(), operand):
                self.apply(NEG, operand)
            case ast.UnaryOp(ast.Not(), operand):
                self.apply(NOT, operand)
            case ast.BinOp(left, operator, right) if type(operator) in _BINARY:
                self.apply(_BINARY[type(operator)], left, right)
            case ast.Compare(left, [ast.In()], [ast.Tuple(items) | ast.List(items)]) if items:
                self.one_of(left, items)
            case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARISONS:
                if isinstance(operator, (ast.Is, ast.IsNot)) and not _is_none(right):
                    raise _NoProgramError
                self.apply(_COMPARISONS[type(operator)], left, right)
            case ast.BoolOp(operator, values):
                is_and = isinstance(operator, ast.And)
                self.either(JUMP_IF_FALSE_OR_POP if is_and else JUMP_IF_TRUE_OR_POP, values)
            case ast.IfExp(test, body, other):
                self.condition(test, body, other)
            case ast.Call(called, arguments, []) if arguments:
                self.call(called, arguments)
            case _:
                raise _NoProgramError

    def constant(self, value: object) -> None:
        if value is None:
            self.add(NONE, change=1)
        elif isinstance(value, bool):
            self.add(BOOL, int(value), change=1)
        elif isinstance(value, int) and -(1 << 31) <= value < 1 << 31:
            self.add(INTEGER, value, change=1)
        else:
            raise _NoProgramError

    def apply(self, opcode: int, *operands: ast.expr) -> None:
        for operand in operands:
            self.expression(operand)
        self.add(opcode, change=1 - len(operands))

    def one_of(self, value: ast.expr, items: Sequence[ast.expr]) -> None:
        if not all(isinstance(item, ast.Constant) for item in items):
            raise _NoProgramError
        tests = [ast.Compare(value, [ast.Eq()], [item]) for item in items]
        self.either(JUMP_IF_TRUE_OR_POP, tests)

    def either(self, opcode: int, values: Sequence[ast.expr]) -> None:
        jumps: list[int] = []
        for value in values[:-1]:
            self.expression(value)
            jumps.append(self.add(opcode, change=-1))
        self.expression(values[-1])
        for jump in jumps:
            self.land(jump)

    def condition(self, test: ast.expr, body: ast.expr, other: ast.expr) -> None:
        self.expression(test)
        to_other = self.add(JUMP_IF_FALSE, change=-1)
        self.expression(body)
        to_end = self.add(JUMP, change=-1)
        self.land(to_other)
        self.expression(other)
        self.land(to_end)

    def call(self, called: ast.expr, arguments: Sequence[ast.expr]) -> None:
        function = self._resolve(called)
        name = getattr(function, "__name__", "")
        is_tritons = str(getattr(function, "__module__", "")).partition(".")[0] == "triton"
        if function is builtins.bool and len(arguments) == 1:
            self.apply(TO_BOOL, *arguments)
        elif function is builtins.int and len(arguments) == 1:
            self.apply(TO_INT, *arguments)
        elif function in (builtins.min, builtins.max) and len(arguments) > 1:
            self.expression(arguments[0])
            for argument in arguments[1:]:
                self.expression(argument)
                self.add(MIN if function is builtins.min else MAX, change=-1)
        elif is_tritons and name in _OF_TRITON and len(arguments) == _OF_TRITON[name][1]:
            self.apply(_OF_TRITON[name][0], *arguments)
        else:
            raise _NoProgramError

    def _resolve(self, node: ast.expr) -> object:
        """Resolve a name in the function's globals and builtins."""
        match node:
            case ast.Name(name) if name != self._parameter:
                missing = object()
                meaning = self._globals.get(name, getattr(builtins, name, missing))
                if meaning is missing:
                    raise _NoProgramError
                return meaning
            case ast.Attribute(ast.Name() as owner, name):
                module = self._resolve(owner)
                if isinstance(module, types.ModuleType) and hasattr(module, name):
                    return getattr(module, name)
            case _:
                pass
        raise _NoProgramError


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
