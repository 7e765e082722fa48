"""Operators as methods of values: `x.__lshift__(4)` is `x << 4`, and `x.__rsub__(1)` is `1 - x`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from aotc.frontend.emitter import Emitter
from aotc.frontend.language.operators import BINARY, COMPARE, UNARY, BinaryOperator, binary, unary
from aotc.frontend.values import Operand

_BINARY: dict[str, type[ast.operator]] = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "truediv": ast.Div,
    "floordiv": ast.FloorDiv,
    "mod": ast.Mod,
    "and": ast.BitAnd,
    "or": ast.BitOr,
    "xor": ast.BitXor,
    "lshift": ast.LShift,
    "rshift": ast.RShift,
}
_COMPARE: dict[str, type[ast.cmpop]] = {
    "eq": ast.Eq,
    "ne": ast.NotEq,
    "lt": ast.Lt,
    "le": ast.LtE,
    "gt": ast.Gt,
    "ge": ast.GtE,
}
_UNARY: dict[str, type[ast.unaryop]] = {"neg": ast.USub, "invert": ast.Invert}


def _forward(op: BinaryOperator) -> Callable[..., Operand]:
    def run(emit: Emitter, self: Operand, other: Operand) -> Operand:
        return binary(emit, op, self, other)

    return run


def _reverse(op: BinaryOperator) -> Callable[..., Operand]:
    def run(emit: Emitter, self: Operand, other: Operand) -> Operand:
        return binary(emit, op, other, self)

    return run


def _alone(kind: type[ast.unaryop]) -> Callable[..., Operand]:
    def run(emit: Emitter, self: Operand) -> Operand:
        return unary(emit, UNARY[kind], self)

    return run


OPERATOR_METHODS: dict[str, Callable[..., Operand]] = {
    **{f"__{name}__": _forward(BINARY[kind]) for name, kind in _BINARY.items()},
    **{f"__r{name}__": _reverse(BINARY[kind]) for name, kind in _BINARY.items()},
    **{f"__{name}__": _forward(COMPARE[kind]) for name, kind in _COMPARE.items()},
    **{f"__{name}__": _alone(kind) for name, kind in _UNARY.items()},
}
"""What Python calls for each operator, by its name."""
